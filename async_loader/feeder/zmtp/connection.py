"""One connection: received bytes are cut into frames, frames into messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from async_loader.feeder.zmtp import frames
from async_loader.feeder.zmtp import frames as wire
from async_loader.feeder.zmtp.frames import COMMAND, LONG, MORE, Buffer, ProtocolError

_GREETING = 64
_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_HANDSHAKE_BYTES = 8 << 10
"""Bytes of a frame during the handshake, at most."""
_OWN_BUFFER_FROM = 16 << 10
"""An incomplete frame of this size gets a buffer of its own, and is received into that."""
_FRAME_BYTES = 64
"""Of a frame beside its content, as Python keeps it."""
_MOST_CONTEXT = 16
_JOIN_BELOW = 4 << 10
"""Smaller parts of a message are joined: a copy is cheaper than one more buffer."""


def greeting(mechanism: bytes) -> bytes:
    """Return the first 64 bytes of a server of ZMTP 3.1."""
    as_server = mechanism == b"CURVE"
    return _SIGNATURE + bytes((3, 1)) + mechanism.ljust(20, b"\0") + bytes((as_server,)) + bytes(31)


class Connection:
    """The server's end of one connection.

    Parameters
    ----------
    mechanism : Null
    frame_bytes, message_bytes, message_frames : int
        Limits of a frame, and of all frames of a message: larger ones are refused before they are
        allocated.

    Attributes
    ----------
    messages : deque of (list of buffers, int)
        Received and not taken: frames, and their memory. Each frame has its own.
    held_bytes : int
        Memory of `messages`; the code that takes a message subtracts it.
    outgoing : list of bytes
        What the protocol sends, in order; the code that sends it clears the list.

    Examples
    --------
    The loop around it, with a buffer that all connections share::

        space = connection.space(scratch)
        count = socket.recv_into(space)
        connection.received(scratch, count, 1000)
        socket.send(b"".join(connection.outgoing))
    """

    def __init__(
        self, mechanism: Null, frame_bytes: int, message_bytes: int, message_frames: int
    ) -> None:
        self._mechanism = mechanism
        self._frame_bytes = frame_bytes + mechanism.overhead
        self._message_bytes, self._message_frames = message_bytes, message_frames
        self.messages: deque[tuple[list[Buffer], int]] = deque()
        self.held_bytes = 0
        self.outgoing: list[bytes] = [greeting(mechanism.name)]
        self._greeted = False
        self._pending: Buffer = b""  # what was received and not cut yet
        self._large: memoryview | None = None  # a frame that is under way, in its own buffer
        self._large_flags = self._filled = 0
        self._frames: list[Buffer] = []  # of the message that is under way
        self._nbytes = 0
        self.cut_short = False
        """Whether unparsed bytes may have frames."""

    @property
    def ready(self) -> bool:
        """Whether the handshake is over."""
        return self._mechanism.ready

    @property
    def user(self) -> str | None:
        """The user of the peer's key; ``None`` without keys, and during the handshake."""
        return self._mechanism.user if self._mechanism.ready else None

    @property
    def memory(self) -> int:
        """Bytes of all that was received and not taken, and of the frame that is under way."""
        large = 0 if self._large is None else len(self._large)
        parts = self._nbytes + _FRAME_BYTES * len(self._frames) + len(self._pending)
        return self.held_bytes + parts + large

    # -- in --------------------------------------------------------------------------------------

    def space(self, scratch: bytearray) -> memoryview:
        """Return where to receive the next bytes: a frame's own buffer, or ``scratch``."""
        if self._large is not None:
            return self._large[self._filled :]
        pending = len(self._pending)
        if pending:
            scratch[:pending] = self._pending
        return memoryview(scratch)[pending:]

    def received(self, scratch: bytearray, count: int, most: int) -> None:
        """Parse ``count`` bytes that were received into `space`, up to ``most`` frames.

        Raises
        ------
        ProtocolError
            And nothing else, whatever the bytes are.
        """
        if self._large is not None:
            self._filled += count
            if self._filled == len(self._large):
                body, self._large = self._large, None
                self._frame(self._large_flags, body)
            return
        self._cut(scratch, len(self._pending) + count, most)

    def resume(self, scratch: bytearray, most: int) -> None:
        """Go on after ``most`` frames, if `cut_short`. Raises ProtocolError."""
        pending = len(self._pending)
        scratch[:pending] = self._pending
        self._cut(scratch, pending, most)

    def _cut(self, data: bytearray, end: int, most: int) -> None:
        at = 0
        self.cut_short = False
        if not self._greeted:
            at = self._greet(data, end)
            if not at:
                self._pending = data[:end]
                return
        while end - at >= 2:
            flags = data[at]
            if flags & LONG:
                begin = at + 9
                if begin > end:
                    break
                size = int.from_bytes(data[at + 1 : begin], "big")
            else:
                begin, size = at + 2, data[at + 1]
            stop = begin + size
            if stop > end:
                self._check_head(flags, size)
                if size >= _OWN_BUFFER_FROM:
                    self._begin_large(flags, size, data, begin, end)
                    at = end
                break
            if not most:
                self.cut_short = True
                break
            most -= 1
            if flags > MORE or size > _HANDSHAKE_BYTES:
                self._check_head(flags, size)
            self._frame(flags, data[begin:stop])
            at = stop
        self._pending = data[at:end] if at < end else b""

    def _greet(self, data: bytearray, end: int) -> int:
        """Return where the peer's greeting ends; 0: it is incomplete."""
        if not end:
            return 0
        if data[0] != 0xFF or (end >= 10 and not data[9] & 1):
            raise ProtocolError("what connected does not speak ZMTP")
        if end > 10 and data[10] < 3:
            raise ProtocolError(f"the peer speaks ZMTP {data[10]}, this server 3.0 and 3.1")
        if end < _GREETING:
            return 0
        mechanism = bytes(data[12:32]).rstrip(b"\0")
        if mechanism != self._mechanism.name:
            raise ProtocolError(
                f"the peer has mechanism {mechanism!r}, this server {self._mechanism.name!r}"
            )
        self._greeted = True
        reply = self._mechanism.begin()
        if reply:
            self.outgoing.append(reply)
        return _GREETING

    def _check_head(self, flags: int, size: int) -> None:
        """Check a frame's size before memory is allocated. Raises ProtocolError."""
        wire.check_flags(flags)
        most = self._frame_bytes if self._mechanism.ready else _HANDSHAKE_BYTES
        if flags & COMMAND and not self._mechanism.overhead:
            most = min(most, _HANDSHAKE_BYTES)
        if size > most or self._nbytes + size > self._message_bytes:
            raise ProtocolError(f"a frame of {size} bytes is announced, {most} are taken")

    def _begin_large(self, flags: int, size: int, data: bytearray, begin: int, end: int) -> None:
        try:
            self._large, self._large_flags = np.empty(size, np.uint8).data, flags
        except MemoryError:
            raise ProtocolError(f"there is no memory for a frame of {size} bytes") from None
        self._filled = end - begin
        self._large[: self._filled] = data[begin:end]

    def _frame(self, flags: int, body: Buffer) -> None:
        mechanism = self._mechanism
        if not mechanism.ready:
            self._handshake(flags, body)
            return
        if mechanism.overhead:
            flags, body = mechanism.open(flags, body)
        if flags & COMMAND:
            self._command(body)
            return
        self._frames.append(body)
        self._nbytes += len(body)
        if self._nbytes > self._message_bytes or len(self._frames) > self._message_frames:
            raise ProtocolError(
                f"a message of more than {self._message_frames} frames or {self._message_bytes} "
                "bytes"
            )
        if not flags & MORE:
            held = self._nbytes + _FRAME_BYTES * len(self._frames)
            self.messages.append((self._frames, held))
            self.held_bytes += held
            self._frames, self._nbytes = [], 0

    def _handshake(self, flags: int, body: Buffer) -> None:
        if not flags & COMMAND:
            raise ProtocolError("a message came before the handshake was over")
        if wire.name_of(body) == b"ERROR":
            raise ProtocolError("the peer refuses this server")
        reply = self._mechanism.step(body)
        if reply:
            self.outgoing.append(reply)

    def _command(self, body: Buffer) -> None:
        """Answer a PING; ignore fields of later versions."""
        name = wire.name_of(body)
        if name == b"PING":
            if len(body) < 7:
                raise ProtocolError("a PING has no time to live")
            pong = b"\4PONG" + bytes(body[7 : 7 + _MOST_CONTEXT])
            self.outgoing.append(b"".join(self._mechanism.seal(pong, len(pong), COMMAND)))
        elif name == b"ERROR":
            raise ProtocolError("the peer ends the connection")

    def forget(self) -> None:
        """Drop messages that were not taken; receive nothing more."""
        self.messages.clear()
        self.held_bytes = self._nbytes = 0
        self.cut_short, self._pending, self._large = False, b"", None
        self._frames = []

    # -- out -------------------------------------------------------------------------------------

    def encode(self, message: Sequence[Buffer]) -> tuple[list[Buffer], int]:
        """Return the buffers to send for a message, and their bytes.

        Large frames are not copied: leave them as they are until they were sent. The handshake is
        over.
        """
        seal, last = self._mechanism.seal, len(message) - 1
        parts: list[Buffer] = []
        small: list[Buffer] = []
        total = 0
        for i, frame in enumerate(message):
            nbytes = len(frame) if type(frame) is bytes else memoryview(frame).nbytes
            head, body = seal(frame, nbytes, MORE if i < last else 0)
            if body is not frame:
                nbytes = len(body)
            total += len(head) + nbytes
            small.append(head)
            if nbytes < _JOIN_BELOW:
                small.append(body)
            else:
                parts.append(b"".join(small))
                parts.append(body)
                small = []
        if small:
            parts.append(b"".join(small))
        return parts, total


