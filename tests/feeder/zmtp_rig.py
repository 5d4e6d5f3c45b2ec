"""A client's side of ZMTP in plain bytes, written without the package's own: what hostile and
synchronous peers send.
"""

from __future__ import annotations

import struct
from collections import deque

MORE, LONG, COMMAND = 1, 2, 4


def greeting(mechanism: bytes = b"NULL", major: int = 3, minor: int = 1) -> bytes:
    return (
        b"\xff"
        + bytes(8)
        + b"\x7f"
        + bytes([major, minor])
        + mechanism.ljust(20, b"\0")
        + bytes(32)
    )


def frame(body: bytes, flags: int = 0) -> bytes:
    size = len(body)
    return (
        bytes([flags, size]) if size < 256 else bytes([flags | LONG]) + struct.pack(">Q", size)
    ) + bytes(body)


def ready(kind: bytes = b"DEALER", identity: bytes = b"") -> bytes:
    body = b"\5READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    return frame(body + b"\x08Identity" + struct.pack(">I", len(identity)) + identity, COMMAND)


def opening(identity: bytes = b"", minor: int = 1) -> bytes:
    """All that a client of the NULL mechanism says before its first message; it need not wait
    for answers.
    """
    return greeting(minor=minor) + ready(identity=identity)


def framed(message) -> bytes:
    """A message."""
    last = len(message) - 1
    return b"".join(
        frame(bytes(memoryview(one).cast("B")), MORE if i < last else 0)
        for i, one in enumerate(message)
    )


def ping(context: bytes = b"", ttl: int = 0) -> bytes:
    return frame(b"\4PING" + struct.pack(">H", ttl) + context, COMMAND)


class Splitter:
    """What a server sends, cut into messages and commands; its greeting first."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.greeting = b""
        self.messages: deque[list[bytes]] = deque()
        self.commands: list[bytes] = []
        self._frames: list[bytes] = []

    @property
    def halfway(self) -> bool:
        """Whether a message has come in part."""
        return bool(self.data or self._frames)

    def feed(self, data: bytes) -> None:
        self.data += data
        if not self.greeting and len(self.data) >= 64:
            self.greeting = bytes(self.data[:64])
            del self.data[:64]
        while self.greeting and self._one():
            continue

    def _one(self) -> bool:
        data = self.data
        if len(data) < 2 or (data[0] & LONG and len(data) < 9):
            return False
        flags = data[0]
        begin, size = (9, struct.unpack(">Q", data[1:9])[0]) if flags & LONG else (2, data[1])
        if len(data) < begin + size:
            return False
        body = bytes(data[begin : begin + size])
        del data[: begin + size]
        if flags & COMMAND:
            self.commands.append(body)
        else:
            self._frames.append(body)
            if not flags & MORE:
                self.messages.append(self._frames)
                self._frames = []
        return True


def fed(connection, data: bytes, cuts=(), most: int = 1000) -> list[list[bytes]]:
    """The messages that come of bytes, received in pieces that end at ``cuts``; as the loop of a
    server would.
    """
    scratch = bytearray(64 << 10)
    found: list[list[bytes]] = []

    def take() -> None:
        while connection.messages:
            frames, nbytes = connection.messages.popleft()
            connection.held_bytes -= nbytes
            found.append([bytes(one) for one in frames])

    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        at = begin
        while at < end:
            space = connection.space(scratch)
            count = min(len(space), end - at)
            assert count, "there is always space"
            space[:count] = data[at : at + count]
            at += count
            connection.received(scratch, count, most)
            take()
            while connection.cut_short:
                connection.resume(scratch, most)
                take()
    return found
