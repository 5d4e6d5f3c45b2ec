"""What a security mechanism does for a connection."""

from __future__ import annotations

from typing import Protocol

from async_loader.feeder.zmtp.frames import Buffer


class Mechanism(Protocol):
    """The server's side of a handshake, and of the frames after it. Of one connection.

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

    name: bytes
    ready: bool
    user: str | None
    overhead: int

    def begin(self) -> bytes:
        """Return what to send after the greetings."""

    def step(self, body: Buffer) -> bytes:
        """Return the answer to a handshake command. Raises ProtocolError."""

    def open(self, flags: int, body: Buffer) -> tuple[int, Buffer]:
        """Return the flags and body of a received frame. Raises ProtocolError."""

    def seal(self, frame: Buffer, nbytes: int, flags: int) -> tuple[bytes, Buffer]:
        """Return a frame to send: its head, and its body on the wire."""
