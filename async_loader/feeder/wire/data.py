"""The short messages, as msgpack arrays: acknowledgements, credit, leases, slots. See `Control`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple

from msgspec import Meta

from async_loader.feeder.wire import codes
from async_loader.feeder.wire.codes import U32, U64, Patience, Type
from async_loader.feeder.wire.control import Control

Buffer = Any
"""bytes, bytearray, memoryview, a numpy array, a zmq.Frame.

Python has no name for it before 3.12.
"""


class Short(Control, frozen=True, array_like=True):
    """Root of the messages without names of fields."""


class Ping(Short, frozen=True):
    TYPE = Type.PING


class Pong(Short, frozen=True):
    TYPE = Type.PONG


class Done(Short, frozen=True):
    TYPE = Type.DONE


class Status(Short, frozen=True):
    TYPE = Type.STATUS


class Drain(Short, frozen=True):
    TYPE = Type.DRAIN


class Totals(Short, frozen=True):
    """A request for what the header's reader draws from; TOTALS_REPLY answers it."""

    TYPE = Type.TOTALS


class StatusReply(Short, frozen=True):
    """A map of plain values, of any size."""

    TYPE = Type.STATUS_REPLY
    MOST: ClassVar[int] = codes.MESSAGE_BYTES
    status: dict[str, Any]


class Ack(Short, frozen=True):
    """Cumulative watermarks of a writer.

    Every INSERT with a sequence below ``applied`` is in the table. The window is how much may be
    under way beyond it.
    """

    TYPE = Type.ACK
    applied: U64
    window_bytes: U64
    window_rows: U64


class SlotInsert(Short, frozen=True):
    """An INSERT whose rows lie in a slot of the writer's memory.

    ``capacity``: the rows that the frames in the slot have room for.
    """

    TYPE = Type.SLOT_INSERT
    rows: U32
    slot: U32
    capacity: U32

    def __post_init__(self) -> None:
        if self.rows > self.capacity:
            raise ValueError(f"INSERT of {self.rows} rows names a slot of {self.capacity}")


class Applied(Short, frozen=True):
    """How many of a call's ids had a row, and how many were stale."""

    TYPE = Type.APPLIED
    applied: U64
    stale: U64


class Pull(Short, frozen=True):
    """Absolute credit: batches that may be sent, counted from the reader's opening.

    With free slots. ``wait_s``: of
    a reader for calls, how long its call may wait; see `OpenReader`.
    """

    TYPE = Type.PULL
    granted: U64
    returned: tuple[U32, ...]
    wait_s: Patience = 0.0


class InSlot(NamedTuple):
    """A batch in shared memory. ``flags`` are those that its header would have."""

    slot: U32
    generation: U32
    rows: U32
    flags: U32 = 0


class SlotBatches(Short, frozen=True):
    """Batches in slots of shared memory, in order; the header has the sequence of the first."""

    TYPE = Type.SLOT_BATCHES
    places: Annotated[tuple[InSlot, ...], Meta(min_length=1)]


class CloseReader(Short, frozen=True):
    """The end of a reader and its leases.

    Leases of batches that did not arrive go back, and so do those in ``unused``: user code had the
    first ``seen`` of them. All others were used.

    Attributes
    ----------
    arrived : int
        Batches with a lower number have arrived.
    seen : int
    unused : tuple of int
    """

    TYPE = Type.CLOSE_READER
    arrived: U64 = 0
    seen: U64 = 0
    unused: tuple[U64, ...] = ()

    def __post_init__(self) -> None:
        if self.seen > len(self.unused):
            raise ValueError(f"{self.seen} of {len(self.unused)} leases were seen")


class Return(Short, frozen=True):
    """Leases of batches that were used."""

    TYPE = Type.RETURN
    leases: tuple[U64, ...]
