"""Whether a feeder can be at an address at all: told at once, before it is asked."""

from __future__ import annotations

import contextlib
import os
import socket
import threading

from async_loader.errors import ConfigError
from async_loader.feeder import addresses
from async_loader.lifecycle import Deadline, join

_REFUSED_S = 0.5  # for a machine to refuse, or take, a connection


def absent(address: str, deadline: Deadline) -> str:
    """Return why no feeder can be at an address by now, as words after "it"; empty: one may be.

    Raises
    ------
    ConfigError
        If none can ever be: another scheme, a host that is not known.
    """
    where = addresses.parse(address)
    if where.scheme == "ipc":
        missing = not os.path.exists(where.path)
        return f"has no socket there: {where.path} is missing" if missing else ""
    error = _lookup(where.host, deadline)
    if error is None:
        return ""
    reason = f"{where.host!r} cannot be resolved ({error.strerror})"
    if error.errno == socket.EAI_AGAIN:
        return f"is on a host that is not known by now: {reason}"
    raise ConfigError(f"address {address!r}: the host {reason}: name one that is known here")


def refused(address: str, deadline: Deadline) -> str:
    """As `absent`; and whether a connection is refused, or not taken within a moment."""
    reason, where = absent(address, deadline), addresses.parse(address)
    if reason:
        return reason
    left = min(_REFUSED_S, deadline.left_or_inf())
    try:
        if where.scheme == "ipc":
            with socket.socket(socket.AF_UNIX) as one:
                one.settimeout(left)
                one.connect(where.path)
        else:
            socket.create_connection((where.host, where.port), left).close()
    except OSError as error:
        return f"takes no connection there ({error.strerror or error})"
    return ""


def hint(address: str) -> str:
    """Return what may be done about a feeder that was never heard of."""
    where = None
    with contextlib.suppress(ConfigError):
        where = str(addresses.default())
    if where is None or where == address:
        return "does it run there? 'async-loader serve' starts one"
    if os.path.exists(where.removeprefix("ipc://")):
        return f"does it run there? One of yours serves at {where}: connect() finds it"
    return f"does it run there? 'async-loader serve' starts one, at {where} without --bind"


def _lookup(host: str, deadline: Deadline) -> socket.gaierror | None:
    """Return why a name has no address; ``None`` if it has one, or time is over."""
    errors: list[socket.gaierror] = []

    def look() -> None:
        try:
            socket.getaddrinfo(host, None)
        except socket.gaierror as error:
            errors.append(error)
        except (OSError, UnicodeError):
            return

    # it can take as long as the resolver likes
    thread = threading.Thread(target=look, name="async-loader-lookup", daemon=True)
    thread.start()
    join(thread, deadline.left())
    return errors[0] if errors else None
