"""What a pool's workers answer, unpacked: trees of any kind whose arrays lie in a slot. Decides no layout."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from async_loader.errors import ConfigError, OutOfMemory
from async_loader.pipeline import codec
from async_loader.pipeline.batch import HeapBatch, StreamEnd
from async_loader.pipeline.batches.slot_allocator import COPY_BELOW, SlotAllocator
from async_loader.pipeline.job_queue import Chunk, Job
from async_loader.shm.fd_channel import Record

_HEADROOM = 1.25
"""Slots are made larger than the largest batch so far by this, where lengths differ, so that they are not made anew each time."""


@dataclass(slots=True, eq=False)
class PickledBatch(HeapBatch):
    """A batch on a slot, and how to unpack it again somewhere else."""

    head: Any = b""
    table: tuple[tuple[int, int], ...] = ()

    def take(self) -> Any:
        """The batch: on its slot while slots may be lent, on memory of its own otherwise. The consumer's thread.

        Safe to repeat: a call that a signal interrupted is made again.
        """
        place = self.place
        if place is None or place.ring is None or place.ring.lend(place.slot):
            return self.tree
        self.tree, self.place = _copied(self.head, place.root, self.table), None
        return self.tree


class PickledAssembler:
    """`load` and `assemble` run in the crew's thread."""

    def __init__(self, places: SlotAllocator) -> None:
        self._places = places

    def load(self, part: Chunk, record: Record, where: Any) -> Any:
        """The batch, unpacked."""
        if where is None:
            return codec.decode(record.payload)
        kind, *rest = where
        if kind == "beside":
            return self._beside(part, record.payload, *rest)
        (table,) = rest
        place = part.job.place
        assert place is not None
        if sum(nbytes for _, nbytes in table) < COPY_BELOW:
            return PickledBatch(_copied(record.payload, place.root, table))
        batch = codec.decode(record.payload, [place.root[o : o + n] for o, n in table])
        return PickledBatch(batch, place, head=record.payload, table=tuple(table))

    def _beside(self, part: Chunk, payload: Any, head: int, table: Any) -> Any:
        """It found no slot, or none that was large enough: from the next batch on there is one."""
        if table:
            needed = sum(table[-1])
            ring = self._places.ring
            with contextlib.suppress(OutOfMemory, ConfigError):  # without one it is slower, not wrong
                self._places.reserve(needed if ring is None or ring.slot_bytes >= needed else int(needed * _HEADROOM))
        return PickledBatch(codec.decode(payload[:head], [payload[o : o + n] for o, n in table]))

    def assemble(self, job: Job) -> Any:
        ((kind, value),) = job.results.values()
        if kind == "end":
            return StreamEnd(value)
        return value


def _copied(head: Any, root: Any, table: Any) -> Any:
    """The batch on memory of its own. One block for all of its arrays, as they lay in the slot."""
    if not table:
        return codec.decode(head)
    start, end = min(o for o, _ in table), max(o + n for o, n in table)
    block = np.empty(end - start, np.uint8)
    block[:] = root[start:end]
    return codec.decode(head, [block[o - start : o - start + n] for o, n in table])
