"""What the workers of a pool answer, unpacked: trees of any kind whose arrays lie in a slot. Decides no layout."""

from __future__ import annotations

import contextlib
from typing import Any

from async_loader.errors import ConfigError, OutOfMemory
from async_loader.pipeline import codec
from async_loader.pipeline.batch import Batch, Outcome, StreamEnd
from async_loader.pipeline.batches.host_output import HostOutput
from async_loader.pipeline.batches.slot_allocator import SlotAllocator
from async_loader.pipeline.job_queue import Chunk, Job
from async_loader.shm.fd_channel import Record

_HEADROOM = 1.25
"""Slots are made larger than the largest batch so far by this, where lengths differ, so that they are not made anew each time."""


class PickledAssembler:
    """`load` and `assemble` run in the pool's thread."""

    def __init__(self, slots: SlotAllocator, output: HostOutput) -> None:
        self._slots = slots
        self._output = output

    def load(self, part: Chunk, record: Record, where: Any) -> Any:
        """The batch, unpacked."""
        if where is None:
            return codec.decode(record.payload)
        kind, *rest = where
        if kind == "beside":
            return self._beside(record.payload, *rest)
        assert part.job.buffer is not None
        return self._output.unpack(record.payload, part.job.buffer, tuple(rest[0]))

    def _beside(self, payload: Any, head: int, table: Any) -> Any:
        """It found no slot, or none that was large enough: from the next batch on there is one."""
        if table:
            needed = sum(table[-1])
            ring = self._slots.ring
            with contextlib.suppress(OutOfMemory, ConfigError):  # without one it is slower, not wrong
                self._slots.reserve(needed if ring is None or ring.slot_bytes >= needed else int(needed * _HEADROOM))
        return Batch(tree=codec.decode(payload[:head], [payload[o : o + n] for o, n in table]))

    def assemble(self, job: Job) -> Outcome:
        ((kind, value),) = job.results.values()
        return StreamEnd(value) if kind == "end" else self._output.prepare(value)
