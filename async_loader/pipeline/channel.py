"""Whole records, and descriptors, between a loader and one worker process. Knows no meaning.

One AF_UNIX SOCK_SEQPACKET pair per worker: a process killed in the middle of a send leaves no half record, and no
other process has a share in it. Records up to 64 KiB travel in the socket, larger payloads in a memfd beside it.
"""

from __future__ import annotations

import array
import contextlib
import os
import pickle
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from async_loader.shm.segment import Segment

_INLINE = 48 << 10  # bytes of payload that fit a record; the socket's buffer then holds at least two
_RECORD = 64 << 10
_MAX_FDS = 32
_HEADER = struct.Struct("<IIB")  # bytes of message, bytes of payload, whether the payload is in a memfd

Message = tuple[Any, ...]


@dataclass(slots=True)
class Record:
    """One received record. ``payload`` is empty, bytes, or an array on a mapped memfd."""

    message: Message
    payload: Any = b""
    fds: list[int] = field(default_factory=list)


class Channel:
    """One end.

    Parameters
    ----------
    sock : socket.socket
        Owned by the channel.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Channel(left), Channel(right)

    def fileno(self) -> int:
        return self._sock.fileno()

    def detach(self) -> int:
        return self._sock.detach()

    def set_blocking(self, blocking: bool) -> None:
        self._sock.setblocking(blocking)

    def send(self, message: Message, payload: bytes | Segment = b"", fds: Sequence[int] = ()) -> None:
        """Send one record.

        Raises
        ------
        OSError
            BrokenPipeError, ConnectionResetError when the other end is gone; BlockingIOError when it does not read.
        """
        head = pickle.dumps(message, protocol=5)
        if isinstance(payload, bytes) and len(payload) + len(head) > _INLINE:
            payload = _spill(payload)
        if isinstance(payload, Segment):
            parts = [_HEADER.pack(len(head), payload.nbytes, 1), head]
            fds = [payload.fileno(), *fds]
        else:
            parts = [_HEADER.pack(len(head), len(payload), 0), head, payload]
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._sock.sendmsg(parts, ancillary, socket.MSG_NOSIGNAL)

    def receive(self) -> Record | None:
        """The next record; ``None`` when the other end is closed.

        Raises
        ------
        BlockingIOError
            On a non-blocking channel with nothing to read.
        """
        data, ancillary, _, _ = self._sock.recvmsg(_RECORD, socket.CMSG_SPACE(_MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC)
        if not data:
            return None
        fds = array.array("i")
        for _level, _kind, raw in ancillary:
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
        message_bytes, payload_bytes, spilled = _HEADER.unpack_from(data)
        start = _HEADER.size + message_bytes
        message = pickle.loads(memoryview(data)[_HEADER.size : start])
        if spilled:
            # The mapping outlives the descriptor, which the segment closes when it is dropped here.
            return Record(message, Segment.attach(fds[0], payload_bytes).bytes(), list(fds[1:]))
        return Record(message, data[start : start + payload_bytes], list(fds))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.close()


def from_fd(fd: int) -> Channel:
    """The end that was inherited, or received, as a descriptor."""
    return Channel(socket.socket(fileno=fd))


def _spill(payload: bytes) -> Segment:
    segment = Segment.create(len(payload), "a payload for a worker")
    segment.bytes()[:] = memoryview(payload)
    return segment


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
