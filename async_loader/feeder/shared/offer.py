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
from async_loader.lifecycle import readable

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


class Offering:
    """An offer under way. It is answered when its descriptor is readable.

    Parameters
    ----------
    path : str
        Where the server listens.
    offer : Offer
    fd : int
        Of the memory.
    patience_s : float
        How long others may come first; nothing else waits.

    Raises
    ------
    Unsupported
        If nobody listens there: the server is of another host, or another container.
    Broken
        If it is gone, or too many others come first.
    """

    def __init__(self, path: str, offer: Offer, fd: int, patience_s: float = 0.0) -> None:
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(patience_s > 0)  # the kernel's own limit: Python's does not wait for room among the callers
        whole = int(patience_s)
        limit = struct.pack("@ll", whole, int((patience_s - whole) * 1e6))
        try:
            try:
                self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
                self._channel.connect(path)
                self._channel.setblocking(False)
            except BlockingIOError:
                raise Broken(f"the server's memory socket {path} is busy") from None
            except ConnectionRefusedError:  # a file that a server left: it was killed, and another may follow
                raise Broken(f"the server at the memory socket {path} is gone") from None
            except OSError as error:
                text = f"the server's memory socket {path} cannot be reached from here: {error.strerror}"
                raise Unsupported(text) from None
            try:
                socket.send_fds(self._channel, [offer.pack()], [fd])
            except OSError as error:
                raise Broken(f"the server went away while memory was offered: {error.strerror}") from None
        except BaseException:
            self._channel.close()
            raise

    def fileno(self) -> int:
        """What to poll for reading; -1 when it is over."""
        return self._channel.fileno()

    def taken(self) -> bool:
        """Whether the memory was taken; False: nobody has said anything yet.

        Raises
        ------
        Malformed
            With the server's reason, if it refuses.
        Broken
            If it is gone.
        """
        try:
            answer = self._channel.recv(_TEXT_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Broken(f"the server went away while memory was offered: {error.strerror}") from None
        if not answer:
            raise Broken("the server went away while memory was offered")
        if answer != b"\0":
            raise Malformed(answer[1:].decode("utf-8", "replace"))
        return True

    def close(self) -> None:
        """Nothing more is expected. Twice does no harm."""
        self._channel.close()


def offer_to(path: str, offer: Offer, fd: int, timeout_s: float) -> None:
    """Offer memory to the server that listens at ``path``, and wait for the answer.

    Raises
    ------
    Unsupported, Malformed, Broken
        As `Offering`.
    Timeout
        If it says nothing in time.
    """
    with contextlib.closing(Offering(path, offer, fd, timeout_s)) as offering:
        readable([offering.fileno()], timeout_s)
        if not offering.taken():
            raise Timeout(f"the server said nothing for {timeout_s:g} s to an offer of {offer.nbytes} bytes of memory")


def answered(reason: str | None) -> bytes:
    """The record that a server sends back: whether it took the memory, or why not."""
    return b"\0" if reason is None else b"\1" + reason.encode()[: _TEXT_BYTES - 1]


def peer_uid(channel: socket.socket) -> int | None:
    """The user at the other end; ``None`` where that cannot be known."""
    with contextlib.suppress(OSError, AttributeError):
        return int(struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])
    return None
