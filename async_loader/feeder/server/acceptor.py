"""Listening sockets, and options of accepted ones."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator

from async_loader.feeder.addresses import Address

NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of ``accept`` where the process, or the system, has no descriptor or memory left."""


_BACKLOG = 512


def listen(address: Address) -> tuple[socket.socket, str]:
    """Return a listening socket and its endpoint for clients, with the port that the system chose.

    Raises
    ------
    OSError
        If it cannot be bound; ``socket.gaierror`` for an unknown host.
    """
    if address.scheme == "ipc":
        with owner_only():
            one = socket.create_server(address.path, family=socket.AF_UNIX, backlog=_BACKLOG)
    else:
        six = ":" in address.host
        one = socket.create_server(
            ("" if address.host == "*" else address.host, address.port),
            family=socket.AF_INET6 if six else socket.AF_INET,
            backlog=_BACKLOG,
            dualstack_ipv6=six and socket.has_dualstack_ipv6(),
        )
    one.setblocking(False)
    return one, _endpoint(one)


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


Bind = Callable[[str], tuple[socket.socket, str]]
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 20), (socket.TCP_KEEPCNT, 6))
"""A peer that vanished holds its descriptor for three minutes."""


def close(listener: socket.socket) -> None:
    """Remove the file of a listening socket and close it."""
    if listener.family == socket.AF_UNIX:
        with contextlib.suppress(OSError):
            os.unlink(listener.getsockname())  # first: another server may bind from the close on
    listener.close()


def prepare(sock: socket.socket) -> None:
    """Set socket options. An ended connection raises nothing: reading finds it."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
