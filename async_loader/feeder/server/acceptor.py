"""Accepts connections of all planes, without spinning when the process has no descriptor left."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
from collections.abc import Callable, Iterator

from async_loader.feeder.addresses import Address, parse
from async_loader.feeder.wire import Plane

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


Bind = Callable[[str], tuple[socket.socket, str]]
_AT_ONCE = 16
"""Connections of one listening socket before the others: a handshake with keys costs 0.3 ms."""
REST_S = 0.5
"""Pause after a connection could be neither accepted nor refused."""
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 20), (socket.TCP_KEEPCNT, 6))
"""A peer that vanished holds its descriptor for three minutes."""


class Acceptor:
    """Accepts connections.

    Parameters
    ----------
    make_room : callable
        Ends a connection that can be spared; returns whether there was one.

    Attributes
    ----------
    turned_away : int
        Connections that were closed at once: there was no descriptor for them.

    Notes
    -----
    Where no descriptor is left, a connection that can be spared is ended; if all are needed, the
    new one is turned away; if not even that works, no connection is accepted for `REST_S`.
    """

    def __init__(self, make_room: Callable[[], bool]) -> None:
        self._make_room = make_room
        self._listeners: dict[int, tuple[socket.socket, Plane]] = {}
        self._reserve = ReserveDescriptor()
        self._reserve.refill()
        self.turned_away = 0

    def listen(self, plane: Plane, where: str, bind: Bind | None = None) -> str:
        """Accept connections of a plane at an endpoint, or at the socket that ``bind`` returns.

        Return the endpoint at which clients find it.
        """
        listener, found = listen(parse(where)) if bind is None else bind(plane.value)
        self._listeners[listener.fileno()] = listener, plane
        return found

    def __contains__(self, fd: int) -> bool:
        return fd in self._listeners

    def go_on(self, epoll: select.epoll) -> None:
        """Poll the listening sockets."""
        for fd in self._listeners:
            epoll.register(fd, select.EPOLLIN)

    def rest(self, epoll: select.epoll) -> None:
        """Poll them no more."""
        for fd in self._listeners:
            epoll.unregister(fd)

    def accept(self, fd: int) -> Iterator[tuple[Plane, socket.socket]]:
        """Accept some of the waiting connections of a listening socket.

        Raises
        ------
        OSError
            If one can be neither accepted nor refused now.
        """
        listener, plane = self._listeners[fd]
        for _ in range(_AT_ONCE):
            try:
                sock = listener.accept()[0]
            except BlockingIOError:
                return
            except OSError as error:  # others: it was gone before it was accepted
                if error.errno in NO_ROOM and not self._make_room():
                    with contextlib.suppress(BlockingIOError):
                        self._reserve.turn_away(listener)
                        self.turned_away += 1
                continue
            _prepare(sock)
            yield plane, sock

    def close(self) -> None:
        """Close the listening sockets and remove their files. May be called again."""
        for listener, _ in self._listeners.values():
            path = listener.getsockname() if listener.family == socket.AF_UNIX else None
            listener.close()
            if path:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        self._listeners.clear()
        self._reserve.close()


def _prepare(sock: socket.socket) -> None:
    """Set socket options. An ended connection raises nothing: reading finds it."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
