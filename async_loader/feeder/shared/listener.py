"""The server's unix socket for offers of memory. Never waits: a loop polls its descriptors.

# NOTE [out of descriptors]
A process without a free descriptor cannot accept, and the socket stays readable: a loop would spin.
So the listener reserves one, with which it accepts such a caller and closes it: the caller learns
at once that there is no room. While the reserve cannot be opened again the socket is not polled;
that is tried each time the loop asks what to poll.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable

from async_loader.errors import Malformed
from async_loader.feeder.shared.offer import Offer, answered, peer_uid

_MOST_CALLERS = 64
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """Receives offers.

    Parameters
    ----------
    path : str
        In a folder that only this user can enter; see addresses.py.
    take : callable
        Called with an `Offer` and a descriptor, which it owns. Raises Malformed to refuse.
    """

    def __init__(self, path: str, take: Callable[[Offer, int], None]) -> None:
        self.path, self._take = path, take
        self._callers: dict[int, socket.socket] = {}
        self._reserve = -1
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # of a killed server: the address lock excludes a living one
            self._socket.bind(path)
            os.chmod(path, 0o600)
            self._socket.listen(_MOST_CALLERS)
        except OSError:
            self._socket.close()
            raise

    def filenos(self) -> list[int]:
        """Return what to poll for reading."""
        return (
            [self._socket.fileno(), *self._callers] if self._has_reserve() else list(self._callers)
        )

    def _has_reserve(self) -> bool:
        if self._reserve < 0:
            with contextlib.suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return self._reserve >= 0

    def handle(self, fd: int) -> None:
        """Handle a readable descriptor."""
        if fd == self._socket.fileno():
            self._accept()
            return
        caller = self._callers.pop(fd, None)
        if caller is not None:
            with caller:
                self._hear(caller)

    def _accept(self) -> None:
        try:
            caller, _ = self._socket.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._turn_away()
            return
        with contextlib.suppress(OSError):
            caller.setblocking(False)
            if len(self._callers) >= _MOST_CALLERS:  # the one that has been silent longest
                self._callers.pop(next(iter(self._callers))).close()
            self._callers[caller.fileno()] = caller

    def _turn_away(self) -> None:
        """See NOTE [out of descriptors]."""
        self._close_reserve()
        with contextlib.suppress(OSError):
            self._socket.accept()[0].close()
        self._has_reserve()

    def _close_reserve(self) -> None:
        fd, self._reserve = self._reserve, -1
        if fd >= 0:
            os.close(fd)

    def _hear(self, caller: socket.socket) -> None:
        fds: list[int] = []
        reason: str | None = None
        try:
            record, fds, _, _ = socket.recv_fds(caller, 4096, 8)
            uid = peer_uid(caller)
            if uid is not None and uid not in (os.getuid(), 0):
                raise Malformed(f"memory is taken from user {os.getuid()} only, this is {uid}")
            offer = Offer.unpack(record)
            if len(fds) != 1:
                raise Malformed(
                    f"an offer of memory came with {len(fds)} descriptors, it takes one"
                )
            offer.check(fds[0])
            self._take(offer, os.dup(fds[0]))
        except Malformed as error:
            reason = str(error)
        except OSError as error:
            reason = f"the memory could not be mapped: {error}"
        finally:
            for fd in fds:
                os.close(fd)
        with contextlib.suppress(OSError):
            caller.send(answered(reason))

    def close(self) -> None:
        """Close the socket and all callers, and remove the socket's file."""
        for caller in self._callers.values():
            caller.close()
        self._callers.clear()
        self._socket.close()
        self._close_reserve()
        with contextlib.suppress(OSError):
            os.unlink(self.path)
