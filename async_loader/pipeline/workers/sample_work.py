"""What an AsyncDataLoader does with its plans, in worker processes, in threads and in the producer
thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.batch_layout import BatchLayout
from async_loader.pipeline import codec
from async_loader.pipeline.batch import Batch, Outcome
from async_loader.pipeline.batches import arena, collate
from async_loader.pipeline.batches.arena import Arena
from async_loader.pipeline.batches.host_output import HostOutput
from async_loader.pipeline.batches.local_collator import LocalCollator
from async_loader.pipeline.batches.slot_allocator import SlotAllocator
from async_loader.pipeline.batches.transform import Transform
from async_loader.pipeline.codec import Encoded, SharedCalls
from async_loader.pipeline.workers.seeding import seed_globals
from async_loader.pipeline.workers.work import NEVER, Ending, Kind, WorkContext, while_open
from async_loader.pipeline.workers.worker_slots import TaskRecord, WorkerSlots
from async_loader.schema import Schema, samples_of
from async_loader.shm.batch_buffer import ReadyBlock, ReadySlot
from async_loader.source import Jobs, Plan, Reader, Ready, Rows, Samples, Seed, Window

Answer = tuple[str, Encoded | None]


class SampleWork:
    """See `Work`. The state of its iteration is the source's reader, where that became known after
    the start.

    Parameters
    ----------
    reader : Reader | None
        For rows.
    collate_fn : callable | None
        Sees the whole list of samples of a batch.
    init_fn : callable | None
        Called with the worker's number before its first task.
    seed : int
        Of the loader; each chunk gets a seed of (seed, batch, chunk).
    slots : SlotAllocator | None
    output : HostOutput | None
        Both for work in the loader's own process.
    transform : Transform | None
        Of each whole batch.
    """

    def __init__(
        self,
        reader: Reader | None,
        collate_fn: Callable[[list[Any]], Any] | None,
        init_fn: Callable[[int], Any] | None,
        seed: int,
        slots: SlotAllocator | None = None,
        output: HostOutput | None = None,
        transform: Transform | None = None,
    ) -> None:
        self.reader = reader
        self.slots = slots
        self.output = output
        self.collate_fn = collate_fn
        self.seed = seed
        self.transform = transform
        self._init_fn = init_fn

    def prepare(self, number: int, kind: Kind) -> None:
        """Call the worker_init_fn.

        The global random generators of a thread belong to the learner.
        """
        if self._init_fn is not None:
            if kind == "process":
                seed_globals((self.seed, number))
            self._init_fn(number)

    def begin(self, here: WorkContext) -> Callable[[Any], Any]:
        if here.kind != "process":
            return SampleTasks(self, here.worker, here.ending).do
        reader = self.reader if here.state is None else here.state
        return ChunkTasks(self, reader, here.ending).run


class LocalReaders(list[tuple[Reader, threading.Lock]]):
    """For each worker of this process its reader, and the lock under which it reads: workers may
    have to share a reader.
    """

    def __init__(self, readers: Sequence[Reader]) -> None:
        turns = {id(reader): threading.Lock() for reader in readers}
        super().__init__((reader, turns[id(reader)]) for reader in readers)


class SampleTasks:
    """The plans of one worker in this process.

    Never touches the global random generators: they belong to the learner.
    """

    def __init__(self, work: SampleWork, worker: int = 0, ending: Ending = NEVER) -> None:
        assert work.slots is not None
        assert work.output is not None
        self._output = work.output
        self._collator = LocalCollator(work.slots, work.collate_fn)
        self._seed = work.seed
        # it wants samples, also of rows that could be read straight into a slot
        self._whole = work.collate_fn is not None
        self._transform = work.transform
        self._worker = worker
        self._ending = ending

    def do(self, task: tuple[int, Plan, LocalReaders | None]) -> Outcome:
        """The batch of (number, plan, readers); raises what its jobs raise."""
        seq, plan, readers = task
        batch = self._make(seq, plan, readers)
        if self._transform is not None:
            lease, seed = batch.lease, (self._seed, seq, 0)
            batch = self._collator.transformed(
                batch, self._transform, seed, compact=self._output.keep_slots
            )
            batch.lease = lease
        return self._output.prepare(batch)

    def _make(self, seq: int, plan: Plan, readers: LocalReaders | None) -> Batch:
        collator = self._collator
        if isinstance(plan, Ready):
            slots_follow = self._output.keep_slots and self._transform is None
            if self._whole and plan.samples is not None:
                batch = collator.samples(plan.samples())
            elif isinstance(plan, ReadySlot | ReadyBlock) and slots_follow:
                batch = Batch(plan.buffer, plan.layout)
            else:
                # On its way to a device a batch lies in a slot: one copy of page-locked memory in
                # place of many of any.
                lent = plan.lent and not slots_follow
                batch = collator.lent(plan.batch) if lent else collator.ready(plan.batch)
            batch.lease = plan.lease
            return batch
        if isinstance(plan, Samples):
            return collator.samples(plan.samples)
        if isinstance(plan, Jobs):
            return collator.samples([call() for call in while_open(plan.calls, self._ending)])
        assert isinstance(plan, Rows)
        assert readers is not None
        seed = (self._seed, seq, 0)
        reader, turn = readers[self._worker]
        with turn:
            if self._whole:
                return collator.samples(fetch(reader, plan.index, seed))
            return collator.rows(reader, plan.index, seed)


class ChunkTasks:
    """The tasks of one iteration in a worker process: each is a chunk of a batch.

    Its rows are written into the batch's slot where the layout is known, and answered as arrays or
    samples where not. The parent alone decides layouts.
    """

    def __init__(self, work: SampleWork, reader: Reader | None, ending: Ending = NEVER) -> None:
        self._work = work
        self._reader = reader
        self._ending = ending
        self._schema: Schema | None = None

    def run(self, chunk: tuple[TaskRecord, Any, WorkerSlots]) -> Answer:
        """Do a chunk: "wrote", or what was made: "chunk" (schema and arrays), "samples" or
        "tree".
        """
        task, what, slots = chunk
        seed = (self._work.seed, task.seq, task.chunk)
        if task.kind == "jobs":
            seed_globals(seed)
            samples = self._called(what)
            if self._work.transform is not None:
                return self._transformed(self._batch(samples, slots), seed, slots)
            return self._collated(task, slots, samples)
        reader = self._reader
        assert reader is not None
        if self._work.transform is not None:
            seed_globals(seed)
            return self._of_rows(reader, what, seed, slots)
        if task.layout >= 0 and reader.schema is not None:
            reader.read(
                what, slots.layout(task).window(slots.root(task), task.start, task.stop), seed
            )
            return "wrote", None
        seed_globals(seed)
        # no slot was free: the same arrays, beside it
        if reader.schema is not None and not task.whole:
            return "chunk", codec.encode(
                (reader.schema, read_fresh(reader, what, seed)), out_of_band=True
            )
        return self._collated(task, slots, fetch(reader, what, seed))

    def _called(self, what: SharedCalls | list[Callable[[], Any]]) -> list[Any]:
        if isinstance(what, SharedCalls):
            function = what.function
            return [function(*each) for each in while_open(what.arguments, self._ending)]
        return [call() for call in while_open(what, self._ending)]

    def _of_rows(
        self, reader: Reader, index: npt.NDArray[np.int64], seed: Seed, slots: WorkerSlots
    ) -> Answer:
        schema = reader.schema
        if schema is None or self._work.collate_fn is not None:
            return self._transformed(self._batch(fetch(reader, index, seed), slots), seed, slots)
        fields = read_fresh(reader, index, seed, slots.arena)
        return self._transformed(schema.rebuild(fields), seed, slots)

    def _batch(self, samples: Sequence[Any], slots: WorkerSlots) -> Any:
        """A whole batch of samples, in the task's slot where they have a schema."""
        if self._work.collate_fn is not None:
            return self._work.collate_fn(list(samples))
        schema = collate.schema_of(samples[0])
        if schema is not None:
            fields = _memory(schema, len(samples), slots.arena).fields
            with contextlib.suppress(tree.Misfit):
                collate.fill(schema, samples, fields)
                return schema.rebuild(fields)
        return collate.collate(samples)

    def _transformed(self, batch: object, seed: Seed, slots: WorkerSlots) -> Answer:
        transform = self._work.transform
        assert transform is not None
        result = transform(transform.arrays(batch), seed)
        # what is in no piece would be copied into the pickle
        with arena.within(slots.arena):
            whole = tree.transform(result, _in_one_piece, leave=collate.is_ignored)
        return "tree", codec.encode(whole, out_of_band=True)

    def _collated(self, task: TaskRecord, slots: WorkerSlots, samples: Sequence[Any]) -> Answer:
        if task.whole:
            function = self._work.collate_fn or collate.collate
            return "tree", codec.encode(function(list(samples)), out_of_band=True)
        if task.layout >= 0 and self._fill(task, slots, samples):
            return "wrote", None
        schema = collate.schema_of(samples[0])
        if schema is not None:
            if task.layout >= 0 and _fits(schema, slots.layout(task)):
                self._schema = schema
                if self._fill(task, slots, samples):
                    return "wrote", None
            arrays = [np.empty((len(samples), *f.shape), f.dtype) for f in schema.fields]
            with contextlib.suppress(tree.Misfit):
                collate.fill(schema, samples, arrays)
                return "chunk", codec.encode((schema, arrays), out_of_band=True)
        return "samples", codec.encode(list(samples), out_of_band=True)

    def _fill(self, task: TaskRecord, slots: WorkerSlots, samples: Sequence[Any]) -> bool:
        """Write the rows of the chunk; False: they, or the schema that was seen last, do not
        fit.
        """
        if self._schema is None or not _fits(self._schema, slots.layout(task)):
            return False
        with contextlib.suppress(tree.Misfit):
            collate.fill(
                self._schema, samples, [view[task.start : task.stop] for view in slots.views(task)]
            )
            return True
        return False


