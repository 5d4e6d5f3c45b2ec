"""The server's unix socket for offers of memory, and for weights in memory of its own. A loop polls
its descriptor. See NOTE [out of descriptors] in reserve_descriptor.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable

from async_loader.errors import Malformed
from async_loader.feeder.listen_sockets import NO_ROOM, ReserveDescriptor
from async_loader.feeder.shared.offer import (
    Offer,
    WeightsRequest,
    answered,
    peer_uid,
    read_record,
)

_log = logging.getLogger("async_loader")
_CALLERS = 64
_RECORD_S = 0.05
"""For a caller's record: it is sent as soon as the caller is connected."""


class Listener:
    """Receives offers.

    Parameters
    ----------
    path : str
        In a folder that only this user can enter; see addresses.py.
    take : callable
        Called with an `Offer` and a descriptor, which it owns. Raises Malformed to refuse.
    give : callable
        Called with a `WeightsRequest`; returns the descriptor of their memory. Raises Malformed to
        refuse.
    """

    def __init__(
        self,
        path: str,
        take: Callable[[Offer, int], None],
        give: Callable[[WeightsRequest], int],
    ) -> None:
        self.path, self._take, self._give = path, take, give
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # of a killed server: the address lock excludes a living one
            self._socket.bind(path)
            os.chmod(path, 0o600)
            self._socket.listen(_CALLERS)
        except OSError:
            self._socket.close()
            raise
        self._reserve = ReserveDescriptor()
        self._reserve.refill()

    def fileno(self) -> int:
        """Return what to poll for reading."""
        return self._socket.fileno()

    def handle(self) -> None:
        """Hear a caller. Called when it is readable."""
        try:
            caller, _ = self._socket.accept()
        except OSError as error:
            if error.errno in NO_ROOM:
                with contextlib.suppress(OSError):
                    self._reserve.turn_away(self._socket)
            return
        with caller:
            caller.settimeout(_RECORD_S)
            self._hear(caller)

    def _hear(self, caller: socket.socket) -> None:
        fds: list[int] = []
        given: list[int] = []
        reason: str | None = None
        try:
            record, fds, _, _ = socket.recv_fds(caller, 4096, 8)
            uid = peer_uid(caller)
            if uid is not None and uid not in (os.getuid(), 0):
                raise Malformed(f"memory is shared with user {os.getuid()} only, this is {uid}")
            asked = read_record(record)
            if isinstance(asked, WeightsRequest):
                given.append(self._give(asked))
            elif len(fds) != 1:
                text = f"an offer of memory came with {len(fds)} descriptors, it takes one"
                raise Malformed(text)
            else:
                asked.check(fds[0])
                self._take(asked, os.dup(fds[0]))
        except Malformed as error:
            reason = str(error)
        except OSError as error:
            reason = f"the memory could not be mapped: {error}"
        except Exception as error:  # of one caller: it must not end the loop
            _log.exception("an offer of memory could not be answered")
            reason = f"{type(error).__name__}: {error}; the server's log has more"
        finally:
            for fd in fds:
                os.close(fd)
        with contextlib.suppress(OSError):
            socket.send_fds(caller, [answered(reason)], given)

    def close(self) -> None:
        """Close the socket, and remove its file."""
        self._socket.close()
        self._reserve.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)
