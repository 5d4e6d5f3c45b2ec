"""Listening sockets at an address, non-blocking."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator

from async_loader.feeder.addresses import Address

NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of ``accept`` that the reserve is for."""


class ReserveDescriptor:
    """One descriptor, closed when another is needed. Opened by `refill`."""

    def __init__(self) -> None:
        self._fd = -1

    def refill(self) -> bool:
        """Open the descriptor, if it is not; return whether it is open."""
        if self._fd < 0:
            with contextlib.suppress(OSError):
                self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return self._fd >= 0

    def turn_away(self, listener: socket.socket) -> None:
        """Accept a connection and close it. Raises OSError if that is not possible either."""
        self.close()
        try:
            listener.accept()[0].close()
        finally:
            self.refill()

    def close(self) -> None:
        """Close the descriptor. May be called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_BACKLOG = 512


def listen(address: Address) -> tuple[socket.socket, str]:
    """Return a listening socket and its endpoint for clients, with the port that the system chose.

    An existing file of a unix socket is removed: `AddressLock` excludes a living server.

    Raises
    ------
    OSError
        If it cannot be bound; ``socket.gaierror`` for an unknown host.
    """
    if address.scheme == "ipc":
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(address.path).st_mode):
                os.unlink(address.path)
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
