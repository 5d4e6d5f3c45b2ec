"""Message bodies without msgpack: fixed structs and arrays of numbers."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from async_loader.errors import Malformed
from async_loader.feeder.wire.codes import Type

Buffer = Any
"""bytes, bytearray, memoryview, a numpy array, a zmq.Frame.

Python has no name for it before 3.12.
"""

_ACK = struct.Struct("<4Q")
_APPLIED = struct.Struct("<2Q")
_GRANTED = struct.Struct("<2Qd")
_CLOSED = struct.Struct("<2Q")
_SLOT = struct.Struct("<4I")
_plain_values = msgspec.msgpack.Decoder(dict[str, Any])


class Data(msgspec.Struct, frozen=True, eq=False):
    """Root of the bodies without msgpack."""

    TYPE: ClassVar[Type]

    @property
    def count(self) -> int:
        """The header's ``rows``."""
        return 0

    def pack(self) -> list[Buffer]:
        return []


class Empty(Data, frozen=True):
    """Root of the messages that are headers only."""


class Ping(Empty, frozen=True):
    TYPE = Type.PING


class Pong(Empty, frozen=True):
    TYPE = Type.PONG


class Done(Empty, frozen=True):
    TYPE = Type.DONE


class Status(Empty, frozen=True):
    TYPE = Type.STATUS


class StatusReply(Data, frozen=True):
    """A map of plain values in msgpack, of any size."""

    TYPE = Type.STATUS_REPLY
    status: dict[str, Any]

    def pack(self) -> list[Buffer]:
        return [msgspec.msgpack.encode(self.status)]


class Drain(Empty, frozen=True):
    TYPE = Type.DRAIN


class Totals(Empty, frozen=True):
    """A request for what the header's reader draws from; TOTALS_REPLY answers it."""

    TYPE = Type.TOTALS


class Ack(Data, frozen=True):
    """Cumulative watermarks of a writer.

    Every INSERT with a sequence below ``applied`` is in the table; below ``durable`` it outlives
    the server. The window is how much may be under way beyond ``applied``.
    """

    TYPE = Type.ACK
    applied: int
    durable: int
    window_bytes: int
    window_rows: int

    def pack(self) -> list[Buffer]:
        return [_ACK.pack(self.applied, self.durable, self.window_bytes, self.window_rows)]


class Gap(Ack, frozen=True):
    """An ACK after a gap: send again from ``applied`` on, the expected sequence."""

    TYPE = Type.GAP


class Applied(Data, frozen=True):
    """How many of a call's ids had a row, and how many were stale."""

    TYPE = Type.APPLIED
    applied: int
    stale: int

    def pack(self) -> list[Buffer]:
        return [_APPLIED.pack(self.applied, self.stale)]


class Pull(Data, frozen=True):
    """Absolute credit: batches that may be sent, counted from the reader's opening.

    With the number of received batches, whose memory can be reused, and free slots. ``wait_s``: of
    a reader for calls, how long its call may wait; see `OpenReader`.
    """

    TYPE = Type.PULL
    granted: int
    received: int
    returned: NDArray[np.uint32]
    wait_s: float = 0.0

    @property
    def count(self) -> int:
        return len(self.returned)

    def pack(self) -> list[Buffer]:
        return [
            _GRANTED.pack(self.granted, self.received, self.wait_s)
            + numbers(self.returned, "<u4", "slots").tobytes()
        ]


class InSlot(NamedTuple):
    """A batch in shared memory. ``flags`` are those that its header would have."""

    slot: int
    generation: int
    rows: int
    flags: int = 0


class SlotBatches(Data, frozen=True):
    """Batches in slots of shared memory, in order; the header has the sequence of the first.

    The header has the flag SHARED.
    """

    TYPE = Type.BATCH
    places: Sequence[InSlot]

    @property
    def count(self) -> int:
        return len(self.places)

    def pack(self) -> list[Buffer]:
        return [b"".join([_SLOT.pack(*place) for place in self.places])]


class CloseReader(Data, frozen=True):
    """The end of a reader and its leases.

    Leases of batches that did not arrive go back, and so do those in ``unused``: user code had the
    first ``seen`` of them. All others were used.

    Attributes
    ----------
    arrived : int
        Batches with a lower number have arrived.
    seen : int
    unused : uint64 array
    """

    TYPE = Type.CLOSE_READER
    arrived: int = 0
    seen: int = 0
    unused: NDArray[np.uint64] = msgspec.field(default_factory=lambda: np.empty(0, np.uint64))

    @property
    def count(self) -> int:
        return len(self.unused)

    def pack(self) -> list[Buffer]:
        return [
            _CLOSED.pack(self.arrived, self.seen) + numbers(self.unused, "<u8", "leases").tobytes()
        ]


