"""Memory over a unix socket: one record with descriptors, and one record back.

A client offers memory for batches or rows; or asks for weights in memory of the server, which all
clients of the host map.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from async_loader.errors import Broken, Malformed, Timeout, Unsupported
from async_loader.lifecycle import Deadline, readable

_RECORD = struct.Struct("<4sIQIIQ")
_MAGIC = b"ALM1"
MAGIC = b"ALW1"
_WANTED = struct.Struct("<4sQQ16s")
_NAME_BYTES = 1024
SHARED_FROM = 1 << 20
"""Bytes of weights from which on they are shared: fewer are sent sooner than mapped."""
TEXT_BYTES = 512
_MOST_SLOTS, _MOST_BYTES = 4096, 1 << 40
ANSWER_S = 1.0
"""How long a client waits for the answer to an offer: a server gives it within milliseconds, unless
it is stopped or out of file descriptors.
"""
SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)


class Owner(IntEnum):
    """What memory is offered for."""

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

    def send(self, path: str, fd: int) -> None:
        """Offer the memory ``fd`` to the server that listens at ``path``. Raises as `request`."""
        request(path, self.pack(), [fd], ANSWER_S)

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


def request(path: str, record: bytes, fds: Sequence[int], timeout_s: float) -> list[int]:
    """Send a record to a server's memory socket; return the descriptors of its answer.

    Raises
    ------
    Unsupported
        No server listens there: it is on another host, or in another container.
    Malformed
        The server refuses, with its reason.
    Broken
        It is gone, or too busy.
    Timeout
        It does not answer in time.
    """
    limit = Deadline(timeout_s)
    with connected(path, timeout_s) as channel:
        try:
            socket.send_fds(channel, [record], fds)
            heard = readable([channel.fileno()], limit.left())
            answer, given = socket.recv_fds(channel, TEXT_BYTES, 8)[:2] if heard else (b"", [])
        except OSError as error:
            raise Broken(f"the server went away while memory was shared: {error}") from None
    if not heard:
        raise Timeout(
            f"the feeder has not answered at its memory socket {path} for {timeout_s:g} s: it is "
            "stopped, or out of file descriptors"
        )
    if answer == b"\0":
        return given
    for fd in given:
        os.close(fd)
    if not answer:
        raise Broken("the server went away while memory was shared")
    raise Malformed(answer[1:].decode("utf-8", "replace"))


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


@dataclass(frozen=True, slots=True)
class WeightsRequest:
    """A version of weights that a session wants to map."""

    session: int
    name: str
    version: int
    run: bytes

    def pack(self) -> bytes:
        return _WANTED.pack(MAGIC, self.session, self.version, self.run) + self.name.encode()

    @classmethod
    def unpack(cls, record: bytes) -> WeightsRequest:
        """Decode a request. Raises Malformed if it is not one."""
        name = record[_WANTED.size :]
        if not 1 <= len(name) <= _NAME_BYTES:
            raise Malformed(f"a request for weights has {len(record)} bytes: it ends with the name")
        magic, session, version, run = _WANTED.unpack(record[: _WANTED.size])
        if magic != MAGIC:
            raise Malformed(f"a request for weights begins with {MAGIC!r}, not with {magic!r}")
        try:
            return cls(session, name.decode(), version, run)
        except UnicodeDecodeError:
            raise Malformed("the name of weights is no UTF-8") from None


def map_weights(path: str, wanted: WeightsRequest, nbytes: int, timeout_s: float) -> mmap.mmap:
    """Map a server's weights privately: pages that are not written to are shared by all clients.

    Raises as `request`. The server never changes a version that is whole.
    """
    fds = request(path, wanted.pack(), [], timeout_s)
    try:
        if len(fds) != 1 or (found := os.fstat(fds[0]).st_size) != nbytes:
            text = f"{len(fds)} descriptors" if len(fds) != 1 else f"{found} bytes"
            raise Broken(f"weights in shared memory came as {text}, they have {nbytes} bytes")
        return mmap.mmap(
            fds[0], nbytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
    finally:
        for fd in fds:
            os.close(fd)


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
