"""One accepted connection: its socket, what it received, what waits to be sent. Never waits; understands no message."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from async_loader.feeder.zmtp import Connection

_TURN_BYTES = 2 << 20
"""That one connection is read of before the others have their turn."""
_TURN_FRAMES = 1024
_AT_ONCE = 64
"""Buffers that the kernel is handed in one call."""
_JOINED = 16 << 10
"""A message of fewer bytes is sent as one buffer."""
_PONGS = 32
"""Buffers that wait to be sent, beyond which a PING is not answered any more."""
_FLAGS = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT


class PeerConnection:
    """One connection on one plane. A route: what is received comes with it, and is answered over it.

    Parameters
    ----------
    sock : socket.socket
        Its own from here on.
    plane : Plane
    connection : Connection
    now : float

    Attributes
    ----------
    heard : float
        When bytes came last.
    listed : bool
        Whether it stands in the line of those with messages.
    paused : bool
        Whether it is not polled, since enough of it waits to be taken.
    deaf : bool
        Whether nothing can be sent to it any more.
    ended : bool
        Whether its socket was closed; what was received before may still wait.
    refusals : int
        Messages that could not be read, or were of no session.
    known : bool
        Whether a message of a session came over it.
    turn : int
        Messages that were taken in this turn.
    """

    __slots__ = (
        "_ends", "_out", "_put", "_sent", "connection", "deaf", "ended", "heard", "known", "listed", "mask", "paused", "plane",
        "refusals", "since", "sock", "turn",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, plane: Any, connection: Connection, now: float) -> None:
        self.sock, self.plane, self.connection = sock, plane, connection
        self.since = self.heard = now
        self.known = self.listed = self.paused = self.deaf = self.ended = False
        self.refusals = self.mask = self.turn = 0
        self._out: deque[memoryview] = deque()
        self._ends: deque[int] = deque()  # where each message that waits ends, counted in bytes of all times
        self._put = self._sent = 0

    @property
    def user(self) -> str | None:
        """The owner of the peer's key."""
        return self.connection.user

    @property
    def unsent(self) -> int:
        """Messages that wait to be sent."""
        return len(self._ends)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of them, and of what the protocol sends."""
        return self._put - self._sent

    def read(self, scratch: bytearray, most: int, most_bytes: int) -> bool:
        """Receive what is there, within a turn; False: the peer has closed.

        ``most`` messages, or ``most_bytes``, that wait to be taken end the turn too.

        Raises
        ------
        OSError, ProtocolError
        """
        connection, left = self.connection, _TURN_BYTES
        while left > 0 and not self.full(most, most_bytes):
            space = connection.space(scratch)
            try:
                count = self.sock.recv_into(space)
            except (BlockingIOError, InterruptedError):
                return True
            if not count:
                return False
            connection.received(scratch, count, _TURN_FRAMES)
            if connection.cut_short or count < len(space):
                return True
            left -= count
        return True

    def full(self, most: int, most_bytes: int) -> bool:
        """Whether enough waits to be taken."""
        connection = self.connection
        return connection.cut_short or len(connection.messages) >= most or connection.held_bytes >= most_bytes

    def resume(self, scratch: bytearray) -> None:
        """Read what was received and not cut yet. Raises ProtocolError."""
        self.connection.resume(scratch, _TURN_FRAMES)

    def readable(self) -> bool:
        """Whether bytes wait in the kernel."""
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def answer(self) -> None:
        """Send what the protocol says."""
        outgoing, self.connection.outgoing = self.connection.outgoing, []
        if len(self._out) < _PONGS:
            data = b"".join(outgoing)
            self._send([data], len(data))

    def send(self, message: Sequence[Any]) -> bool:
        """Send a message, or let it wait; False: the peer is gone.

        What waits is not copied: leave it as it is.
        """
        if self.deaf:
            return False
        parts, nbytes = self.connection.encode(message)
        self._send(parts, nbytes)
        if self._out:
            self._ends.append(self._put)
        return not self.deaf

    def _send(self, parts: Sequence[Any], nbytes: int) -> None:
        if self.deaf:
            return
        try:
            self._try_to_send(parts, nbytes)
        except OSError:
            self._hang_up()

    def _hang_up(self) -> None:
        """Nothing can be sent any more. What the peer had said before can still be read: its end is found there."""
        self.deaf = True
        self._out.clear()
        self._ends.clear()
        self._sent = self._put

    def _try_to_send(self, parts: Sequence[Any], nbytes: int) -> None:
        sent = 0
        if not self._out:
            if nbytes <= _JOINED:
                parts = parts if len(parts) == 1 else [b"".join(parts)]
                with contextlib.suppress(BlockingIOError, InterruptedError):
                    sent = self.sock.send(parts[0], _FLAGS)
            elif len(parts) <= _AT_ONCE:
                with contextlib.suppress(BlockingIOError, InterruptedError):
                    sent = self.sock.sendmsg(parts, (), _FLAGS)
        self._put += nbytes
        self._sent += sent
        if sent == nbytes:
            return
        begun = bool(self._out)
        for part in parts:
            view = memoryview(part).cast("B")
            if sent >= len(view):
                sent -= len(view)
                continue
            self._out.append(view[sent:])
            sent = 0
        if not begun:
            self.flush()

    def flush(self) -> bool:
        """Send what waits; whether nothing waits any more."""
        out = self._out
        while out:
            some = list(islice(out, _AT_ONCE))
            try:
                sent = self.sock.sendmsg(some, (), _FLAGS)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                self._hang_up()
                return True
            self._sent += sent
            while sent and sent >= len(out[0]):
                sent -= len(out.popleft())
            if sent:
                out[0] = out[0][sent:]
        while self._ends and self._ends[0] <= self._sent:
            self._ends.popleft()
        return not out

    def forget(self) -> None:
        """Let go of what was received and not taken."""
        self.connection.forget()

    def close(self) -> None:
        """Let go of the socket, and of what was not sent. Again does nothing."""
        self.ended = True
        self.sock.close()
        self._hang_up()
