"""Listening sockets of all planes: connections in, without spinning where there is no descriptor left. Speaks no protocol."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from enum import Enum

_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_AT_ONCE = 16
"""Connections that one door takes before others have their turn: a handshake with keys costs 0.3 ms."""
REST_S = 0.5
"""How long doors are not looked at where a connection could be neither taken nor refused."""
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 20), (socket.TCP_KEEPCNT, 6))
"""A peer that has gone without a word holds its descriptor for three minutes."""


class Acceptor:
    """Takes connections.

    Parameters
    ----------
    make_room : callable
        Ends a connection that can be spared; whether there was one.

    Attributes
    ----------
    turned_away : int
        Connections that were closed at once: there was no descriptor for them.

    Notes
    -----
    NOTE [out of descriptors]. A connection that cannot be accepted keeps its listening socket readable: a loop that only
    failed would spin. So a connection that can be spared is ended; where all are needed, a descriptor that is kept for this
    is let go of, and the connection closed at once; and where not even that works, doors are not looked at for `REST_S`.
    """

    def __init__(self, make_room: Callable[[], bool]) -> None:
        self._make_room = make_room
        self._listeners: dict[int, tuple[socket.socket, Enum]] = {}
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.turned_away = 0

    def add(self, plane: Enum, listener: socket.socket) -> int:
        """Take connections of a plane there; what to poll for reading."""
        self._listeners[listener.fileno()] = listener, plane
        return listener.fileno()

    def __contains__(self, fd: int) -> bool:
        return fd in self._listeners

    def filenos(self) -> list[int]:
        """What to poll for reading."""
        return list(self._listeners)

    def accept(self, fd: int) -> Iterator[tuple[Enum, socket.socket]]:
        """Some of the connections that wait at a door.

        Raises
        ------
        OSError
            If one can be neither taken nor refused now.
        """
        listener, plane = self._listeners[fd]
        for _ in range(_AT_ONCE):
            sock = self._accept(listener)
            if sock is None:
                return
            _prepare(sock)
            yield plane, sock

    def _accept(self, listener: socket.socket) -> socket.socket | None:
        """The next connection; ``None``: no more wait. See NOTE [out of descriptors]."""
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
        """Raises OSError."""
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
        """No connection comes any more; files of unix sockets are gone. Again does nothing."""
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
    """Raises nothing: a connection that has ended already is found when it is read."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
