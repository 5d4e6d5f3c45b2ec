"""Accepts connections of all planes, without spinning when the process has no descriptor left."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from enum import Enum

_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
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
    NOTE [out of descriptors]. A connection that cannot be accepted keeps its listening socket
    readable: a loop that only failed would spin. So a connection that can be spared is ended; if
    all are needed, a reserved descriptor is closed, and the new connection accepted and closed at
    once; if not even that works, no connection is accepted for `REST_S`.
    """

    def __init__(self, make_room: Callable[[], bool]) -> None:
        self._make_room = make_room
        self._listeners: dict[int, tuple[socket.socket, Enum]] = {}
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.turned_away = 0

    def add(self, plane: Enum, listener: socket.socket) -> int:
        """Accept connections of a plane there; return what to poll for reading."""
        self._listeners[listener.fileno()] = listener, plane
        return listener.fileno()

    def __contains__(self, fd: int) -> bool:
        return fd in self._listeners

    def filenos(self) -> list[int]:
        """Return what to poll for reading."""
        return list(self._listeners)

    def accept(self, fd: int) -> Iterator[tuple[Enum, socket.socket]]:
        """Accept some of the waiting connections of a listening socket.

        Raises
        ------
        OSError
            If one can be neither accepted nor refused now.
        """
        listener, plane = self._listeners[fd]
        for _ in range(_AT_ONCE):
            sock = self._accept(listener)
            if sock is None:
                return
            _prepare(sock)
            yield plane, sock

    def _accept(self, listener: socket.socket) -> socket.socket | None:
        """Return the next connection; ``None``: no more wait. See NOTE [out of descriptors]."""
        for _ in range(_AT_ONCE):
            try:
                return listener.accept()[0]
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno not in _SHORT_OF:
                    continue  # it was gone before it was accepted
                if not self._make_room():
                    self._turn_away(listener)
        return None

    def _turn_away(self, listener: socket.socket) -> None:
        """Accept a connection with the reserved descriptor and close it. Raises OSError."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        try:
            with contextlib.suppress(BlockingIOError):
                listener.accept()[0].close()
                self.turned_away += 1
        finally:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the listening sockets and remove their files. May be called again."""
        for listener, _ in self._listeners.values():
            path = listener.getsockname() if listener.family == socket.AF_UNIX else None
            listener.close()
            if path:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        self._listeners.clear()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1


def _prepare(sock: socket.socket) -> None:
    """Set socket options. An ended connection raises nothing: reading finds it."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
