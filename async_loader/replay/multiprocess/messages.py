"""Messages between a writer and the table's process: records of a SOCK_SEQPACKET socket.

Frequent messages are three numbers. Names of streams are pickled: both ends belong to one user and
one program.
"""

from __future__ import annotations

import array
import contextlib
import os
import pickle
import socket
import struct
from enum import IntEnum
from typing import Any, NamedTuple

_HEAD = struct.Struct("<qqq")
_RECORD = 64 << 10
NAMES_BYTES = 32 << 10
"""Most bytes of pickled names in one record."""


class MessageType(IntEnum):
    """Kinds of messages. The first group is sent by the writer, the second
    by the table's process.
    """

    HELLO = 1  # pid; with a pidfd of the writer's process
    MORE = 2  # another extent, before the last one is used up
    NEED = 3  # rows that are needed now, rows that are welcome, steps; see WriterPeer.need
    NAMES = 4  # token; pickled names of streams
    RING = 5  # the table's process had asked for it
    FLUSH = 6  # token
    BYE = 7  # the writer closes
    DROP = 8  # int64 numbers of streams that are unused
    GRANT = 11  # first id, rows
    GO = 12  # look again: credits were given
    WHY = 13  # text: why rows or credits do not come
    NUMBERS = 14  # token; numbers of streams, int64
    FLUSHED = 15  # token
    REFUSED = 16  # token; text
    CLOSED = 17


class Message(NamedTuple):
    kind: int
    a: int
    b: int
    body: bytes
    fds: tuple[int, ...]


def pack(kind: MessageType, a: int = 0, b: int = 0, body: bytes = b"") -> bytes:
    return _HEAD.pack(kind, a, b) + body


def send(sock: socket.socket, data: bytes, fds: tuple[int, ...] = ()) -> None:
    """Send a record without blocking.

    Raises OSError: BlockingIOError if the other side does not read, ConnectionError if it is gone.
    """
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)


def receive(sock: socket.socket) -> Message | None:
    """Return the next record, ``None`` at the end. Raises BlockingIOError
    if no record has arrived.
    """
    data, ancillary, _, _ = sock.recvmsg(
        _RECORD, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
    )
    if not data:
        return None
    fds = array.array("i")
    for _level, _kind, raw in ancillary:
        fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    kind, a, b = _HEAD.unpack_from(data)
    return Message(kind, a, b, data[_HEAD.size :], tuple(fds))


def names_from(body: bytes) -> list[Any]:
    names: list[Any] = pickle.loads(body)
    return names


def close_fd(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)
