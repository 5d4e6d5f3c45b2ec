"""Listening sockets at an address, non-blocking."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator

from async_loader.feeder.addresses import Address

_BACKLOG = 512


def listen(address: Address) -> tuple[socket.socket, str]:
    """Return a listening socket and its endpoint for clients, with the port that the system chose.

    An existing file of a unix socket is removed: `AddressLock` excludes a living server.

    Raises
    ------
    OSError
        If it cannot be bound; ``socket.gaierror`` for an unknown host.
    """
    one, where = _unix(address) if address.scheme == "ipc" else _tcp(address)
    try:
        if address.scheme == "ipc":
            _remove(address.path)
            with owner_only():
                one.bind(where)
        else:
            one.bind(where)
        one.listen(_BACKLOG)
        one.setblocking(False)
        return one, _endpoint(one)
    except BaseException:
        one.close()
        raise


def _unix(address: Address) -> tuple[socket.socket, str]:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), address.path


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)


def _tcp(address: Address) -> tuple[socket.socket, tuple[str, int]]:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    host = None if address.host == "*" else address.host
    found = socket.getaddrinfo(host, address.port, family, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)
    one = socket.socket(family, socket.SOCK_STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return one, (str(found[0][4][0]), int(found[0][4][1]))


def _endpoint(one: socket.socket) -> str:
    name = one.getsockname()
    if one.family == socket.AF_UNIX:
        return f"ipc://{name}"
    host = f"[{name[0]}]" if one.family == socket.AF_INET6 else name[0]
    return f"tcp://{host}:{name[1]}"


@contextlib.contextmanager
def owner_only() -> Iterator[None]:
    """Create files for this user only.

    Process-wide: for short, and only where no other thread creates files.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
