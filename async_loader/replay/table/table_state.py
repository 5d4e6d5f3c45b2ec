"""What the threads of a table's process share: the lock, the table under it, its limits, and who
waits. Reads no row.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Container

import numpy as np

from async_loader.errors import Closed, ConfigError, Unsupported
from async_loader.lifecycle import seconds_or_none
from async_loader.replay.arguments import storable
from async_loader.replay.base.row_format import DEPTH, LOOKAHEAD
from async_loader.replay.limiter_state import LimiterState, check_room
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.samplers import Fifo, Sampler
from async_loader.replay.samplers.priority_rules import unused
from async_loader.replay.table.process_writers import ProcessWriters
from async_loader.replay.table.step_packer import StepPacker
from async_loader.replay.table.storage import Storage, StorageLayout
from async_loader.replay.table.table import Table
from async_loader.replay.table.waiters import Waiters
from async_loader.replay.views import ReadPlan, Transitions, links
from async_loader.schema import Schema


class TableState:
    """The table, once its schema is known, and everything that decides who may do what to it.

    Parameters
    ----------
    capacity, max_bytes : int | None
        In steps, in bytes; at least one of them.
    sampler, remover : Sampler
    limiter : RateLimiter | None
    max_times_sampled : int
    seed : int | None
    view : Transitions | None
        What batches show unless a call says otherwise.
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
        view: Transitions | None = None,
    ) -> None:
        if capacity is not None:
            check_room(limiter, capacity, capacity)
        self.capacity, self.max_bytes = capacity, max_bytes
        self.sampler, self.remover = sampler, remover
        self.max_times_sampled = max_times_sampled
        self.view = view
        self.seeds = _seeds(seed)
        self._limits = None if limiter is None else LimiterState(limiter)
        self.lock = threading.Lock()
        self.waiters = Waiters(self.lock)
        self.foreign = self.closed = False
        self.writers: ProcessWriters | None = None
        self.schema: Schema | None = None
        # whether anything here goes by priorities
        self.prioritized = sampler.prioritized or remover.prioritized
        self._table: Table | None = None
        self._step_packer: StepPacker | None = None
        # whether anything here is read through the steps beside it; see `_link`
        self.linked = links(view)
        self.default_thread = 0  # which adds to the default stream, of a linked table

    def forked(self) -> None:
        """In the child of a fork: what it has is a copy, and a thread of the parent may have held
        the lock.
        """
        self.foreign = True
        self.lock = threading.Lock()
        self.waiters = Waiters(self.lock)
        if self._table is not None:
            self._table.part()
        if self.writers is not None:
            # again, perhaps: a buffer and its writers do not know who is first
            self.writers.forget()
            self.writers = None

    @property
    def no_priorities(self) -> str | None:
        """Say why steps have no priorities here; ``None`` if they may have them."""
        return None if self.prioritized else unused(self.sampler, self.remover)

    def attach(self, sampler: Sampler) -> None:
        """Tell one more sampler, which is bound, of the items that there are and will be.

        Under the lock.
        """
        self.table.attach(sampler)
        self.prioritized |= sampler.prioritized

    def let_go_of(self, sampler: Sampler) -> None:
        """Detach a sampler at the table's next change.

        Without the lock: a finalizer may call this while it is held.
        """
        leaving = self.table.leaving
        leaving.append(sampler)
        self.prioritized = any(
            one.prioritized and one not in leaving for one in tuple(self.table.prioritized)
        )

    @property
    def ready(self) -> bool:
        """Whether there is a table."""
        return self._table is not None

    @property
    def table(self) -> Table:
        assert self._table is not None
        return self._table

    @property
    def step_packer(self) -> StepPacker:
        assert self._step_packer is not None
        return self._step_packer

    @property
    def limits(self) -> LimiterState | None:
        """The limiter, with the counts of this moment. Under the lock."""
        limits = self._limits
        if limits is not None and self._table is not None:
            table = self._table
            limits.inserted, limits.sampled, limits.deleted = (
                table.inserted,
                table.sampled,
                table.deleted,
            )
            limits.waiting = 0 if self.max_times_sampled else table.waiting
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
            self._limits = None if limiter is None else LimiterState(limiter)
            if self._table is not None:
                self._table.keeps = self._keeps(self._table.storage.layout.capacity)
            if self.writers is not None:
                self.writers.follow(self.limits)
            self.waiters.ring()

    def own(self) -> Table:
        """The table, to be changed. Under the lock; raises Unsupported in a fork."""
        if self.foreign:
            raise Unsupported(
                "only the process that made a replay buffer adds to it: add from there, or through "
                "a writer_handle()"
            )
        self.check_open()
        self.catch_up()
        return self.table

    def check_open(self) -> None:
        """Raise Closed after `close`."""
        if self.closed:
            raise Closed(
                "this replay buffer was closed: nothing is added to it or drawn from it any more"
            )

    # -- writers in other processes ----------------------------------------------------------------

    def catch_up(self) -> None:
        """Complete what Ctrl-C interrupted, and take in what writers in other processes have
        published. Under the lock.
        """
        if self._table is not None:
            self._table.finish()
        if self.writers is not None and self.writers.adopt() and self.waiters.anybody:
            self.waiters.ring()

    def count_items(self) -> int:
        """Return how many items can be drawn."""
        with self.lock:
            self.catch_up()
            return 0 if self._table is None else len(self._table)

    def _keeps(self, capacity: int) -> bool:
        """Whether no item may be overwritten before it was drawn.

        See room.py, NOTE [queue tables].
        """
        limiter = self.limiter
        return limiter is not None and limiter.hands_out_all(self.max_times_sampled, capacity)

    def has_room(self, rows: int, streams: Container[int] = ()) -> bool:
        """Whether ``rows`` rows may be written to these streams without overwriting what a queue
        has promised. Under the lock.
        """
        table = self._table
        return table is None or not table.keeps or table.room_for(streams) >= rows

    def may_insert(self, count: int, rows: int = 1, streams: Container[int] = ()) -> bool:
        """Whether ``count`` steps of ``streams`` may be inserted at once, into ``rows`` rows. Under
        the lock.

        What writers in other processes may be writing counts as inserted.
        """
        limits = self.limits
        if limits is None:
            return True
        if not self.has_room(rows, streams):
            return False
        return (
            limits.may_insert_together(count)
            if self.writers is None
            else self.writers.may_insert(limits, count)
        )

    def why_not_insert(
        self, count: int = 1, rows: int = 1, streams: Container[int] = ()
    ) -> str | None:
        """Why `may_insert` says no, in numbers. Under the lock."""
        limits = self.limits
        if limits is None or self.may_insert(count, rows, streams):
            return None
        full = limits.may_insert_together(count) and not self.has_room(rows, streams)
        return self.table.why_full() if full else limits.why_not_insert(count)

    def end_writers(self) -> None:
        """End the thread that serves writers of other processes, for a load. Not under the lock.

        Raises
        ------
        ConfigError
            While there are any: they fill rows whose ids the load changes.
        """
        with self.lock:
            writers = self.writers
            if writers is None:
                return
            self.catch_up()
            if there := writers.described():
                raise ConfigError(
                    "a load changes the rows that writers of other processes fill, and there are "
                    f"{there}: close them, "
                    "and handles that were not opened, before"
                )
        writers.close(None)
        with self.lock:
            self.writers = None if self.writers is writers else self.writers

    def own_alone(self) -> None:
        """Raise unless this process may put other contents into the table. Under the lock."""
        self.check_open()
        if self.foreign:
            raise Unsupported("only the process that made a replay buffer loads into it")
        if self.writers is not None:
            raise ConfigError(
                "a writer of another process came while the load began: close it, and load again"
            )
        self.catch_up()

    def close(self, timeout_s: float | None) -> None:
        """Close the table: tell its writers, end their thread, and wake every waiting call."""
        seconds_or_none("timeout_s", timeout_s)
        with self.lock:
            if self.foreign:
                return
            self.closed = True
            writers = self.writers
            self.waiters.ring()
        if writers is not None:
            writers.close(timeout_s)

    # -- the beginning -----------------------------------------------------------------------------

    def start(self, schema: Schema) -> None:
        """Allocate, if no other thread was faster."""
        with self.lock:
            if self._table is None:
                self.allocate(schema)

    def allocate(self, schema: Schema, layout: StorageLayout | None = None) -> None:
        """Allocate, ``layout`` if it is that of a checkpoint.

        Raises what the constructor of a ReplayBuffer does.
        """
        storable(schema)
        ReadPlan.of(schema)  # a next= that cannot be delivered shows here
        linked = [field.name for field in schema.fields if field.linked]
        if linked and type(self.remover) is not Fifo:
            raise ConfigError(
                f"field {linked[0]!r} has a stack or a next, which are read from its neighbours, "
                f"and {self.remover!r} takes "
                "those out of order: use the Fifo remover, or store what a step needs in it"
            )
        if self.view is not None:
            ReadPlan.of(schema, self.view)
        loaded, layout = layout is not None, layout or self.layout_of(schema)
        storage = Storage.create(layout)
        for_sampler, for_remover = self.seeds.spawn(2)
        table = Table(
            storage,
            [self.sampler],
            self.remover,
            for_remover,
            self.max_times_sampled,
            self._keeps(layout.capacity),
        )
        try:
            self.check_view(table, table.schema_lookahead)
        except ConfigError as error:
            if not loaded:
                raise
            warnings.warn(
                f"the checkpoint's settings cannot work: {error}", UserWarning, stacklevel=2
            )
        if not loaded:
            self._see(table, schema)
        self.sampler.bind(table.items, for_sampler)
        self._step_packer = StepPacker(layout, storage.base)
        self.capacity, self.schema = layout.capacity, schema
        self._link(table)
        self._table = table

    def _see(self, table: Table, schema: Schema) -> None:
        if self.view is not None:
            self.look_ahead(ReadPlan.of(schema, self.view), table)

    def look_ahead(self, read_plan: ReadPlan, table: Table | None = None) -> None:
        """From now on items have the successors that this recipe shows.

        Under the lock; raises ConfigError if they cannot.
        """
        table = self.table if table is None else table
        if read_plan.lookahead > table.g[LOOKAHEAD]:
            self.check_look_ahead(read_plan, table)
            table.look_ahead(read_plan.lookahead)
            self._link(table)

    def check_look_ahead(self, read_plan: ReadPlan, table: Table | None = None) -> None:
        """Raise what `look_ahead` raises, of a recipe that needs more successors than items have.

        Under the lock.
        """
        table = self.table if table is None else table
        self.check_view(table, read_plan.lookahead)
        if table.free is not None:
            raise ConfigError(
                f"n_steps={read_plan.n} needs steps that follow each other, and {self.remover!r} "
                "takes them out of order"
            )

    def _link(self, table: Table) -> None:
        self.linked = bool(table.g[DEPTH] > 1 or table.g[LOOKAHEAD] > 0)

    def check_default_stream(self) -> None:
        """Raise ConfigError where two threads add to one open episode of the default stream.

        The table links steps.
        """
        thread = threading.get_ident()
        if thread == self.default_thread:
            return
        with self.lock:
            number = self.table.streams.get(0) if self._table is not None else None
            if self.default_thread and number is not None and self.table.is_open(number):
                raise ConfigError(
                    "another thread has begun the open episode of the default stream, and this "
                    "table links each step to the "
                    "one before it: give each thread a writer() or a stream=... of its own, or "
                    "call end_episode() before"
                )
            self.default_thread = thread

    def begin_again(self) -> Table:
        """Take everything out, and begin another table in the same memory, with the same samplers.

        Under the lock.
        """
        before = self.table
        before.finish()
        before.empty()
        before.storage.geometry = before.storage.fresh_geometry()
        keeps = self._keeps(before.storage.layout.capacity)
        seed = self.seeds  # samplers are bound already
        table = Table(
            before.storage,
            [self.sampler],
            self.remover,
            seed,
            self.max_times_sampled,
            keeps,
            successor_of=before,
        )
        self._table, self.default_thread = table, 0
        return table

    def go_on(self, lookahead: int) -> None:
        """After a load: items have the successors that the table's view needs, and all others so
        far. Under the lock.
        """
        table = self.table
        table.look_ahead(lookahead)
        self._see(table, table.storage.layout.schema)
        self._link(table)
        self.waiters.ring()

    def check_view(self, table: Table, lookahead: int) -> None:
        """Raise ConfigError for items that need more steps around them than the table keeps, or
        than leave enough of them.
        """
        surely, capacity = table.surely(lookahead), table.storage.layout.capacity
        if not surely:
            depth = int(table.g[DEPTH])
            around = " and ".join(
                part
                for part in (
                    f"{depth - 1} before it" * (depth > 1),
                    f"{lookahead} after it" * (lookahead > 0),
                )
                if part
            )
            most = capacity - depth
            remedy = f"use n_steps of {most} or less, or " if lookahead > 1 and most > 0 else ""
            raise ConfigError(
                f"an item needs its step and {around}, and the table keeps {capacity:,} steps: "
                f"{remedy}"
                f"raise the capacity to {depth + lookahead:,} or more"
            )
        check_room(self.limiter, capacity, surely)

    def layout_of(self, schema: Schema) -> StorageLayout:
        """Of as many steps as were asked for."""
        if self.max_bytes is not None:
            return StorageLayout.within(schema, self.max_bytes, self.capacity)
        assert self.capacity is not None
        return StorageLayout.of(schema, self.capacity)


def _seeds(seed: int | None) -> np.random.SeedSequence:
    try:
        return np.random.SeedSequence(seed)
    except (TypeError, ValueError):
        raise ConfigError(f"seed={seed!r}: it must be an integer of 0 or more, or None") from None
