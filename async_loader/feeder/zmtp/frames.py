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
_PEERS = (b"DEALER", b"REQ", b"ROUTER")
"""Socket types that a ROUTER talks to (RFC 28)."""
_PROPERTIES = 64


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


def metadata(**properties: bytes) -> bytes:
    """Return metadata of properties by name; ``_`` stands for a hyphen."""
    found = b""
    for key, value in properties.items():
        name = key.replace("_", "-").encode()
        found += bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value
    return found


def properties(data: Buffer) -> dict[bytes, bytes]:
    """Parse metadata; names become lower case. Raises ProtocolError."""
    found: dict[bytes, bytes] = {}
    at, end = 0, len(data)
    while at < end:
        name_end = at + 1 + data[at]
        value_begin = name_end + 4
        if name_end == at + 1 or value_begin > end or len(found) >= _PROPERTIES:
            raise ProtocolError("metadata cannot be read")
        value_end = value_begin + int.from_bytes(data[name_end:value_begin], "big")
        if value_end > end:
            raise ProtocolError("metadata ends within a property")
        found[bytes(data[at + 1 : name_end]).lower()] = bytes(data[value_begin:value_end])
        at = value_end
    return found


def check_metadata(data: Buffer) -> None:
    """Check that the peer is a socket for a ROUTER; its Identity is ignored.

    Raises ProtocolError.
    """
    kind = properties(data).get(b"socket-type")
    if kind not in _PEERS:
        raise ProtocolError(f"the peer's socket is a {kind!r}, this end is a ROUTER")


OWN_METADATA = metadata(Socket_Type=b"ROUTER", Identity=b"")
