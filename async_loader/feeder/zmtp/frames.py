"""Frames, commands and metadata as bytes. Holds no state."""

from __future__ import annotations

from typing import Any


class ProtocolError(Exception):
    """The connection cannot go on.

    Attributes
    ----------
    answer : bytes
        Sent to the peer before the connection ends; may be empty.
    """

    def __init__(self, text: str, answer: bytes = b"") -> None:
        super().__init__(text)
        self.answer = answer


Buffer = Any
"""bytes, bytearray, memoryview or a numpy array of one dimension: no common name before 3.12."""
MORE, LONG, COMMAND = 1, 2, 4
_FLAGS = MORE | LONG | COMMAND
_SHORT = {flags: [bytes((flags, size)) for size in range(256)] for flags in (0, MORE, COMMAND)}


def head(size: int, flags: int = 0) -> bytes:
    """Return the head of a frame."""
    if size < 256:
        return _SHORT[flags][size]
    return bytes((flags | LONG,)) + size.to_bytes(8, "big")


def check_flags(flags: int) -> None:
    """Raise ProtocolError for wrong flags."""
    if flags & ~_FLAGS or (flags & MORE and flags & COMMAND):
        raise ProtocolError(f"a frame begins with flags {flags:#04x}")


def command(name: bytes, data: bytes = b"") -> bytes:
    """Return a command as a frame."""
    body = bytes((len(name),)) + name + data
    return head(len(body), COMMAND) + body


def name_of(body: Buffer) -> bytes:
    """Return the name at the begin of a command's body. Raises ProtocolError."""
    size = body[0] if len(body) else 0
    if not size or len(body) <= size:
        raise ProtocolError("a command has no name")
    return bytes(body[1 : 1 + size])


def error(reason: bytes) -> bytes:
    """Return an ERROR command; libzmq understands a status code of ZAP, as 400, as the reason."""
    return command(b"ERROR", bytes((len(reason),)) + reason)


OWN_METADATA = b"\x0bSocket-Type\0\0\0\6ROUTER\x08Identity\0\0\0\0"
