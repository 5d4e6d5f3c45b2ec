"""Cuts tasks into chunks for worker processes, and puts their answers together.

The first answers decide how the next batches are cut: they tell the schema of the samples, or that
the samples have no common schema.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from async_loader.errors import CannotSend, ConfigError, OutOfMemory
from async_loader.name_hints import describe
from async_loader.pipeline import codec
from async_loader.pipeline.batch import Batch, Outcome, StreamEnd
from async_loader.pipeline.batches.local_collator import LocalCollator
from async_loader.pipeline.batches.slot_allocator import HostOutput, SlotAllocator
from async_loader.pipeline.codec import Encoded, shared
from async_loader.pipeline.job_queue import Chunk, IterationSpec, Job
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.schema import Schema, samples_of
from async_loader.shm.fd_channel import Record
from async_loader.source import Jobs, Reader, Rows

_HEADROOM = 1.25
"""Slots are made larger than the largest batch so far by this, where lengths differ, so that they
are not made anew each time.
"""


@dataclass(eq=False)
class ChunkAssembler:
    """`cut` belongs to the thread that draws tasks, `load` and `assemble` to the pool's.

    `_schema` and `whole` are set by the latter, and read by the former once for each batch: a
    stale value is slower and not wrong, since the worker's answer says how it was written.

    Parameters
    ----------
    slots : SlotAllocator
    output : HostOutput
    collator : LocalCollator | None
        For plans.
    chunk_size : int
        Rows per chunk of a plan.
    whole : bool
        Plans are never cut: a collate_fn or a transform wants to see the whole batch.
    """

    slots: SlotAllocator
    output: HostOutput
    collator: LocalCollator | None = None
    chunk_size: int = 1
    whole: bool = True
    _schema: Schema | None = None

    # -- before ------------------------------------------------------------------------------------

    def whole_task(
        self, spec: IterationSpec, seq: int, ready: TrainQueue, task: object, worker: int | None
    ) -> Chunk:
        """A task of which nothing is known, as one chunk. Raises CannotSend, OutOfMemory."""
        job = Job(seq, 1, self.slots.spare_slot(), True, ready, chunks=1, worker=worker)
        kind = "stream" if spec.stream else "work"
        return Chunk(job, spec, kind, 0, 0, 1, codec.encode(task), worker=worker)

    def cut(
        self,
        spec: IterationSpec,
        seq: int,
        ready: TrainQueue,
        plan: Rows | Jobs,
        reader: Reader | None,
    ) -> list[Chunk]:
        """The chunks of a plan, with a slot when their layout is known.

        Raises
        ------
        CannotSend
            Names the job that cannot travel.
        OutOfMemory, ConfigError
            When slots for the batch cannot be had.
        """
        rows = len(plan)
        job = Job(seq, rows, None, self.whole, ready)
        schema = self._schema if reader is None or isinstance(plan, Jobs) else reader.schema
        if job.whole:
            job.buffer = self.slots.spare_slot()
        elif schema is not None:
            job.layout = self.slots.layout(schema, rows)
            job.buffer = self.slots.shared_slot(job.layout.nbytes)
        size = rows if job.whole else min(self.chunk_size, rows)
        starts = range(0, rows, size)
        job.chunks = len(starts)
        return [
            self._chunk(job, spec, number, start, min(start + size, rows), plan)
            for number, start in enumerate(starts)
        ]

    def _chunk(
        self, job: Job, spec: IterationSpec, number: int, start: int, stop: int, plan: Rows | Jobs
    ) -> Chunk:
        if isinstance(plan, Rows):
            index = plan.index[start:stop]
            return Chunk(job, spec, "rows", number, start, stop, codec.encode(index))
        calls = plan.calls[start:stop]
        payload = _encode_calls(calls, start)
        if codec.of_session(payload):
            payload = codec.encode(list(calls), by_value=True)
        return Chunk(job, spec, "jobs", number, start, stop, payload, task=calls)

    # -- after -------------------------------------------------------------------------------------

    def load(self, chunk: Chunk, record: Record, where: tuple[Any, ...] | None) -> Any:
        """What a worker sent, on the memory in which it sent it."""
        if where is None:
            return codec.decode(record.payload)
        kind, *rest = where
        if kind == "slot":
            assert chunk.job.buffer is not None
            return self.output.unpack(record.payload, chunk.job.buffer, tuple(rest[0]))
        head, table, wanted = rest
        value = codec.decode(record.payload[:head], [record.payload[o : o + n] for o, n in table])
        if chunk.job.whole and table:
            self._make_room(max(sum(table[-1]), wanted))
            chunk.job.buffer = None
        return value

    def _make_room(self, needed: int) -> None:
        """A batch found no slot, or none that was large enough: from the next one on there is
        one.
        """
        ring = self.slots.ring
        with contextlib.suppress(OutOfMemory, ConfigError):  # without one it is slower, not wrong
            self.slots.reserve(
                needed if ring is None or ring.slot_bytes >= needed else int(needed * _HEADROOM)
            )

    def assemble(self, job: Job) -> Outcome:
        """The batch of all chunks, in their order."""
        results = [job.results[number] for number in range(job.chunks)]
        kinds = {kind for kind, _ in results}
        value = results[0][1]
        if kinds == {"end"}:
            return StreamEnd(value)
        if kinds == {"wrote"}:
            batch = Batch(job.buffer, job.layout)
        elif kinds == {"tree"}:
            batch = value if type(value) is Batch else Batch(tree=value)
        else:
            batch = self._of_samples(job, results)
        return self.output.prepare(batch)

    def _of_samples(self, job: Job, results: Sequence[tuple[str, Any]]) -> Batch:
        """Of chunks that are answered as samples, beside those that were written."""
        assert self.collator is not None
        samples: list[Any] = []
        for number, (kind, value) in enumerate(results):
            samples.extend(value if kind == "samples" else self._written(job, number))
        batch = self.collator.samples(samples)
        if all(kind == "samples" for kind, _ in results):
            # without a fixed shape one worker collates the whole batch from now on
            self.whole = batch.layout is None
            self._schema = self.collator.schema
        return batch

    def _written(self, job: Job, number: int) -> Sequence[Any]:
        assert job.buffer is not None
        assert job.layout is not None
        start = number * self.chunk_size
        stop = min(start + self.chunk_size, job.rows)
        fields = [view[start:stop].copy() for view in job.layout.views(job.buffer.root)]
        return samples_of(job.layout.schema, fields)


def _encode_calls(calls: Sequence[Any], start: int) -> Encoded:
    """One pickle for the whole chunk, so that what its calls share travels once."""
    try:
        return codec.encode(shared(calls) or list(calls))
    except CannotSend:
        for number, call in enumerate(calls, start):
            try:
                codec.encode(call)
            except CannotSend as error:
                raise CannotSend(
                    f"job {number} of the batch, {describe(call)}, cannot be sent: "
                    f"{error.__cause__}"
                ) from error
        raise
