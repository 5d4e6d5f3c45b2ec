"""Offers of memory over a unix socket: one record with one descriptor, and one record back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
from dataclasses import dataclass
from enum import IntEnum

from async_loader.errors import Broken, Malformed, Timeout, Unsupported
from async_loader.lifecycle import Deadline

_RECORD = struct.Struct("<4sIQIIQ")
_MAGIC = b"ALM1"
TEXT_BYTES = 512
_MOST_SLOTS, _MOST_BYTES = 4096, 1 << 40
ANSWER_S = 10.0
"""How long a client waits for the answer to an offer: a server gives it within milliseconds, unless
it is stopped or out of file descriptors.
"""
SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)


class Owner(IntEnum):
    """What memory is offered for. A server that knows readers alone looks for a reader, whatever
    the owner is, and refuses.
    """

    READER = 0
    WRITER = 1


@dataclass(frozen=True, slots=True)
class Offer:
    """Memory for the batches of a reader, or the rows of a writer: ``slots`` of ``slot_bytes``
    each, one after the other.
    """

    session: int
    number: int
    slots: int
    slot_bytes: int
    owner: Owner = Owner.READER

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_bytes

    def pack(self) -> bytes:
        return _RECORD.pack(
            _MAGIC, self.number, self.session, self.slots, self.owner, self.slot_bytes
        )

    @classmethod
    def unpack(cls, record: bytes) -> Offer:
        """Decode an offer. Raises Malformed if it is not one."""
        if len(record) != _RECORD.size:
            raise Malformed(f"an offer of memory has {_RECORD.size} bytes, {len(record)} came")
        magic, number, session, slots, owner, slot_bytes = _RECORD.unpack(record)
        if magic != _MAGIC:
            raise Malformed(f"an offer of memory begins with {_MAGIC!r}, not with {magic!r}")
        if not 1 <= slots <= _MOST_SLOTS or not 1 <= slot_bytes <= _MOST_BYTES or slot_bytes % 4096:
            raise Malformed(
                f"{slots} slots of {slot_bytes} bytes: 1 to {_MOST_SLOTS} slots of whole pages are "
                "taken"
            )
        if owner not in (Owner.READER, Owner.WRITER):
            raise Malformed(f"memory is offered for a reader (0) or a writer (1), not for {owner}")
        return cls(session, number, slots, slot_bytes, Owner(owner))

    def check(self, fd: int) -> None:
        """Raise Malformed unless the descriptor is sealed memory of that size."""
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size != self.nbytes:
            raise Malformed(
                f"the memory offered has {found.st_size} bytes, {self.nbytes} were announced"
            )
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except (OSError, AttributeError):
            raise Malformed("the memory offered cannot be sealed: offer a memfd") from None
        if seals & SEALS != SEALS:
            raise Malformed(
                "the memory offered is not sealed against being cut short: seal it before it is "
                "sent"
            )


class Offering:
    """An offer that was sent. It is answered when its descriptor is readable.

    Parameters
    ----------
    path : str
        Where the server listens.
    offer : Offer
    fd : int
        Of the memory.
    patience_s : float
        How long to wait for a busy server.
    limit : Deadline, optional
        By when it has to be answered.

    Raises
    ------
    Unsupported
        If no server listens there: it is on another host, or in another container.
    Broken
        If the server is gone, or too busy.
    """

    def __init__(
        self,
        path: str,
        offer: Offer,
        fd: int,
        patience_s: float = 0.0,
        limit: Deadline | None = None,
    ) -> None:
        self._path, self._nbytes, self._limit = path, offer.nbytes, limit or Deadline(None)
        self._channel = connected(path, patience_s)
        try:
            socket.send_fds(self._channel, [offer.pack()], [fd])
        except BaseException as error:
            self._channel.close()
            if not isinstance(error, OSError):
                raise
            raise Broken(
                f"the server went away while memory was offered: {error.strerror}"
            ) from None

    def fileno(self) -> int:
        """Return what to poll for reading; -1 when it is closed."""
        return self._channel.fileno()

    def taken(self) -> bool:
        """Return whether the memory was taken; False: there is no answer yet.

        Raises
        ------
        Malformed
            If the server refuses, with its reason.
        Broken
            If the server is gone.
        Timeout
            If the limit has passed.
        """
        try:
            answer = self._channel.recv(TEXT_BYTES)
        except BlockingIOError:
            if self._limit.expired:
                raise Timeout(
                    f"the feeder has not answered in time to an offer of {self._nbytes} bytes of "
                    f"memory at {self._path}: it is stopped, or out of file descriptors"
                ) from None
            return False
        except OSError as error:
            raise Broken(
                f"the server went away while memory was offered: {error.strerror}"
            ) from None
        if not answer:
            raise Broken("the server went away while memory was offered")
        if answer != b"\0":
            raise Malformed(answer[1:].decode("utf-8", "replace"))
        return True

    def answer_at(self, now: float) -> float | None:
        """Return when the answer has to be there; ``None`` without a limit."""
        left = self._limit.left()
        return None if left is None else now + left

    def close(self) -> None:
        """Close the connection. May be called again."""
        self._channel.close()


def connected(path: str, patience_s: float) -> socket.socket:
    """Return a socket that is connected to a server's memory socket; it never blocks.

    Raises
    ------
    Unsupported
        If no server listens there: it is on another host, or in another container.
    Broken
        If the server is gone, or too busy for ``patience_s``.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # the kernel's own limit: Python's does not wait for room among the callers
        channel.setblocking(patience_s > 0)
        whole = int(patience_s)
        limit = struct.pack("@ll", whole, max(1, int((patience_s - whole) * 1e6)))  # 0: for ever
        try:
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            channel.connect(path)
            channel.setblocking(False)
        except BlockingIOError:
            raise Broken(f"the server's memory socket {path} is busy") from None
        except ConnectionRefusedError:  # a killed server left the file, and another may follow
            raise Broken(f"the server at the memory socket {path} is gone") from None
        except OSError as error:
            raise Unsupported(
                f"the server's memory socket {path} cannot be reached from here: {error.strerror}"
            ) from None
        return channel
    except BaseException:
        channel.close()
        raise


def answered(reason: str | None) -> bytes:
    """The record that a server sends back: whether it took the memory, or why not."""
    return b"\0" if reason is None else b"\1" + reason.encode()[: TEXT_BYTES - 1]


def peer_uid(channel: socket.socket) -> int | None:
    """The user at the other end; ``None`` where that cannot be known."""
    with contextlib.suppress(OSError, AttributeError):
        return int(
            struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        )
    return None
