"""How memory is offered over a unix socket: one record with one descriptor, one record back. Maps nothing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
from dataclasses import dataclass

from async_loader.errors import Broken, Malformed, Timeout, Unsupported

_RECORD = struct.Struct("<4sIQIIQ")
_MAGIC = b"ALM1"
_TEXT_BYTES = 512
_MOST_SLOTS, _MOST_BYTES = 4096, 1 << 40
SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)


@dataclass(frozen=True, slots=True)
class Offer:
    """Memory for the batches of a reader: ``slots`` of ``slot_bytes`` each, one behind the other."""

    session: int
    number: int
    slots: int
    slot_bytes: int

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_bytes

    def pack(self) -> bytes:
        return _RECORD.pack(_MAGIC, self.number, self.session, self.slots, 0, self.slot_bytes)

    @classmethod
    def unpack(cls, record: bytes) -> Offer:
        """Raises Malformed for what is none."""
        if len(record) != _RECORD.size:
            raise Malformed(f"an offer of memory has {_RECORD.size} bytes, {len(record)} came")
        magic, number, session, slots, _, slot_bytes = _RECORD.unpack(record)
        if magic != _MAGIC:
            raise Malformed(f"an offer of memory begins with {_MAGIC!r}, not with {magic!r}")
        if not 1 <= slots <= _MOST_SLOTS or not 1 <= slot_bytes <= _MOST_BYTES or slot_bytes % 4096:
            raise Malformed(f"{slots} slots of {slot_bytes} bytes: 1 to {_MOST_SLOTS} slots of whole pages are taken")
        return cls(session, number, slots, slot_bytes)

    def check(self, fd: int) -> None:
        """Raises Malformed unless the descriptor is memory of that size, and stays so."""
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size != self.nbytes:
            raise Malformed(f"the memory offered has {found.st_size} bytes, {self.nbytes} were announced")
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except (OSError, AttributeError):
            raise Malformed("what was offered is no memory that can be sealed: offer a memfd") from None
        if seals & SEALS != SEALS:
            raise Malformed("the memory offered is not sealed against being cut short: seal it before it is sent")


def offer_to(path: str, offer: Offer, fd: int, timeout_s: float) -> None:
    """Offer memory to the server that listens at ``path``.

    Raises
    ------
    Unsupported
        If nobody listens there: the server is of another host, or another container.
    Malformed
        With the server's reason, if it refuses.
    Timeout, Broken
        If it says nothing in time; if it is gone.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.settimeout(timeout_s)
        try:
            channel.connect(path)
        except OSError as error:
            raise Unsupported(f"the server's memory socket {path} cannot be reached from here: {error.strerror}") from None
        try:
            socket.send_fds(channel, [offer.pack()], [fd])
            answer = channel.recv(_TEXT_BYTES)
        except TimeoutError:
            raise Timeout(f"the server said nothing for {timeout_s:g} s to an offer of {offer.nbytes} bytes of memory") from None
        except OSError as error:
            raise Broken(f"the server went away while memory was offered: {error.strerror}") from None
    if not answer:
        raise Broken("the server went away while memory was offered")
    if answer != b"\0":
        raise Malformed(answer[1:].decode("utf-8", "replace"))


def answered(reason: str | None) -> bytes:
    """The record that a server sends back: whether it took the memory, or why not."""
    return b"\0" if reason is None else b"\1" + reason.encode()[: _TEXT_BYTES - 1]


def peer_uid(channel: socket.socket) -> int | None:
    """The user at the other end; ``None`` where that cannot be known."""
    with contextlib.suppress(OSError, AttributeError):
        return int(struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])
    return None
