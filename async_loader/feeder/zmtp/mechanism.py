"""What a security mechanism does for a connection."""

from __future__ import annotations

from typing import Protocol

from async_loader.feeder.zmtp.frames import Buffer


class Mechanism(Protocol):
    """The server's side of a handshake, and what it does to each frame afterwards. Of one connection.

    Attributes
    ----------
    name : bytes
        As the greeting has it.
    ready : bool
        Whether the handshake is over.
    user : str | None
        The owner of the peer's key, from then on; ``None`` where there are no keys.
    overhead : int
        Bytes that it adds to a frame.
    """

    name: bytes
    ready: bool
    user: str | None
    overhead: int

    def begin(self) -> bytes:
        """What to send when the greetings agree."""

    def step(self, body: Buffer) -> bytes:
        """What to answer to a handshake command. Raises ProtocolError."""

    def open(self, flags: int, body: Buffer) -> tuple[int, Buffer]:
        """The flags and body of a received frame. Raises ProtocolError."""

    def seal(self, frame: Buffer, nbytes: int, flags: int) -> tuple[bytes, Buffer]:
        """A frame to send: its head, and its body on the wire."""
