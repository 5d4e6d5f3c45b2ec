"""Whether a feeder can be at an address at all: told at once, before it is asked."""

from __future__ import annotations

import socket

from async_loader.errors import ConfigError
from async_loader.feeder import addresses
from async_loader.lifecycle import Deadline

HINT = (
    "does it run there? 'async-loader serve' without --bind serves at ipc://, where connect() "
    "without an address finds it"
)
_REFUSED_S = 0.5  # for a machine to refuse, or take, a connection


def absent(address: str, deadline: Deadline) -> str:
    """Return why no feeder can be at an address by now, as words after "it"; empty: one may be.

    The name of a host is looked up for as long as the resolver takes.

    Raises
    ------
    ConfigError
        If none can ever be: another scheme, a host that is not known.
    """
    where = addresses.parse(address)
    left = min(_REFUSED_S, deadline.left_or_inf())
    try:
        if where.scheme == "ipc":
            with socket.socket(socket.AF_UNIX) as one:
                one.settimeout(left)
                one.connect(where.path)
        else:
            socket.create_connection((where.host, where.port), left).close()
    except (OSError, UnicodeError) as error:
        if isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN:
            raise ConfigError(
                f"address {address!r}: the host {where.host!r} cannot be resolved "
                f"({error.strerror}): name one that is known here"
            ) from None
        return f"takes no connection there ({error})"
    return ""
