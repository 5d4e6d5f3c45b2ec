"""What travels through the queues: a finished batch, or what is there in its place.

# NOTE [life of a batch]
written (buffer or tree) ─▶ ready (value made, on the CPU) ─▶ handed out
                       └──▶ on the device (InFlight holds the host memory) ─▶ handed out
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from async_loader.batch_layout import BatchLayout
from async_loader.shm.batch_buffer import BatchBuffer

UNMADE: Any = object()
"""`Batch.value` before it is made: ``None`` is a batch that a collate_fn may return."""


@dataclass(slots=True, eq=False)
class DeviceCopy:
    """The device memory behind a batch.

    Attributes
    ----------
    event : Any
        Recorded behind the copy; ``None`` where the consumer's own stream copied.
    """

    blocks: tuple[Any, ...]
    event: Any


@dataclass(slots=True, eq=False)
class Batch:
    """A finished batch.

    Attributes
    ----------
    buffer : BatchBuffer | None
        The memory in which its arrays lie; ``None``: each has its own.
    layout : BatchLayout | None
        Where they lie in it; ``None``: `tree` says.
    tree : Any
        Without a layout: any structure, whose arrays may lie in `buffer`.
    packed : tuple of bytes and table | None
        The pickle of `tree`, and offset and size of its arrays in `buffer`: to decode it again on a
        copy of them.
    lease : object
        Of its plan, see `async_loader.source.Leasing`.
    value : Any
        What `next` hands out, once it is made.
    device : DeviceCopy | None
    seq : int
        The number of its task in the iteration. The queue sets it.
    """

    buffer: BatchBuffer | None = None
    layout: BatchLayout | None = None
    tree: Any = None
    packed: tuple[Any, tuple[tuple[int, int], ...]] | None = None
    lease: object = None
    value: Any = UNMADE
    device: DeviceCopy | None = None
    seq: int = -1

    def detach(self) -> tuple[BatchBuffer | None, Any]:
        """Take the host memory out of the batch, to be kept until the copy from it is done."""
        host = self.buffer, self.tree
        self.buffer = self.tree = self.packed = None
        return host

    def empty(self) -> None:
        """Let go of all memory: it was handed out, and the thread that made it may look at this
        object for a while.
        """
        self.buffer = self.tree = self.packed = self.device = None
        self.value = UNMADE


@dataclass(slots=True, eq=False)
class StreamEnd:
    """The stream of this worker has no more batches."""

    worker: int
    seq: int = -1


@dataclass(slots=True, eq=False)
class Failure:
    """An error in place of a batch. ``urgent`` overtakes what is queued; ``lease`` is that of the
    batch.
    """

    error: BaseException
    urgent: bool = False
    seq: int = -1
    lease: object = None


Outcome = Batch | Failure | StreamEnd
