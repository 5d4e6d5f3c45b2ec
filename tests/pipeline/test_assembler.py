"""Plans are cut into chunks for workers and put together again: what the first answers teach,
and what does not fit.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from async_loader.errors import CannotSend
from async_loader.pipeline import codec
from async_loader.pipeline.batch import Batch, StreamEnd
from async_loader.pipeline.batches.assembler import ChunkAssembler
from async_loader.pipeline.batches.local_collator import LocalCollator
from async_loader.pipeline.batches.slot_allocator import HostOutput, SlotAllocator
from async_loader.pipeline.job_queue import Chunk, IterationSpec, Job
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.sample_work import (
    ChunkTasks,
    Place,
    SampleWork,
    TaskRecord,
    WorkerSlots,
)
from async_loader.shm.fd_channel import Record
from async_loader.source import Jobs

ROWS = 6


def sample(i: int, width: int = 3) -> dict[str, Any]:
    return {"x": np.full(width, i, np.float32), "i": i}


class Rig:
    """An assembler, and a worker that does its chunks in this process."""

    def __init__(self, chunk_size: int = 2, *, whole: bool = False) -> None:
        self.slots = SlotAllocator(4, 2, None, always_slots=True)
        output = HostOutput(to_tensors=False, keep_slots=True)
        collator = LocalCollator(self.slots, None)
        self.assembler = ChunkAssembler(self.slots, output, collator, chunk_size, whole=whole)
        self.spec = IterationSpec(0, 0, None, {0})
        self.kinds: list[str] = []
        self._worker = ChunkTasks(SampleWork(None, None, None, 0), None)

    def batch(self, *calls: Any) -> Batch:
        """The batch of these jobs."""
        chunks = self.assembler.cut(self.spec, 0, TrainQueue(), Jobs(list(calls)), None)
        self.kinds = []
        for chunk in reversed(chunks):  # in any order
            self._answer(chunk)
        (job,) = {chunk.job for chunk in chunks}
        batch = self.assembler.assemble(job)
        assert isinstance(batch, Batch)
        return batch

    def _answer(self, chunk: Chunk) -> None:
        job, known = chunk.job, WorkerSlots()
        place = slot = -1
        if job.buffer is not None and job.buffer.ring is not None:
            place, slot = 1, job.buffer.slot
            ring = job.buffer.ring
            known.add(1, Place(ring.segment, ring.slot_bytes, job.layout))
        rows = (chunk.start, chunk.stop)
        task = TaskRecord(0, chunk.kind, job.seq, chunk.number, *rows, job.whole, place, slot, 0)
        known.begin(task)
        kind, answer = self._worker.run((task, codec.decode(chunk.payload.head), known))
        self.kinds.append(kind)
        value = None
        if answer is not None:
            table, end = answer.table(len(answer.head))
            payload = bytearray(end)
            payload[: len(answer.head)] = answer.head
            answer.write(memoryview(payload), table)
            record = Record(("", 0), bytes(payload), [])
            value = self.assembler.load(chunk, record, ("beside", len(answer.head), table, 0))
        job.results[chunk.number] = (kind, value)


def columns(batch: Batch) -> dict[str, Any]:
    assert batch.layout is not None
    assert batch.buffer is not None
    return batch.layout.rebuild(batch.layout.views(batch.buffer.root))


def calls(first: int = 0, count: int = ROWS, **how: Any) -> list[Any]:
    return [functools.partial(sample, i, **how) for i in range(first, first + count)]


def test_chunks_are_as_long_as_they_may_be_and_in_order():
    rig = Rig(chunk_size=4)
    chunks = rig.assembler.cut(rig.spec, 7, TrainQueue(), Jobs(calls()), None)
    assert [(c.number, c.start, c.stop, c.kind, c.job.seq) for c in chunks] == [
        (0, 0, 4, "jobs", 7),
        (1, 4, 6, "jobs", 7),
    ]
    assert chunks[0].job.chunks == 2


def test_the_first_batch_teaches_the_layout_and_the_next_one_is_written_into_its_slot():
    rig = Rig()
    for first, kinds in ((0, {"samples"}), (10, {"wrote"})):
        batch = rig.batch(*calls(first))
        found = columns(batch)
        assert set(rig.kinds) == kinds
        assert found["i"].tolist() == list(range(first, first + ROWS))
        assert (found["x"] == found["i"][:, None]).all()
        assert batch.buffer.ring is rig.slots.ring


def test_samples_that_do_not_fit_the_layout_of_the_last_batch_make_one_of_their_own():
    rig = Rig()
    rig.batch(*calls())
    rig.batch(*calls())
    assert columns(rig.batch(*calls(width=5)))["x"].shape == (ROWS, 5)


def test_whole_batches_are_one_chunk_and_the_next_one_has_a_slot():
    rig = Rig(whole=True)
    batch = rig.batch(*calls())
    assert rig.kinds == ["tree"]
    assert batch.tree["i"].tolist() == list(range(ROWS))
    assert rig.slots.ring is not None


def test_a_job_that_cannot_travel_is_named():
    rig = Rig()
    with pytest.raises(CannotSend, match="job 3 of the batch"):
        rig.assembler.cut(
            rig.spec, 0, TrainQueue(), Jobs([*calls(count=3), TrainQueue()._lock.acquire]), None
        )


def test_the_end_of_a_stream_is_an_outcome():
    rig, job = Rig(), Job(0, 1, None, True, TrainQueue(), chunks=1)
    job.results[0] = ("end", 3)
    found = rig.assembler.assemble(job)
    assert isinstance(found, StreamEnd)
    assert found.worker == 3
