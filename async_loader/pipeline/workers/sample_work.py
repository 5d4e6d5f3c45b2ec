"""What an AsyncDataLoader does with its plans, in worker processes, in threads and in the producer
thread.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.batch_layout import BatchLayout
from async_loader.errors import AsyncLoaderError, SchemaError
from async_loader.pipeline import codec
from async_loader.pipeline.batch import Batch, Outcome
from async_loader.pipeline.batches import arena, collate
from async_loader.pipeline.batches.arena import Arena
from async_loader.pipeline.batches.local_collator import LocalCollator, Transform
from async_loader.pipeline.batches.slot_allocator import HostOutput, SlotAllocator
from async_loader.pipeline.codec import Encoded, SharedCalls
from async_loader.pipeline.workers.work import (
    NEVER,
    Ending,
    Kind,
    WorkContext,
    seed_globals,
    while_open,
)
from async_loader.schema import Schema, samples_of
from async_loader.shm.batch_buffer import ReadyBlock, ReadySlot
from async_loader.shm.segment import Segment
from async_loader.source import Jobs, Plan, Reader, Ready, Rows, Samples, Seed, Source, Window

KNOWN_RINGS = 3
"""Rings that a worker remembers; its handle counts along and sends them again when they were
forgotten.
"""


class TaskRecord(NamedTuple):
    """One chunk of a task, as it is sent; what is to be done follows as the payload.

    Attributes
    ----------
    number : int
        Of the chunk, for the answer.
    kind : str
        "jobs" or "rows" of a loader's batch; "work" or "stream" for what a `Work` of a pool does.
    seq : int
        Of the task in its iteration.
    chunk, start, stop : int
        Which chunk of the task it is, and its rows.
    whole : bool
        The only chunk: it may use all of the slot.
    ring, slot : int
        A `MappedRing` that was sent before, and the slot in it; -1 for none.
    iteration : int
    """

    number: int
    kind: str
    seq: int
    chunk: int
    start: int
    stop: int
    whole: bool
    ring: int
    slot: int
    iteration: int


@dataclass(slots=True)
class MappedRing:
    """A ring of slots, and how batches lie in them; without a layout that is not known."""

    segment: Segment
    slot_bytes: int
    layout: BatchLayout | None
    views: dict[int, list[Any]] = field(default_factory=dict)

    def root(self, slot: int) -> npt.NDArray[np.uint8]:
        """The bytes of a slot."""
        return self.segment.bytes(slot * self.slot_bytes, self.slot_bytes)


class WorkerSlots:
    """Rings by the numbers that the loader's process gives them.

    Attributes
    ----------
    arena : Arena | None
        All of the slot of the task at work, where that is its only chunk.
    layout : BatchLayout | None
        Of the rows that the task at work writes; ``None``: it answers with what it made.
    """

    def __init__(self) -> None:
        self.arena: Arena | None = None
        self.layout: BatchLayout | None = None
        self._rings: dict[int, MappedRing] = {}

    def add(self, number: int, ring: MappedRing) -> None:
        self._rings[number] = ring
        if len(self._rings) > KNOWN_RINGS:
            del self._rings[next(iter(self._rings))]

    def begin(self, task: TaskRecord) -> None:
        """This task is at work from now on."""
        ring = self._rings.get(task.ring)
        self.layout = None if ring is None else ring.layout
        self.arena = Arena(ring.root(task.slot)) if task.whole and ring is not None else None

    def rows(self, task: TaskRecord) -> list[Any]:
        """The rows of the chunk at work, in the arrays of its slot, which are made once."""
        ring = self._rings[task.ring]
        views = ring.views.get(task.slot)
        if views is None:
            assert ring.layout is not None
            views = ring.views[task.slot] = ring.layout.views(ring.root(task.slot))
        return [view[task.start : task.stop] for view in views]


Answer = tuple[str, Encoded | None]


@dataclass(eq=False)
class SampleWork:
    """See `Work`. The state of its iteration is the source's reader, where that became known after
    the start.

    Parameters
    ----------
    reader : Reader | None
        For rows, in a worker process.
    collate_fn : callable | None
        Sees the whole list of samples of a batch.
    init_fn : callable | None
        Called with the worker's number before its first task.
    seed : int
        Of the loader; each chunk gets a seed of (seed, batch, chunk).
    transform : Transform | None
        Of each whole batch.
    source : Source | None
    slots : SlotAllocator | None
    output : HostOutput | None
        All three for work in the loader's own process.
    """

    reader: Reader | None
    collate_fn: Callable[[list[Any]], Any] | None
    init_fn: Callable[[int], Any] | None
    seed: int
    transform: Transform | None = None
    source: Source | None = None
    slots: SlotAllocator | None = None
    output: HostOutput | None = None

    def prepare(self, number: int, kind: Kind) -> None:
        """Call the worker_init_fn.

        The global random generators of a thread belong to the learner.
        """
        if self.init_fn is not None:
            if kind == "process":
                seed_globals((self.seed, number))
            self.init_fn(number)

    def begin(self, here: WorkContext) -> Callable[[Any], Any]:
        if here.kind != "process":
            return SampleTasks(self, here.ending).do
        reader = self.reader if here.state is None else here.state
        return ChunkTasks(self, reader, here.ending).run


def reader_of(source: Source) -> Reader:
    """A reader of the rows that were planned: a table without a schema has none before its first
    step.
    """
    reader = source.reader()
    if reader is None:
        raise AsyncLoaderError(f"{type(source).__name__} planned rows and has no reader for them")
    return reader


class SampleTasks:
    """The plans of one worker in this process, which has a reader of its own.

    Never touches the global random generators: they belong to the learner.
    """

    def __init__(self, work: SampleWork, ending: Ending = NEVER) -> None:
        assert work.slots is not None
        assert work.output is not None
        self._work, self._ending, self._output = work, ending, work.output
        self._reader: Reader | None = None
        self._collator = LocalCollator(work.slots, work.collate_fn)

    def do(self, task: tuple[int, Plan]) -> Outcome:
        """The batch of (number, plan); raises what its jobs raise."""
        seq, plan = task
        batch = self._make(plan, (self._work.seed, seq, 0))
        transform = self._work.transform
        if transform is not None:
            batch = self._collator.transformed(
                batch, transform, (self._work.seed, seq, 0), compact=self._output.keep_slots
            )
        if isinstance(plan, Ready):
            batch.lease = plan.lease
        return self._output.prepare(batch)

    def _make(self, plan: Plan, seed: Seed) -> Batch:
        collator = self._collator
        # it wants samples, also of rows that could be read straight into a slot
        whole = self._work.collate_fn is not None
        if isinstance(plan, Ready):
            slots_follow = self._output.keep_slots and self._work.transform is None
            if whole:
                return collator.samples((plan.samples or partial(rows_of, plan.batch))())
            if isinstance(plan, ReadySlot | ReadyBlock) and slots_follow:
                return Batch(plan.buffer, plan.layout)
            # On its way to a device a batch lies in a slot: one copy of page-locked memory in
            # place of many of any.
            if plan.lent and not slots_follow:
                return Batch(tree=plan.batch)
            return collator.ready(plan.batch)
        if isinstance(plan, Samples):
            return collator.samples(plan.samples)
        if isinstance(plan, Jobs):
            calls = zip(while_open(plan.calls, self._ending))
            return collator.made(operator.call, calls, len(plan))
        assert isinstance(plan, Rows)
        if self._reader is None:
            assert self._work.source is not None
            self._reader = reader_of(self._work.source)
        if whole:
            return collator.samples(fetch(self._reader, plan.index, seed))
        return collator.rows(self._reader, plan.index, seed)


@dataclass(eq=False)
class ChunkTasks:
    """The tasks of one iteration in a worker process: each is a chunk of a batch.

    Its rows are written into the batch's slot where the layout is known and they fit, and answered
    as samples where not. The parent alone decides layouts.
    """

    work: SampleWork
    reader: Reader | None
    ending: Ending = NEVER

    def run(self, chunk: tuple[TaskRecord, Any, WorkerSlots]) -> Answer:
        """Do a chunk: "wrote", or what was made: "samples", or the "tree" of a whole batch."""
        task, what, slots = chunk
        seed = (self.work.seed, task.seq, task.chunk)
        reader = self.reader if task.kind == "rows" else None
        if slots.layout is not None and reader is not None and reader.schema is not None:
            reader.read(what, Window(slots.rows(task)), seed)
            return "wrote", None
        seed_globals(seed)
        if task.whole:
            batch = self._whole(reader, what, seed, slots.arena)
            return "tree", codec.encode(batch, out_of_band=True)
        if slots.layout is None:
            samples: Sequence[Any] | None = self._samples(reader, what, seed)
        else:
            calls = self._calls(reader, what, seed)
            samples = collate.fill_as_made(slots.layout.schema, *calls, slots.rows(task))
        if samples is None:
            return "wrote", None
        return "samples", codec.encode(list(samples), out_of_band=True)

    def _samples(self, reader: Reader | None, what: Any, seed: Seed) -> Sequence[Any]:
        function, arguments = self._calls(reader, what, seed)
        return [function(*each) for each in arguments]

    def _calls(
        self, reader: Reader | None, what: Any, seed: Seed
    ) -> tuple[Callable[..., Any], Iterator[tuple[Any, ...]]]:
        """What makes each sample, and its arguments."""
        if reader is not None:
            return _itself, zip(fetch(reader, what, seed))
        if not isinstance(what, SharedCalls):
            what = SharedCalls(operator.call, list(zip(what)))
        return what.function, while_open(what.arguments, self.ending)

    def _whole(self, reader: Reader | None, what: Any, seed: Seed, within: Arena | None) -> Any:
        """A whole batch, in the task's slot as far as that has room."""
        work = self.work
        if work.collate_fn is not None:
            batch = work.collate_fn(list(self._samples(reader, what, seed)))
        elif reader is not None and reader.schema is not None:
            batch = reader.schema.rebuild(read_fresh(reader, what, seed, within))
        else:
            batch = _collated(self._samples(reader, what, seed), within)
        if work.transform is None:
            return batch
        result = work.transform(work.transform.arrays(batch), seed)
        # what is in no piece would be copied into the pickle
        with arena.within(within):
            return tree.transform(result, _in_one_piece, leave=collate.is_ignored)


