"""Accepts connections of all planes, without spinning when the process has no descriptor left."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterator

from async_loader.feeder.addresses import parse
from async_loader.feeder.listen_sockets import NO_ROOM, ReserveDescriptor, listen
from async_loader.feeder.wire import Plane

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
    new one is turned away, see NOTE [out of descriptors] in reserve_descriptor.py; if not even that
    works, no connection is accepted for `REST_S`.
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
