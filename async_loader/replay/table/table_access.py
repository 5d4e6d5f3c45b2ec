"""What the threads of a table's process share: the lock, the table under it, its limits, the
waiting calls.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from async_loader import process_hooks
from async_loader.errors import Closed, ConfigError, Unsupported
from async_loader.replay.array_types import Ids
from async_loader.replay.base.row_format import LOOKAHEAD
from async_loader.replay.limiter_arithmetic import LimiterState, check_room
from async_loader.replay.rate_limiter import RateLimiter, check_sequences
from async_loader.replay.samplers import Sampler
from async_loader.replay.samplers.priority_rules import unused
from async_loader.replay.table.lag_sampler import REASONS
from async_loader.replay.table.sequence_sampler import SequenceSampler
from async_loader.replay.table.step_packer import StepPacker
from async_loader.replay.table.storage import RowParts
from async_loader.replay.table.table import Table
from async_loader.replay.table.waiters import Waiters
from async_loader.replay.views import Sequences, View, links
from async_loader.schema import Schema
from async_loader.validation import seed_of

_KNOWN = "async_loader.replay.samplers."
"""Where samplers are that raise no error when they are told of items."""


class TableAccess:
    """Access to a table: who may change it, and when. The lower part of `TableState`.

    Parameters
    ----------
    capacity, max_bytes : int | None
        In steps, in bytes; at least one of them.
    sampler, remover : Sampler
    limiter : RateLimiter | None
    max_times_sampled : int
    seed : int | None
    view : View | None
        What batches show unless a call says otherwise.
    folder : str | None
        On whose disk the steps are kept; ``None``: in memory.
    kept, recover : KeptFile | None, callable
        The named file that holds the table, and what has the table go on with what is there.
    """

    def __init__(
        self,
        capacity: int | None,
        max_bytes: int | None,
        sampler: Sampler,
        remover: Sampler,
        limiter: RateLimiter | None,
        max_times_sampled: int,
        seed: int | None,
        view: View | None = None,
        folder: str | None = None,
        kept: Any = None,
        recover: Callable[[Table, Any], None] = lambda table, kept: None,
    ) -> None:
        if capacity is not None:
            check_room(limiter, capacity, capacity)
        if isinstance(view, Sequences):  # of a number of bytes it is known with the schema
            steps = sys.maxsize if capacity is None else capacity
            check_sequences(view, steps, steps, limiter, max_times_sampled)
        self.capacity, self.max_bytes = capacity, max_bytes
        self.sampler, self.remover = sampler, remover
        self.max_times_sampled = max_times_sampled
        self.view, self.folder = view, folder
        self.kept, self._recover = kept, recover
        self.seeds = np.random.SeedSequence(None if seed is None else seed_of(seed))
        self._limits = None if limiter is None else LimiterState(limiter)
        self.lock = self._new_lock()
        self.waiters = Waiters(self.lock)
        self.foreign = self.closed = False
        self.schema: Schema | None = None
        # Whether the sampler, the remover or a source's sampler uses priorities.
        self.prioritized = sampler.prioritized or remover.prioritized
        self._table: Table | None = None
        # Whether items are read with the steps beside them; see `_link`.
        self.linked = links(view)
        # Whether something reads the table without `catch_up`: nothing is gathered then.
        self.served = False
        self.needs_priority = False  # a step without one may be refused
        # Steps that samplers left out because of their lag, by reason: see LagSampler.
        self.left_out_by = dict.fromkeys(REASONS, 0)
        # Ids of items to be ended: see `end_later`.
        self._ending: Ids | None = None
        # What draws the sequences of each view; see TableState.sequence_sampler.
        self.sequence_samplers: dict[Sequences, SequenceSampler] = {}
        self.default_thread = 0  # the thread that adds to the default stream of a linked table
        _all.add(self)

    def _new_lock(self) -> threading.Lock:
        return threading.Lock()

    def forked(self) -> None:
        """In a forked child: have no part in the table of the parent.

        The lock is another, since a thread of the parent may have held it.
        """
        self.foreign, self.lock = True, self._new_lock()
        if self.kept is not None:
            self.kept.close()
        self.waiters = Waiters(self.lock)
        if self._table is not None:  # what is not whole is the parent's to write
            self._table.records.count, self._table.unfinished = 0, False
            self.gather()

    @property
    def no_priorities(self) -> str | None:
        """Say why steps have no priorities here; ``None`` if they may have them."""
        return None if self.prioritized else unused(self.sampler, self.remover)

    def attach(self, sampler: Sampler) -> None:
        """Attach a sampler, which is bound: tell it of all items, present and future.

        Under the lock.
        """
        self.table.finish()
        self.table.attach(sampler)
        self.prioritized |= sampler.prioritized
        self.gather()

    def let_go_of(self, sampler: Sampler) -> None:
        """Detach a sampler at the table's next change.

        Takes no lock: a finalizer may call this while it is held.
        """
        leaving = self.table.leaving
        leaving.append(sampler)
        self.prioritized = any(
            one.prioritized and one not in leaving for one in tuple(self.table.prioritized)
        )
        self.needs_priority &= self.prioritized

    def held(self) -> AbstractContextManager[object]:
        """Return what keeps others from changing the table while it is saved or loaded."""
        return nullcontext()

    @property
    def shown_schema(self) -> Schema | None:
        """What a step is to users; ``schema``: in the rows here."""
        return self.schema

    @property
    def saved_rows(self) -> RowParts:
        """The rows, as saves have them."""
        return self.table.storage

    @property
    def nbytes(self) -> int:
        """Of all rows."""
        return self.table.storage.layout.nbytes

    @property
    def ready(self) -> bool:
        """Whether the table is allocated."""
        return self._table is not None

    @property
    def table(self) -> Table:
        assert self._table is not None
        return self._table

    @property
    def step_packer(self) -> StepPacker:
        return self.table.packer

    @property
    def limits(self) -> LimiterState | None:
        """The limiter, with the counts of this moment. Under the lock."""
        limits = self._limits
        if limits is not None and self._table is not None:
            table = self._table
            limits.inserted, limits.sampled, limits.deleted = (
                table.inserted,
                table.sampled - table.carried + (table.lost if table.keeps else 0),
                table.deleted,
            )
        return limits

    @property
    def limiter(self) -> RateLimiter | None:
        return None if self._limits is None else self._limits.config

    @limiter.setter
    def limiter(self, limiter: RateLimiter | None) -> None:
        if self.ready:
            table = self.table
            check_room(limiter, self.capacity or 0, table.surely(int(table.g[LOOKAHEAD])))
        elif self.capacity is not None:
            check_room(limiter, self.capacity, self.capacity)
        with self.lock:
            self.catch_up()
            before = self.limiter
            self._limits = None if limiter is None else LimiterState(limiter)
            if self._table is not None:
                self._table.keeps = self._keeps(self._table.storage.layout.capacity)
                self.carry_account(before)
                self.gather()
            self.waiters.ring()

    def carry_account(self, before: RateLimiter | None) -> None:
        """Begin the account of a limiter anew, if ``before`` was another. Under the lock.

        The account of a queue is what waits in it, whatever was its limiter.
        """
        limits, table = self.limits, self.table
        if limits is None or limits.config == before:
            return
        table.carried = 0 if self.max_times_sampled else table.carried + limits.carried()
        if table.kept is not None:
            table.kept.note_counts()

    def own(self) -> Table:
        """Return the table for a change. Under the lock."""
        self.check_open()
        self.catch_up()
        return self.table

    def check_open(self) -> None:
        """Raise Closed after `close`, and Unsupported in a forked child."""
        if self.foreign:
            raise Unsupported(
                "only the process that made a replay buffer uses it: read it elsewhere by the "
                "workers of a loader, or the reader() of its source, and add from there, or "
                'through a feeder (connect("embedded", tables=...) starts one)'
            )
        if self.closed:
            raise Closed(
                "this replay buffer was closed: nothing is added to it or drawn from it any more"
            )

    def catch_up(self) -> None:
        """Write staged steps, and rebuild what an interrupted call left half done.

        Every call that takes the lock and looks at the table calls this first.
        """
        if self._table is not None:
            self._table.finish()
        if self._ending is not None and not self.foreign:
            self._end_some()
            if self.waiters.any_waits:
                self.waiters.ring()

    def publish(self, tell: Callable[[int], None], version: int) -> None:
        """Tell a `LagSampler` of a version, by one of its methods."""
        with self.lock:
            self.catch_up()
            self.table.unfinished = True
            tell(version)
            self.table.unfinished = False
            self.catch_up()

    def end_later(self, rows: Ids) -> None:
        """End the items of these rows when the table is used next. Under the lock, also while the
        table tells its samplers of changes.
        """
        ids = self.table.ids[rows]
        self._ending = ids if self._ending is None else np.concatenate((self._ending, ids))

    def _end_some(self) -> None:
        while self._ending is not None:  # this may leave others out
            ids = self._ending
            self.table.delete(ids)
            self._ending = None if self._ending is ids else self._ending[len(ids) :]

    def gather(self) -> None:
        """Decide how many records a table gathers, see records.py, NOTE [records]. Under the lock.

        Errors of samplers belong to the call that adds the step.
        """
        table = self._table
        if table is None:
            return
        one_by_one = (
            self.served
            or self.closed
            or self.foreign
            or self._limits is not None
            or table.free is not None
            or table.ring is not None
            or self.max_times_sampled > 0
            or any(not type(one).__module__.startswith(_KNOWN) for one in table.samplers)
        )
        table.records.limit = 1 if one_by_one else table.records.capacity - 1
        self.needs_priority = False
        try:
            for sampler in table.prioritized:
                sampler.check(np.full(1, np.nan))
        except ConfigError:
            self.needs_priority = True

    def count_items(self) -> int:
        """Return how many items can be drawn."""
        with self.lock:
            self.catch_up()
            return 0 if self._table is None else len(self._table)

    @property
    def steps_had(self) -> int:
        """How many items were inserted since the table was made. Takes no lock."""
        return 0 if self._table is None else self._table.steps_had

    def _keeps(self, capacity: int) -> bool:
        """Return whether items are kept until they were drawn: streams.py, NOTE [queue tables]."""
        limiter = self.limiter
        return limiter is not None and limiter.hands_out_all(self.max_times_sampled, capacity)

    def has_room(self, rows: int) -> bool:
        """Return whether a queue has ``rows`` rows that hold no item."""
        table = self._table
        return table is None or not table.keeps or table.room(rows) >= rows

    def may_insert(self, count: int, rows: int = 1) -> bool:
        """Return whether ``count`` steps may be inserted together, in ``rows`` rows."""
        limits = self.limits
        return limits is None or (limits.may_insert_together(count) and self.has_room(rows))

    def why_not_insert(self, count: int = 1, rows: int = 1) -> str | None:
        """Say why `may_insert` is false; ``None`` if it is true."""
        limits = self.limits
        if limits is None or self.may_insert(count, rows):
            return None
        full = limits.may_insert_together(count)
        return self.table.why_full() if full else limits.why_not_insert(count)


_all: weakref.WeakSet[TableAccess] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for one in list(_all):
        one.forked()


process_hooks.at_fork(after_in_child=_after_fork_in_child)
