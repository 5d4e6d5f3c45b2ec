"""A client as in another language: from docs/wire.md, with a TCP socket and ``struct``. Knows no
ZeroMQ library.
"""

from __future__ import annotations

import socket
import struct

HELLO, WELCOME, OPEN_WRITER, WRITER, OPEN_READER, READER, ERROR = 1, 2, 3, 4, 6, 7, 18
INSERT, ACK, PULL, BATCH = 32, 33, 48, 49


# -- msgpack, as much as it takes ------------------------------------------------------------------


def pack(value) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return bytes([value]) if 0 <= value < 128 else b"\xcf" + struct.pack(">Q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return b"\xc4" + bytes([len(value)]) + value
    if isinstance(value, str):
        return b"\xda" + struct.pack(">H", len(value.encode())) + value.encode()
    if isinstance(value, list):
        return b"\xdc" + struct.pack(">H", len(value)) + b"".join(map(pack, value))
    return (
        b"\xde"
        + struct.pack(">H", len(value))
        + b"".join(pack(key) + pack(item) for key, item in value.items())
    )


def unpack(data: bytes):
    value, rest = _unpack(data)
    assert not rest
    return value


def _unpack(data: bytes):
    op, rest = data[0], data[1:]
    if op < 0x80 or op >= 0xE0:
        return (op if op < 0x80 else op - 256), rest
    if op < 0x90 or op in (0xDE, 0xDF):
        count, rest = (op & 15, rest) if op < 0x90 else _size(rest, 2 if op == 0xDE else 4)
        found = {}
        for _ in range(count):
            key, rest = _unpack(rest)
            found[key], rest = _unpack(rest)
        return found, rest
    if op < 0xA0 or op in (0xDC, 0xDD):
        count, rest = (op & 15, rest) if op < 0xA0 else _size(rest, 2 if op == 0xDC else 4)
        items = []
        for _ in range(count):
            item, rest = _unpack(rest)
            items.append(item)
        return items, rest
    if op < 0xC0 or 0xD9 <= op <= 0xDB:
        size, rest = (op & 31, rest) if op < 0xC0 else _size(rest, 1 << op - 0xD9)
        return rest[:size].decode(), rest[size:]
    if 0xC4 <= op <= 0xC6:
        size, rest = _size(rest, 1 << op - 0xC4)
        return rest[:size], rest[size:]
    if op in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[op], rest
    form = {
        0xCA: ">f",
        0xCB: ">d",
        0xCC: ">B",
        0xCD: ">H",
        0xCE: ">I",
        0xCF: ">Q",
        0xD0: ">b",
        0xD1: ">h",
        0xD2: ">i",
        0xD3: ">q",
    }[op]
    size = struct.calcsize(form)
    return struct.unpack(form, rest[:size])[0], rest[size:]


def _size(data: bytes, width: int):
    return int.from_bytes(data[:width], "big"), data[width:]


# -- the wire --------------------------------------------------------------------------------------


class Answer:
    def __init__(self, frames: list[bytes]) -> None:
        head = frames[0]
        assert len(head) == 36
        magic, self.version, self.type, flags = struct.unpack_from("<4s3B", head)
        assert magic == b"ALDR"
        assert not flags
        self.session, self.sequence, self.number, self.schema, self.rows = struct.unpack_from(
            "<QQIII", head, 8
        )
        self.frames = frames[1:]


class Client:
    """A DEALER without encryption, by hand: ZMTP 3.0 with the mechanism NULL."""

    def __init__(self, host: str, port: int, patience_s: float) -> None:
        self.socket = socket.create_connection((host, port), patience_s)
        self.socket.sendall(
            b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
        )
        greeting = self._exactly(64)
        assert greeting[10] >= 3
        assert greeting[12:32].rstrip(b"\0") == b"NULL"
        ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
        self.socket.sendall(b"\x04" + bytes([len(ready)]) + ready)
        flags, body = self._frame()
        assert flags & 4
        assert body.startswith(b"\x05READY")

    def close(self) -> None:
        self.socket.close()

    def send(
        self,
        kind: int,
        frames: list[bytes],
        *,
        session=0,
        sequence=0,
        number=0,
        schema=0,
        rows=0,
        version=1,
    ) -> None:
        places = (session, sequence, number, schema, rows)
        head = struct.pack("<4s4BQQIII", b"ALDR", version, kind, 0, 0, *places)
        frames = [head, *frames]
        for i, frame in enumerate(frames):
            more = int(i + 1 < len(frames))
            size = (
                bytes([more, len(frame)])
                if len(frame) < 256
                else bytes([more | 2]) + struct.pack(">Q", len(frame))
            )
            self.socket.sendall(size + frame)

    def receive(self) -> Answer:
        frames = []
        while True:
            flags, body = self._frame()
            if not flags & 4:  # a command, such as ZMTP's own PING, is not for us
                frames.append(body)
                if not flags & 1:
                    return Answer(frames)

    def _frame(self) -> tuple[int, bytes]:
        flags = self._exactly(1)[0]
        size = struct.unpack(">Q", self._exactly(8))[0] if flags & 2 else self._exactly(1)[0]
        return flags, self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            assert part, "the server hung up"
            data += part
        return data
