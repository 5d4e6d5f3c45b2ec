"""A descriptor in reserve, for a process that has no other left.

# NOTE [out of descriptors]
A connection that cannot be accepted keeps its listening socket readable: a loop that only failed
would spin. So a reserved descriptor is closed, and the connection accepted with it and closed at
once: its peer learns that there is no room.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket

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
