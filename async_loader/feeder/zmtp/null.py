"""The NULL mechanism: each side sends READY, and frames are sent as they are."""

from __future__ import annotations

from async_loader.feeder.zmtp import frames
from async_loader.feeder.zmtp.errors import ProtocolError
from async_loader.feeder.zmtp.frames import Buffer


class Null:
    """See `Mechanism`."""

    name = b"NULL"
    overhead = 0

    def __init__(self) -> None:
        self.ready = False
        self.user: str | None = None

    def begin(self) -> bytes:
        return frames.command(b"READY", frames.OWN_METADATA)

    def step(self, body: Buffer) -> bytes:
        name = frames.name_of(body)
        if name != b"READY":
            raise ProtocolError(f"the handshake has {name[:20]!r} where READY is due")
        frames.check_metadata(memoryview(body)[1 + len(name) :])
        self.ready = True
        return b""

    def open(self, flags: int, body: Buffer) -> tuple[int, Buffer]:
        return flags, body

    def seal(self, frame: Buffer, nbytes: int, flags: int) -> tuple[bytes, Buffer]:
        return frames.head(nbytes, flags), frame
