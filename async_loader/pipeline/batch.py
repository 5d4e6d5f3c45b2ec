"""What travels through the queues: a finished batch in one of two forms, or a failure. Does nothing by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from async_loader.batch_layout import BatchLayout
from async_loader.shm.slot_ring import Lease, SlotRing


@dataclass(slots=True, eq=False)
class BatchBuffer:
    """A slot in which one batch is being written, or lies. Dropping the last reference to ``root`` frees it.

    Attributes
    ----------
    ring : SlotRing | None
        ``None`` when the root is fresh memory of this batch alone.
    slot : int
    root : uint8 array
        The lease on the slot's bytes.
    layout : BatchLayout
    """

    ring: SlotRing | None
    slot: int
    root: Lease
    layout: BatchLayout


@dataclass(slots=True, eq=False)
class SlotBatch:
    """A batch that lies in a slot. ``batch`` is the same as tensors, once they are made; ``lease`` is its plan's."""

    place: BatchBuffer
    batch: Any = None
    lease: object = None


@dataclass(slots=True, eq=False)
class HeapBatch:
    """A batch that could not be laid out, or found no slot: a tree of arrays and whatever else a collate_fn returns.

    ``place`` is set when its arrays lie in a slot all the same, by way of out-of-band pickling. ``batch`` is the same as
    tensors, once they are made; ``lease`` is its plan's.
    """

    tree: Any
    place: BatchBuffer | None = None
    batch: Any = None
    lease: object = None


@dataclass(slots=True, eq=False)
class StreamEnd:
    """The stream of this worker has no batch any more."""

    worker: int


@dataclass(slots=True, eq=False)
class Failure:
    """This batch will not come, and why. ``urgent`` overtakes what is queued."""

    error: BaseException
    urgent: bool = False


Outcome = SlotBatch | HeapBatch | Failure | StreamEnd


class Wakeup:
    """Something changed that the consumer should look at: no batch."""

    __slots__ = ()