class Null:
    """The server's side of a handshake, and of the frames after it: of a connection without keys.

    Attributes
    ----------
    name : bytes
        In the greeting.
    ready : bool
        Whether the handshake is over.
    user : str | None
        The user of the peer's key, from then on; ``None`` without keys.
    overhead : int
        Bytes that it adds to a frame.
    """

    name = b"NULL"
    overhead = 0

    def __init__(self) -> None:
        self.ready = False
        self.user: str | None = None

    def begin(self) -> bytes:
        """Return what to send after the greetings."""
        return frames.command(b"READY", frames.OWN_METADATA)

    def step(self, body: Buffer) -> bytes:
        """Return the answer to a handshake command; metadata is not read. Raises ProtocolError."""
        name = frames.name_of(body)
        if name != b"READY":
            raise ProtocolError(f"the handshake has {name[:20]!r} where READY is due")
        self.ready = True
        return b""

    def open(self, flags: int, body: Buffer) -> tuple[int, Buffer]:
        """Return the flags and body of a received frame. Raises ProtocolError."""
        return flags, body

    def seal(self, frame: Buffer, nbytes: int, flags: int) -> tuple[bytes, Buffer]:
        """Return a frame to send: its head, and its body on the wire."""
        return frames.head(nbytes, flags), frame