def _itself(sample: Any) -> Any:
    return sample


def rows_of(batch: object) -> Sequence[Any]:
    """Rows of a complete batch as samples, for a collate_fn."""
    structure = tree.structure_of(batch)
    try:
        rows = list(zip(*tree.leaves(batch, structure), strict=True))
    except (TypeError, ValueError) as error:
        raise SchemaError(
            f"a collate_fn is given the rows of a ready batch, and this one has none ({error}): "
            "give arrays [rows, ...] of one length"
        ) from None
    return [tree.rebuild(structure, row) for row in rows]


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
    fields = _memory(reader.schema, len(index), within)
    reader.read(index, Window(fields), seed)
    return fields


def _collated(samples: Sequence[Any], within: Arena | None) -> Any:
    schema = collate.schema_of(samples[0])
    if schema is not None:
        fields = _memory(schema, len(samples), within)
        with contextlib.suppress(tree.Misfit):
            collate.fill(schema, samples, fields)
            return schema.rebuild(fields)
    return collate.collate(samples)


def _memory(schema: Schema, rows: int, within: Arena | None) -> list[Any]:
    layout = BatchLayout.contiguous(schema, rows)
    offset = None if within is None else within.take(layout.nbytes)
    if within is None or offset is None:
        return layout.views(np.empty(layout.nbytes, np.uint8))
    return layout.views(within.root[offset : offset + layout.nbytes])


def _in_one_piece(leaf: object) -> Any:
    if not isinstance(leaf, np.ndarray) or leaf.flags.c_contiguous or leaf.dtype.hasobject:
        return leaf
    out = arena.empty(leaf.shape, leaf.dtype)
    out[...] = leaf
    return out