def _fits(schema: Schema, layout: BatchLayout) -> bool:
    """Whether rows of ``schema`` are what the layout was made for."""
    return schema.structure == layout.structure and all(
        field.dtype == region.dtype and field.shape == region.shape[1:]
        for field, region in zip(schema.fields, layout.regions, strict=True)
    )


def fetch(reader: Reader, index: npt.NDArray[np.int64], seed: Seed) -> Sequence[Any]:
    """Rows as samples: for a reader without a schema, and for a collate_fn."""
    schema = reader.schema
    if schema is None:
        return reader.fetch(index, seed)
    return samples_of(schema, read_fresh(reader, index, seed))


def read_fresh(
    reader: Reader, index: npt.NDArray[np.int64], seed: Seed, within: Arena | None = None
) -> list[Any]:
    """Rows in arrays of their own, or ``within`` a slot that has room for them."""
    assert reader.schema is not None
    window = _memory(reader.schema, len(index), within)
    reader.read(index, window, seed)
    return window.fields


def _memory(schema: Schema, rows: int, within: Arena | None) -> Window:
    layout = BatchLayout.contiguous(schema, rows)
    offset = None if within is None else within.take(layout.nbytes)
    if within is None or offset is None:
        return layout.window(np.empty(layout.nbytes, np.uint8), 0, rows)
    return layout.window(within.root[offset : offset + layout.nbytes], 0, rows)


def _in_one_piece(leaf: object) -> Any:
    if not isinstance(leaf, np.ndarray) or leaf.flags.c_contiguous or leaf.dtype.hasobject:
        return leaf
    out = arena.empty(leaf.shape, leaf.dtype)
    out[...] = leaf
    return out
