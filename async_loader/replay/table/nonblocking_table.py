"""A table as a server uses it: nothing here waits, and whoever could not go on tries again when something has changed.

One thread. Steps come as columns that lie in messages, and are copied from there into the table, once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import SchemaError
from async_loader.replay.arguments import floats_of, ids_of
from async_loader.replay.base.compiled import note_kept
from async_loader.replay.base.row_format import AWAITS, FINAL, TERMINATED, TRUNCATED
from async_loader.replay.buffer import ReplayBuffer
from async_loader.replay.rate_limiter import UNLIMITED
from async_loader.replay.samplers import Fifo, Prioritized, Sampler, Uniform
from async_loader.replay.source import sampler_for
from async_loader.replay.table.reader import ReplayReader, Target
from async_loader.replay.table.step_packer import NO_FIELDS
from async_loader.replay.views import ReadPlan, Transitions
from async_loader.schema import Field, Schema
from async_loader.source import Applied

Ids = npt.NDArray[np.int64]
_ENDS = TERMINATED | TRUNCATED
SHOWN = 8
"""Of a FINAL row that ends an episode: what came after is in it."""
_NO_PRIORITIES = np.empty(0)
_TEXT = 512


@dataclass(frozen=True, slots=True, eq=False)
class Incoming:
    """Steps on their way in, ``[rows]`` each.

    Attributes
    ----------
    streams : int64
        Numbers of the table's streams; see `ServedTable.streams`.
    flags : int64
        How each step stands in its episode. FINAL alone: no step, but the observation after the one right before; FINAL with
        another flag: the episode of that stream ended after its last step, in that way; what came after is in the row if that
        is SHOWN too, else nobody knows it.
    priorities : float64
        NaN: none given.
    columns : list of arrays [rows, *shape]
        One per field of the schema; may be strided from row to row.
    seen : bool
        Whether a learner may have had them already, from a server that is no more.
    """

    streams: Ids
    flags: Ids
    priorities: npt.NDArray[np.float64]
    columns: list[npt.NDArray[Any]]
    seen: bool = False

    def __len__(self) -> int:
        return len(self.streams)


class ServedTable:
    """A `ReplayBuffer` for the loop of a server.

    Parameters
    ----------
    buffer : ReplayBuffer
        Used by nobody else.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer
        self._owner, self._in, self._out = buffer._owner, buffer._in, buffer._out
        self._seen: set[int] = set()  # ids of rows that a learner may have had from an earlier server
        self._noting = False

    def __len__(self) -> int:
        """Items that can be drawn."""
        return len(self.buffer)

    @property
    def schema(self) -> Schema | None:
        return self._owner.schema

    @property
    def closed(self) -> bool:
        return self._owner.closed

    @property
    def counts(self) -> tuple[int, int]:
        """Items that were inserted, and drawn, since the table began. Cheap."""
        table = self._owner.table if self._owner.ready else None
        return (0, 0) if table is None else (table.inserted, table.sampled)

    @property
    def uses_up(self) -> bool:
        """Whether a draw takes away what another could have had."""
        return self._owner.limiter is not None or bool(self._owner.max_times_sampled)

    @property
    def leased(self) -> bool:
        """Whether every item goes out once: then what a learner took and did not use has to come back."""
        return self._owner.max_times_sampled == 1

    @property
    def sampler(self) -> Sampler:
        """The table's own."""
        return self._owner.sampler

    @property
    def no_priorities(self) -> str | None:
        """Why steps have no priorities here, as it travels; ``None`` where they may."""
        why = self._owner.no_priorities
        return None if why is None else why[:_TEXT]

    def nothing(self, count: int) -> Exception:
        """What `ReplayBuffer.sample` raises where there is too little and no limiter."""
        with self._owner.lock:
            return self._out._nothing(count)

    def begin_anew(self) -> None:
        """The table was loaded: its rows are others."""
        self._seen.clear()

    def start(self, schema: Schema) -> None:
        """The first writer says what a step is. Raises SchemaError, ConfigError and OutOfMemory as a ReplayBuffer does."""
        self._owner.start(schema)

    # -- in --------------------------------------------------------------------------------------------------------------

    def stream(self, name: Hashable) -> int:
        """The number of a stream, which is good until `release`."""
        table = self._owner.table
        with self._owner.lock:
            number = table.stream(name)
            table.hold((number,))
        return number

    def is_open(self, number: int) -> bool:
        """Whether the stream's episode goes on."""
        return self._owner.table.is_open(number)

    def release(self, numbers: Sequence[int]) -> None:
        """These numbers are not used any more. Streams whose episodes are open are found again by their names."""
        with self._owner.lock:
            self._owner.table.release(numbers)

    def check(self, steps: Incoming) -> None:
        """Raise SchemaError or ConfigError for steps that `insert` could not take. Changes nothing."""
        finals = np.flatnonzero(steps.flags & (FINAL | _ENDS) == FINAL)
        if len(finals):
            before = finals - 1
            fits = (before >= 0) & (steps.flags[before] & _ENDS != 0) & (steps.flags[before] & FINAL == 0)
            fits &= steps.streams[before] == steps.streams[finals]
            if not fits.all():
                wrong = int(finals[np.flatnonzero(~fits)[0]])
                raise SchemaError(f"row {wrong} is a final observation, and the row before it does not end its episode")
        if self._owner.prioritized:
            self._in.checked(steps.priorities)

    def insert(self, steps: Incoming, start: int) -> int:
        """Insert as many steps as the limiter lets in now, from row ``start`` on; the row after the last of them."""
        count = len(steps)
        with self._owner.lock:
            self._owner.own()
            self._noting = steps.seen and self.leased
            while start < count:
                stop = self._insert_some(steps, start)
                if stop == start:
                    break
                start = stop
        return start

    def _insert_some(self, steps: Incoming, start: int) -> int:
        """Insert up to the next final observation, and that one; or as far as the limiter lets."""
        flags = steps.flags
        if flags[start] & FINAL:
            shown = flags[start] & SHOWN and self._owner.step_packer.followed
            if shown and not self._owner.has_room(1, (int(steps.streams[start]),)):
                return start
            final = self._from(steps, start)[self._owner.step_packer.followed] if shown else NO_FIELDS
            self._end(int(steps.streams[start]), int(flags[start]) & _ENDS or TRUNCATED, final)
            return start + 1
        finals = np.flatnonzero(flags[start:] & FINAL)
        stop = start + int(finals[0]) if len(finals) else len(steps)
        followed = stop < len(steps) and not flags[stop] & _ENDS
        allowed = self._insertable(steps.streams[start:stop], followed)
        if allowed < stop - start:
            self._write(steps, start, start + allowed, False)
            return start + allowed
        self._write(steps, start, stop, followed)
        return stop + followed

    def _insertable(self, streams: npt.NDArray[Any], followed: bool) -> int:
        """How many steps of these streams may be written now; a final observation comes right behind the last if ``followed``."""
        limits, table, count = self._owner.limits, self._owner.table, len(streams)
        if limits is None or not count:
            return UNLIMITED
        allowed = limits.insertable()
        if not table.keeps or allowed <= 0:
            return allowed
        room = table.room_for((int(streams[0]),) if table.reserve else ())
        if room <= table.reserve and room < count:  # what is left is for the stream of the first
            return min(allowed, room, int(np.argmax(streams != streams[0])) or 1)
        return min(allowed, room if room < count else count - 1 if followed and room == count else count)

    def _write(self, steps: Incoming, start: int, stop: int, followed: bool) -> None:
        """Write the steps ``start`` to ``stop``, with the final observation right behind them if they are ``followed``."""
        if start == stop:
            return
        step_packer, flags, streams = self._owner.step_packer, steps.flags[start:stop].copy(), steps.streams[start:stop]
        source, final, cut = self._from(steps, start), NO_FIELDS, []
        if step_packer.followed:
            if followed:
                final = source[step_packer.followed]
                final[:, 3] += final[:, 4]  # the final observation of a step is in the row behind it
                flags[-1] |= AWAITS
            unknown = flags & (_ENDS | AWAITS) == TRUNCATED
            flags[unknown] &= ~TRUNCATED  # `_end` says it, and gives up the step that nothing follows
            cut = np.flatnonzero(unknown).tolist()
        given = steps.priorities[start:stop] if self._owner.prioritized else _NO_PRIORITIES
        first = 0
        for last in cut:
            self._write_part(source, final, slice(first, last + 1), streams, flags, given)
            self._end(int(streams[last]), TRUNCATED, NO_FIELDS)
            first = last + 1
        if first < stop - start:
            self._write_part(source, final, slice(first, stop - start), streams, flags, given)

    def _write_part(self, source: Ids, final: Ids, part: slice, streams: Any, flags: Ids, given: Any) -> None:
        source, final = _from_row(source, part.start), _from_row(final, part.start)
        count = part.stop - part.start
        given = given[part] if len(given) else given
        ids = np.full(count, -1, np.int64)
        self._owner.table.write(source, final, count, streams[part], flags[part], given, ids)
        if self._noting:
            self._note_seen(ids)

    def _from(self, steps: Incoming, start: int) -> Ids:
        """What kernels take: where each field lies in the table, and where in the message."""
        step_packer = self._owner.step_packer
        columns = steps.columns
        # Columns of a message are strided, which `address_of` finds out by an exception.
        fields = step_packer.fields_at(step_packer.everything, [column.ctypes.data for column in columns])
        fields[:, 4] = [column.strides[0] for column in columns]
        return _from_row(fields, start)

    def _end(self, stream: int, flags: int, final: Ids) -> None:
        self._owner.table.end_stream(stream, flags, final)

    def end(self, streams: Sequence[int]) -> None:
        """The episodes of these streams, if they are open, end as truncated: nobody will go on with them."""
        with self._owner.lock:
            self._owner.own()
            for stream in streams:
                self._end(stream, TRUNCATED, NO_FIELDS)

    def why_not_insert(self) -> str | None:
        """Why the limiter lets nothing in, in numbers."""
        with self._owner.lock:
            return self._owner.why_not_insert(1, 2 if self._owner.ready and self._owner.step_packer.followed else 1)

    def prioritize(self, ids: Ids, priorities: npt.NDArray[np.float64]) -> Applied:
        """As `ReplayBuffer.update_priorities`."""
        return self._in.prioritize(ids_of(ids), floats_of(priorities, "priority"))  # those of a message cannot be written to

    def _note_seen(self, ids: Ids) -> None:
        """Remember them until they are drawn; of rows that were overwritten instead the ids are forgotten at some time."""
        self._seen.update(ids.tolist())
        most = 2 * (self._owner.capacity or len(ids))
        if len(self._seen) > most:
            least = int(ids.max()) - most
            self._seen = {one for one in self._seen if one > least}

    def take_seen(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which of these rows, which were drawn just now for good, a learner may have had before."""
        if not self._seen:
            return np.zeros(len(ids), np.bool_)
        found = np.array([one in self._seen for one in ids.tolist()], np.bool_)
        self._seen.difference_update(ids.tolist())
        return found

    # -- out -------------------------------------------------------------------------------------------------------------

    def drawing(
        self, view: Transitions | None, rank: int, world_size: int, seed: int | None,
        given: Sampler | None = None, min_size: int = 1, count: int = 0, check: Callable[[Schema], None] | None = None,
    ) -> SamplerSession:  # fmt: skip
        """What one learner draws with. The table has a schema.

        As `ReplayBuffer.source`.

        Parameters
        ----------
        given : Sampler, optional
            One of the learner's own, which is told of every item from now on.
        count : int
            Of a batch, as in `TableSampler.read_plan`.
        check : callable, optional
            Raises for rows of a schema that cannot be, before the table sees to the view that makes them.
        """
        sampler, own = sampler_for(self._owner, given, seed, rank, world_size)
        try:
            drawing = SamplerSession(self, view, sampler, own, min_size, count, check)
        except BaseException:
            if own:
                self._owner.let_go_of(sampler)
            raise
        return drawing


_warm = False


def is_warm() -> bool:
    """Whether this process has done `warm`."""
    return _warm


def warm() -> None:
    """Compile what a served table calls, or load it: seconds where nothing is cached, which would be silence in a loop. Once."""
    global _warm
    if _warm:
        return
    schema = {"x": Field((), np.dtype(np.float32), next="y"), "big": ((1 << 10,), np.float32), "reward": np.float32}
    for made, sampler in (({"x": np.float32}, Uniform()), (schema, Prioritized(0.5)), ({"x": np.float32}, Fifo())):
        table = ServedTable(ReplayBuffer(16, made, sampler=sampler, seed=0))
        columns = [np.zeros((4, *field.shape), field.dtype) for field in table.schema.fields] if table.schema else []
        flags = np.array([0, 0, TRUNCATED, FINAL])
        table.insert(Incoming(np.full(4, table.stream(0)), flags, np.full(4, np.nan), columns), 0)
        table.insert(Incoming(np.full(4, table.stream(0)), np.zeros(4, np.int64), np.full(4, np.nan), columns), 0)
        table.end([0])
        for view in (None, Transitions(n_steps=2, gamma=0.9)) if len(columns) > 1 else (None,):
            drawing = table.drawing(view, 0, 1, None)
            drawing.why_not(2)
            drawing.arrays(2)
            drawing.close()
        if type(sampler) is Prioritized:
            table.prioritize(np.zeros(1, np.int64), np.ones(1))
        table.buffer.close()
    note_kept()
    _warm = True


def _from_row(fields: Ids, row: int) -> Ids:
    """The same sources, from a later row on."""
    if not row:
        return fields
    moved = fields.copy()
    moved[:, 3] += row * moved[:, 4]
    return moved


class SamplerSession:
    """How one learner's batches are drawn. Made by `ServedTable.drawing`."""

    def __init__(
        self, table: ServedTable, view: Transitions | None, sampler: Sampler, own: bool, min_size: int = 1, count: int = 0,
        check: Callable[[Schema], None] | None = None,
    ) -> None:  # fmt: skip
        self._table, self._view, self._sampler, self._own = table, view, sampler, own
        self._min_size = min_size
        owner = table._owner
        if check is not None:
            assert owner.schema is not None
            check(ReadPlan.of(owner.schema, owner.view if view is None else view, weighted=sampler.weighted).schema)
        self._read_plan = table._out.read_plan(view, sampler, count, min_size)
        self._reader: ReplayReader | None = None

    @property
    def schema(self) -> Schema:
        """Of a batch's rows, with ``index``, and ``weight`` where the sampler has weights."""
        return self._read_plan.schema

    @property
    def index_place(self) -> int:
        """Which of the fields of `schema` is ``index``."""
        return [field.name for field in self.schema.fields].index("index")

    def why_not(self, count: int) -> str | None:
        """Why so many cannot be drawn now, in numbers. Raises ConfigError if they never can be."""
        owner = self._table._owner
        with owner.lock:
            owner.check_open()
            return self._table._out.why_not(self._sampler, count, self._min_size)

    def most(self, count: int) -> int:
        """How many can be drawn at once now, up to ``count``."""
        owner = self._table._owner
        with owner.lock:
            drawable = owner.table.drawable(self._sampler)
            limits = owner.limits
        most = count if drawable is None else min(count, drawable)
        return most if limits is None else min(most, limits.sampleable())

    def arrays(self, count: int) -> Sequence[npt.NDArray[Any]]:
        """A batch: an array ``[count, *shape]`` per field of `schema`, in memory of its own. `why_not` said ``None``."""
        return self._table._out.arrays(self._sampler, count, self._view, 0.0)

    def target(self, arrays: Sequence[npt.NDArray[Any]]) -> Target:
        """Memory of somebody's for `fill`: an array ``[count, *shape]`` per field of `schema`, C order."""
        if self._reader is None:
            self._reader = ReplayReader(self._table._owner.table.storage, self._read_plan)
        return self._reader.target(arrays)

    def fill(self, target: Target) -> None:
        """As `arrays`, the same rows, into a target of this drawing's. `why_not` said ``None``."""
        assert self._reader is not None
        self._table._out.fill(self._reader, self._sampler, target)

    def close(self) -> None:
        """Nobody draws with it any more."""
        if self._own:
            owner = self._table._owner
            owner.let_go_of(self._sampler)
            with owner.lock:
                owner.table.let_go()
