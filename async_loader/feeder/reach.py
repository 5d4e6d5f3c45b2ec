"""Whether a feeder can be at an address at all: told at once, before it is asked."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading

from async_loader.errors import ConfigError
from async_loader.feeder import addresses
from async_loader.lifecycle import Deadline, join

_TCP = re.compile(r"^tcp://(?:\[(?P<six>[^\]]*)\]|(?P<host>[^:;\[\]]*)):(?P<port>\d{1,5})$")
_REFUSED_S = 0.5  # for a machine to refuse, or take, a connection


def absent(address: str, deadline: Deadline) -> str:
    """Return why no feeder can be at an address by now, as words after "it"; empty: one may be.

    Raises
    ------
    ConfigError
        If none can ever be: another scheme, a host that is not known.
    """
    if not address.startswith(("tcp://", "ipc://")):
        addresses.parse(address)  # says what an address looks like
    path = _path(address)
    if path is not None:
        return "" if os.path.exists(path) else f"has no socket there: {path} is missing"
    found = _TCP.match(address)
    host = None if found is None else found["host"]
    if not host or re.fullmatch(r"[0-9.]+", host):
        return ""
    error = _lookup(host, deadline)
    if error is None:
        return ""
    reason = f"{host!r} cannot be resolved ({error.strerror})"
    if error.errno == socket.EAI_AGAIN:
        return f"is on a host that is not known by now: {reason}"
    raise ConfigError(f"address {address!r}: the host {reason}: name one that is known here")


def refused(address: str, deadline: Deadline) -> str:
    """As `absent`; and whether a connection is refused, or not taken within a moment."""
    reason, path, found = absent(address, deadline), _path(address), _TCP.match(address)
    if reason or (path is None and found is None):
        return reason
    try:
        if path is not None:
            with socket.socket(socket.AF_UNIX) as one:
                one.settimeout(_REFUSED_S)
                one.connect(path)
        elif found is not None:
            host, left = found["six"] or found["host"], deadline.left_or_inf()
            with socket.create_connection((host, int(found["port"])), min(_REFUSED_S, left)):
                pass
    except (OSError, OverflowError) as error:
        return f"takes no connection there ({getattr(error, 'strerror', None) or error})"
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


def _path(address: str) -> str | None:
    """Return the file of a socket; ``None`` for tcp, and for a name without a file."""
    path = address.removeprefix("ipc://")
    return None if path == address or path.startswith("@") else path


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
