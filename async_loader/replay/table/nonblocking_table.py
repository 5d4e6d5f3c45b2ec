"""A table for the loop of a server: no call waits, and a row lies in memory once.

Steps come as columns that lie in messages, and are copied from there into the table. What cannot
go on now is tried again by the caller when the table has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from async_loader.errors import SchemaError
from async_loader.replay.arguments import floats_of, ids_of
from async_loader.replay.array_types import Array, Bools, Floats, Ids
from async_loader.replay.base.row_format import AWAITS, CURSOR, ENDS, FINAL, HEAD, TRUNCATED
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.samplers import Sampler
from async_loader.replay.table.by_id import SharedTable
from async_loader.replay.table.rebuild import oldest_shown
from async_loader.replay.table.records import RowSource
from async_loader.replay.table.source_sampler import (
    NewestOf,
    SamplerSession,
    nothing_published,
    sampler_for,
)
from async_loader.replay.views import View
from async_loader.schema import Schema
from async_loader.source import Applied

Position = tuple[str, int, int]
"""Of a producer, by the text of its key: inserts that are in the table, and rows of the next one
that are, as not all of them had room."""
_TEXT = 512
"""Characters of a reason that fit into a message."""


@dataclass(frozen=True, slots=True, eq=False)
class Incoming:
    """Steps on their way into a table, ``[rows]`` each.

    Attributes
    ----------
    streams : int64
        The table's numbers of streams; see `NonblockingTable.stream`.
    flags : int64
        How each step stands in its episode: TERMINATED, TRUNCATED. FINAL alone: no step, but the
        observation after the row before it. FINAL with one of the other two: the episode of that
        stream ended after its last step, in that way; the row holds the observation after it if
        it is SHOWN too, else that observation is unknown.
    priorities : float64
        NaN: none given.
    columns : list of arrays [rows, *shape]
        One for each field of the schema; may be strided from row to row.
    seen : bool
        Whether a learner may have had them already, from a server that has ended.
    """

    streams: Ids
    flags: Ids
    priorities: Floats
    columns: list[Array]
    seen: bool = False

    def __len__(self) -> int:
        return len(self.streams)


class NonblockingTable:
    """A table as a server uses it. One thread; no call waits.

    It is the public seam between a table and a feeder: made as
    ``NonblockingTable(async_loader.replay.buffer.shared_table(buffer))``.

    Parameters
    ----------
    table_state : SharedTable
        Of the buffer that is served.

    Attributes
    ----------
    ahead : callable
        Returns how many drawn items still hold their places: see `BatchScheduler.rows_ahead`.
    """

    def __init__(self, table_state: SharedTable) -> None:
        self._table_state = table_state
        with self._table_state.lock:
            self._table_state.served = True  # it reads the table without catching up
            self._table_state.catch_up()
            self._table_state.gather()
        # Ids of rows that a learner may have had from an earlier server.
        self._seen: set[int] = set()
        self.ahead: Callable[[], int] = lambda: 0
        self.before_insert: Callable[[int], None] = lambda rows: None
        self.kept = table_state.kept
        if self.kept is not None:
            self._begin_kept()

    def _begin_kept(self) -> None:
        """Let a kept table know that learners confirm rows, before one is drawn."""
        kept, state = self.kept, self._table_state
        kept.leases = self.leased
        if self.leased and state.ready:
            with state.lock:
                self._seen.update(kept.seen.tolist())
                kept.confirm_all(kept.told)
                kept.commit()

    def note_position(self, position: Position) -> None:
        """Have a kept table know a producer's position, as a save has it."""
        if self.kept is not None and self._table_state.ready:
            with self._table_state.lock:
                self.kept.commit(position)

    # -- rows of a kept queue ----------------------------------------------------------------------

    def confirm(self, ids: Ids) -> None:
        """Note rows that their learners have used."""
        ids = ids[self.holds(ids)]
        self.kept.told[ids % len(self.kept.told)] = ids + 1

    def confirm_all(self) -> None:
        """Note that no row that was drawn comes again."""
        if self._table_state.ready:
            self.kept.confirm_all()

    def is_confirmed(self, name: int) -> bool:
        """Return whether a row was confirmed."""
        return bool(self.kept.told[name % len(self.kept.told)] == name + 1)

    def holds(self, ids: Ids) -> Bools:
        """Return which ids are those of rows, drawn or not."""
        known = self._table_state.table.ids
        found: Bools = known[ids % len(known)] == ids
        return found

    def moves_over(self, name: int, rows: int) -> bool:
        """Return whether an item of this id may leave the rows before ``rows`` more are written."""
        table = self._table_state.table
        if table.free is not None:
            return True
        place = np.array([name % len(table.ids)])
        oldest = int(oldest_shown(table, table.ids, place)[0])
        return oldest < int(table.g[CURSOR]) + rows - table.window

    def __len__(self) -> int:
        """Return how many items can be drawn."""
        return self._table_state.count_items()

    @property
    def schema(self) -> Schema | None:
        return self._table_state.schema

    @property
    def view(self) -> View | None:
        return self._table_state.view

    @property
    def closed(self) -> bool:
        return self._table_state.closed

    @property
    def counts(self) -> tuple[int, int]:
        """Items inserted, and items drawn, since the table was cleared last. Takes no lock."""
        table = self._table_state.table if self._table_state.ready else None
        return (0, 0) if table is None else (table.inserted, table.sampled)

    @property
    def steps_had(self) -> int:
        """How many items were inserted since the table was made. Takes no lock."""
        return self._table_state.steps_had

    @property
    def uses_up(self) -> bool:
        """Whether a draw changes what later draws may have."""
        return self._table_state.limiter is not None or bool(self._table_state.max_times_sampled)

    @property
    def limited(self) -> bool:
        """Whether there is a limiter, which a draw may wait for."""
        return self._table_state.limiter is not None

    @property
    def leased(self) -> bool:
        """Whether each item is drawn once, so that a learner has to return what it did not use."""
        return self._table_state.max_times_sampled == 1

    @property
    def takes(self) -> int | None:
        """How many items a queue takes now; ``None``: the table is no queue."""
        if not self.is_queue:
            return None
        with self._table_state.lock:
            limits = self._table_state.limits
            assert limits is not None
            return max(0, limits.insertable() - self.ahead())

    @property
    def is_queue(self) -> bool:
        """Whether no item is overwritten before it was drawn as often as it may be."""
        limiter, capacity = self._table_state.limiter, self._table_state.capacity
        times = self._table_state.max_times_sampled
        return limiter is not None and limiter.hands_out_all(times, capacity or 0)

    @property
    def no_priorities(self) -> str | None:
        """Why steps have no priorities here, cut to a message's length; ``None`` if they may."""
        why = self._table_state.no_priorities
        return None if why is None else why[:_TEXT]

    def nothing(self, count: int) -> Exception:
        """Return what `ReplayBuffer.sample` raises for too few items without a limiter."""
        with self._table_state.lock:
            return self._table_state.not_enough(count)

    def begin_anew(self) -> None:
        """Forget the ids of rows, after another save was loaded into the table."""
        self._seen.clear()

    def start(self, schema: Schema) -> None:
        """Allocate the table for steps of this schema, which the first writer gives.

        Raises SchemaError, ConfigError and OutOfMemory as a ReplayBuffer does.
        """
        self._table_state.start(schema)

    # -- in ----------------------------------------------------------------------------------------

    def stream(self, name: Hashable) -> int:
        """Return the number of a stream, valid until `release`."""
        table = self._table_state.table
        with self._table_state.lock:
            number = table.stream(name)
            table.hold((number,))
        return number

    def is_open(self, number: int) -> bool:
        """Return whether the stream has an open episode."""
        return self._table_state.table.is_open(number)

    def release(self, numbers: Sequence[int]) -> None:
        """These numbers are not used any more.

        Streams whose episodes are open are found again by their names.
        """
        with self._table_state.lock:
            self._table_state.table.release(numbers)

    def check(self, steps: Incoming) -> None:
        """Raise SchemaError or ConfigError for steps that `insert` could not take.

        Changes nothing.
        """
        finals = np.flatnonzero(steps.flags & (FINAL | ENDS) == FINAL)
        if len(finals):
            if not self._table_state.step_packer.followed:
                raise SchemaError("no field of this table shows final observations")
            before = finals - 1
            fits = (
                (before >= 0)
                & (steps.flags[before] & ENDS != 0)
                & (steps.flags[before] & FINAL == 0)
            )
            fits &= steps.streams[before] == steps.streams[finals]
            if not fits.all():
                wrong = int(finals[np.flatnonzero(~fits)[0]])
                raise SchemaError(
                    f"row {wrong} is a final observation, and the row before it does not end its "
                    "episode"
                )
        if self._table_state.prioritized:
            self._table_state.checked(steps.priorities)

    def insert(
        self,
        steps: Incoming,
        start: int,
        went_in: Callable[[int], Position | None] = lambda done: None,
    ) -> int:
        """Insert as many steps from row ``start`` on as the limiter allows now.

        Returns the row after the last inserted one. ``went_in`` is called with it under the lock,
        so that a save knows of these rows, or has none of them. It returns the position of their
        producer, which a kept table has from then on.
        """
        heads = np.empty(len(steps), HEAD)
        heads["stream"], heads["priority"] = steps.streams, steps.priorities
        heads["flags"] = steps.flags
        heads["flags"][np.flatnonzero(steps.flags & (FINAL | ENDS) == FINAL) - 1] |= AWAITS
        ids, kept = np.empty(len(steps), np.int64), self.kept
        self.before_insert(len(steps) - start)
        with self._table_state.lock:
            source = RowSource.of(self._table_state.own().fields_of(steps.columns), heads)
            if kept is not None:
                kept.held = True
            try:
                stop = self._table_state.insert(source, ids, start, self.ahead())
            finally:
                if kept is not None:
                    kept.held = False
            if steps.seen and self.leased:
                self._note_seen(ids[start:stop][steps.flags[start:stop] & FINAL == 0])
            position = went_in(stop)
            if kept is not None:
                kept.commit(position)
        return stop

    def end(self, streams: Sequence[int]) -> None:
        """End the open episodes of these streams as truncated: their writer has gone."""
        with self._table_state.lock:
            self._table_state.own().end(streams, TRUNCATED)

    def why_not_insert(self) -> str | None:
        """Say in numbers why the limiter allows no insertion; ``None`` if it does."""
        with self._table_state.lock:
            why = self._table_state.why_not_insert(
                1, 2 if self._table_state.ready and self._table_state.step_packer.followed else 1
            )
            if why is None and (ahead := self.ahead()):
                why = f"{ahead} places are held by rows that learners were sent ahead"
            return why

    def prioritize(self, ids: Ids, priorities: Floats) -> Applied:
        """As `ReplayBuffer.update_priorities`. Copies arrays of a message, which are read-only."""
        return self._table_state.prioritize(ids_of(ids), floats_of(priorities, "priority"))

    def _note_seen(self, ids: Ids) -> None:
        """Remember rows until they are drawn.

        Ids of rows that were overwritten instead are dropped when the set grows beyond twice the
        capacity.
        """
        self._seen.update(ids.tolist())
        if self.kept is not None:
            self.kept.told[ids % len(self.kept.told)] = -1 - ids
        most = 2 * (self._table_state.capacity or len(ids))
        if len(self._seen) > most:
            least = int(ids.max()) - most
            self._seen = {one for one in self._seen if one > least}

    def note_restored(self) -> None:
        """The process that saved these rows was killed: a learner may have had any of them."""
        with self._table_state.lock:
            if self.leased and self._table_state.ready:
                table = self._table_state.table
                self._note_seen(table.ids[table.items.alive != 0])

    @property
    def has_seen(self) -> bool:
        """Whether a learner may have had any row before."""
        return bool(self._seen)

    def take_seen(self, ids: Ids) -> Bools:
        """Return which of these rows, drawn for the last time, a learner may have had before."""
        if not self._seen:
            return np.zeros(len(ids), np.bool_)
        found = np.array([one in self._seen for one in ids.tolist()], np.bool_)
        self._seen.difference_update(ids.tolist())
        return found

    @property
    def stale_by_reason(self) -> dict[str, int]:
        """Steps that readers with ``max_lag`` have left out, by reason: see `LagSampler`."""
        with self._table_state.lock:
            return dict(self._table_state.left_out_by)

    # -- out ---------------------------------------------------------------------------------------

    def drawing(
        self,
        view: View | None,
        rank: int,
        world_size: int,
        seed: int | None,
        given: Sampler | None = None,
        min_size: int = 1,
        check: Callable[[Schema], None] | None = None,
        max_lag: int | None = None,
        masses: bool = False,
        newest_of: NewestOf = nothing_published,
    ) -> SamplerSession:
        """Begin to draw for one learner, as `ReplayBuffer.source`. The table has a schema.

        Parameters
        ----------
        given : Sampler, optional
            The learner's own, which is told of every item from now on.
        check : callable, optional
            Called with the schema of its batches before the table adapts to ``view``; may raise.
        masses : bool
            See `sampler_for`.
        newest_of : callable
            Asked once, for a ``max_lag``; later versions are told to `SamplerSession.publish`.
        """
        if check is not None:
            check(
                self.shown(view, (self._table_state.sampler if given is None else given).weighted)
            )
        chosen = sampler_for(
            self._table_state, given, seed, rank, world_size, view, max_lag, newest_of, masses
        )
        try:
            return SamplerSession(self._table_state, view, chosen, min_size)
        except BaseException:
            if chosen.own is not None:
                self._table_state.let_go_of(chosen.own)
            raise

    def shown(self, view: View | None, weighted: bool = False) -> Schema:
        """Return the schema of batches that show a view; it changes nothing."""
        stored, own = self._table_state.schema, self._table_state.view
        assert stored is not None
        shown = own if view is None else view
        return ReadPlan.of(stored, shown, weighted=weighted).schema

    def count_there(self, ids: Ids) -> int:
        """Return how many of these ids are those of rows; one that is named twice counts twice."""
        with self._table_state.lock:
            self._table_state.catch_up()
            return int(np.count_nonzero(self._table_state.table.find(ids) >= 0))
