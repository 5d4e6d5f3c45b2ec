"""Messages between a writer and the table's process: records of an `FdChannel` that never blocks.

Each is three numbers and bytes. Names of streams are pickled: both ends belong to one user and one
program.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from async_loader.shm.fd_channel import FdChannel

NAMES_BYTES = 32 << 10
"""Most bytes of pickled names in one record."""


class MessageType(IntEnum):
    """Kinds of messages. The first group is sent by the writer, the second
    by the table's process.
    """

    HELLO = 1  # pid; with a pidfd of the writer's process
    MORE = 2  # another extent, before the last one is used up
    NEED = 3  # see RowNeed; rows are negative: now or not at all; 0, 0: no more
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
    fds: list[int]


def send(
    channel: FdChannel,
    kind: MessageType,
    a: int = 0,
    b: int = 0,
    body: bytes = b"",
    fds: tuple[int, ...] = (),
) -> None:
    """Send a message.

    Raises OSError: BlockingIOError if the other side does not read, ConnectionError if it is gone.
    """
    channel.send((int(kind), a, b), body, fds)


def receive(channel: FdChannel) -> Message | None:
    """Return the next message, ``None`` at the end. Raises BlockingIOError if no message has
    arrived.
    """
    record = channel.receive()
    if record is None:
        return None
    kind, a, b = record.message
    return Message(kind, a, b, record.payload, record.fds)
