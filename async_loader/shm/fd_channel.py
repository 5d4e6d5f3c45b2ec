"""A channel of whole records and descriptors between a loader and one worker process.

One AF_UNIX SOCK_SEQPACKET pair per worker: a process killed in the middle of a send leaves no half
record, and no other process has a share in it. Records up to 64 KiB travel in the socket, larger
payloads in a memfd beside it.
"""

from __future__ import annotations

import array
import contextlib
import pickle
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from async_loader.errors import CannotSend
from async_loader.shm.segment import Segment, close_all

# bytes of message and payload that fit a record; the socket's buffer then holds at least two
_INLINE = 48 << 10
_RECORD = 64 << 10
_MAX_FDS = 250  # the kernel takes 253
# bytes of the message here, and of the memfds that have the message or the payload, 0 for none
_HEADER = struct.Struct("<QQQ")

Message = tuple[Any, ...]


@dataclass(slots=True)
class Record:
    """One received record. ``payload`` is empty, bytes, or an array on a mapped memfd; ``fds``
    belong to who receives it.
    """

    message: Message
    payload: Any = b""
    fds: list[int] = field(default_factory=list)


class FdChannel:
    """One end of the channel.

    Parameters
    ----------
    sock : socket.socket
        Owned by the channel.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @staticmethod
    def pair() -> tuple[FdChannel, FdChannel]:
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return FdChannel(left), FdChannel(right)

    def fileno(self) -> int:
        return self._sock.fileno()

    def detach(self) -> int:
        return self._sock.detach()

    def set_blocking(self, blocking: bool) -> None:
        self._sock.setblocking(blocking)

    def send(
        self, message: Message, payload: bytes | Segment = b"", fds: Sequence[int] = ()
    ) -> None:
        """Send one record.

        Raises
        ------
        OSError
            BrokenPipeError, ConnectionResetError if the other end is closed; BlockingIOError if its
            buffer is full.
        """
        head, beside, sizes = pickle.dumps(message, protocol=5), [], [0, 0]
        if len(head) > _INLINE:  # a layout of thousands of arrays
            beside.append(_spill(head))
            head, sizes[0] = b"", len(head)
        if isinstance(payload, bytes) and payload and len(payload) + len(head) > _INLINE:
            payload = _spill(payload)
        if isinstance(payload, Segment):
            beside.append(payload)
            sizes[1] = payload.nbytes
        if len(fds) + len(beside) > _MAX_FDS:
            raise CannotSend(
                f"it holds {len(fds)} shared segments, {_MAX_FDS} can be sent at once: put them "
                "into one"
            )
        descriptors = array.array("i", [*(segment.fileno() for segment in beside), *fds])
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if descriptors else []
        inline = b"" if isinstance(payload, Segment) else payload
        header = _HEADER.pack(len(head), *sizes)
        self._sock.sendmsg([header, head, inline], ancillary, socket.MSG_NOSIGNAL)

    def receive(self) -> Record | None:
        """Return the next record; ``None`` if the other end is closed.

        Raises
        ------
        BlockingIOError
            On a non-blocking channel without a record.
        """
        data, ancillary, _, _ = self._sock.recvmsg(
            _RECORD, socket.CMSG_SPACE(_MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            return None
        fds = array.array("i")
        for _level, _kind, raw in ancillary:
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
        message_bytes, spilled_bytes, segment_bytes = _HEADER.unpack_from(data)
        start = _HEADER.size + message_bytes
        try:
            # The mapping outlives the descriptor, which the segment closes when it is dropped.
            packed: Any = memoryview(data)[_HEADER.size : start]
            if spilled_bytes:
                packed = Segment.attach(fds.pop(0), spilled_bytes).bytes()
            message = pickle.loads(packed)
            payload: Any = data[start:]
            if segment_bytes:
                payload = Segment.attach(fds.pop(0), segment_bytes).bytes()
        except BaseException:
            close_all(fds)
            raise
        return Record(message, payload, list(fds))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.close()


def from_fd(fd: int) -> FdChannel:
    """Return the end for an inherited or received descriptor."""
    return FdChannel(socket.socket(fileno=fd))


def _spill(payload: bytes) -> Segment:
    segment = Segment.create(len(payload), "a payload for a worker")
    segment.bytes()[:] = memoryview(payload)
    return segment