class Return(Data, frozen=True):
    """Leases of batches that were used."""

    TYPE = Type.RETURN
    leases: NDArray[np.uint64]

    @property
    def count(self) -> int:
        return len(self.leases)

    def pack(self) -> list[Buffer]:
        return [numbers(self.leases, "<u8", "leases")]


EMPTY: dict[Type, type[Empty]] = {
    kind.TYPE: kind for kind in (Ping, Pong, Done, Status, Drain, Totals)
}


def unpack(kind: Type, rows: int, frames: Sequence[memoryview]) -> Data:
    """Decode a body, except INSERT and BATCH over tcp. Arrays are views where they are aligned.

    Raises
    ------
    Malformed
    """
    if kind is Type.PULL:
        return _pull(rows, _only(kind, frames))
    if kind is Type.CLOSE_READER:
        return _closed(rows, _only(kind, frames))
    if kind is Type.RETURN:
        return Return(vector(_only(kind, frames), np.dtype("<u8"), rows, "leases"))
    if kind is Type.BATCH:
        return _slots(rows, _only(kind, frames))
    if kind is Type.STATUS_REPLY:
        return _status(_only(kind, frames))
    if kind is Type.APPLIED:
        return Applied(*_fixed(_APPLIED, kind, frames))
    return (Gap if kind is Type.GAP else Ack)(*_fixed(_ACK, kind, frames))


def vector(frame: memoryview, dtype: np.dtype[Any], n: int, what: str) -> NDArray[Any]:
    """Return ``n`` numbers: a view of the frame if it is aligned, else a copy."""
    if frame.nbytes != n * dtype.itemsize:
        raise Malformed(f"{n} {what} came in {frame.nbytes} bytes, they take {n * dtype.itemsize}")
    if not n:
        return np.empty(0, dtype)
    values = np.frombuffer(frame, dtype)
    return values if values.flags.aligned else values.copy()


def numbers(values: NDArray[Any], dtype: str, what: str) -> NDArray[Any]:
    """Return ``values``. Raises Malformed unless they are contiguous, 1-d and of this dtype."""
    if (
        not isinstance(values, np.ndarray)
        or values.ndim != 1
        or values.dtype != np.dtype(dtype)
        or not values.flags.c_contiguous
    ):
        raise Malformed(
            f"{what} are no contiguous array [n] of {np.dtype(dtype)}: convert them with "
            "numpy.ascontiguousarray"
        )
    return values


def _pull(rows: int, frame: memoryview) -> Pull:
    if frame.nbytes < _GRANTED.size:
        raise Malformed(
            f"PULL has a body of {frame.nbytes} bytes, it takes {_GRANTED.size} and 4 for each slot"
        )
    granted, received, wait_s = _GRANTED.unpack_from(frame)
    if not math.isfinite(wait_s):
        raise Malformed(f"PULL has a wait of {wait_s} s: give a number")
    slots = vector(frame[_GRANTED.size :], np.dtype("<u4"), rows, "slots")
    return Pull(granted, received, slots, wait_s)


def _closed(count: int, frame: memoryview) -> CloseReader:
    if frame.nbytes < _CLOSED.size:
        text = f"CLOSE_READER has a body of {frame.nbytes} bytes, it takes {_CLOSED.size}"
        raise Malformed(f"{text} and 8 for each lease")
    arrived, seen = _CLOSED.unpack_from(frame)
    unused = vector(frame[_CLOSED.size :], np.dtype("<u8"), count, "leases")
    if seen > count:
        raise Malformed(f"CLOSE_READER says that {seen} of {count} leases were seen")
    return CloseReader(arrived, seen, unused)


def _slots(count: int, frame: memoryview) -> SlotBatches:
    if frame.nbytes != count * _SLOT.size or not count:
        raise Malformed(
            f"BATCH of {count} slots has a body of {frame.nbytes} bytes, it takes {_SLOT.size} for "
            "each, 1 or more"
        )
    return SlotBatches([InSlot(*place) for place in _SLOT.iter_unpack(frame)])


def _status(frame: memoryview) -> StatusReply:
    try:
        return StatusReply(_plain_values.decode(frame))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"STATUS_REPLY: {error}") from None


def _only(kind: Type, frames: Sequence[memoryview]) -> memoryview:
    if len(frames) != 1:
        raise Malformed(f"{kind.name} has {len(frames)} body frames, it takes 1")
    return frames[0]


def _fixed(form: struct.Struct, kind: Type, frames: Sequence[memoryview]) -> tuple[int, ...]:
    frame = _only(kind, frames)
    if frame.nbytes != form.size:
        raise Malformed(f"{kind.name} has a body of {frame.nbytes} bytes, it takes {form.size}")
    return form.unpack(frame)
