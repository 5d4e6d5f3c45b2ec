"""A table of one process from its first step, or from a save, to its end."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from async_loader.errors import ConfigError
from async_loader.lifecycle import seconds_or_none
from async_loader.replay.arguments import storable
from async_loader.replay.base.row_format import DEPTH, LOOKAHEAD
from async_loader.replay.codec import Lz4
from async_loader.replay.episode_ends import check_end_names
from async_loader.replay.limiter_arithmetic import check_room
from async_loader.replay.rate_limiter import check_sequences
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.samplers import Fifo, Sampler
from async_loader.replay.samplers.binding import like
from async_loader.replay.table.sequence_sampler import SequenceSampler
from async_loader.replay.table.storage import Storage, StorageLayout
from async_loader.replay.table.table import Table
from async_loader.replay.table.table_access import TableAccess
from async_loader.replay.views import Sequences, View
from async_loader.schema import Schema


class TableState(TableAccess):
    """The table, once its schema is known, with its lock, its limits and its waiting calls."""

    def close(self, timeout_s: float | None) -> None:
        """Close the table, and wake every waiting call."""
        seconds_or_none("timeout_s", timeout_s)
        with self.lock:
            self.catch_up()
            self.closed = True
            self.gather()
            self.waiters.ring()
            if self.kept is not None:
                self.kept.close()

    def write_gathered(self) -> None:
        """Write the steps that are gathered, at the end of the buffer or of the process.

        A finalizer calls this. A call that has the lock has written them, so none is waited for.
        """
        if self.lock.acquire(blocking=False):
            try:
                self.catch_up()
            finally:
                self.lock.release()

    def start(self, schema: Schema) -> None:
        """Allocate the table, unless another thread has done so."""
        with self.lock:
            if self._table is None:
                self.allocate(schema)

    def allocate(self, schema: Schema) -> None:
        """Allocate the table, under the lock. Raises what the constructor of ReplayBuffer does."""
        storable(schema)
        shown = ReadPlan.of(schema, self.view)  # what cannot be delivered shows here
        linked = [field.name for field in schema.fields if field.linked]
        if linked and type(self.remover) is not Fifo:
            raise ConfigError(
                f"field {linked[0]!r} has a stack or a next, which are read from its neighbours, "
                f"and {self.remover!r} takes "
                "those out of order: use the Fifo remover, or store what a step needs in it"
            )
        if self.max_bytes is not None:
            layout = StorageLayout.within(schema, self.max_bytes, self.capacity)
        else:
            assert self.capacity is not None
            layout = StorageLayout.of(schema, self.capacity)
        if layout.ring[1]:
            self._check_compressed(layout)
        if self.kept is None:
            storage = Storage.create(layout, self.folder)
        else:
            storage = self.kept.storage(layout, self.remover, self.max_times_sampled)
        for_sampler, for_remover = self.seeds.spawn(2)
        table = Table(
            storage,
            [self.sampler],
            self.remover,
            for_remover,
            self.max_times_sampled,
            self._keeps(layout.capacity),
        )
        if isinstance(self.view, Sequences):
            self._check_sequences(self.view, table)
        check_end_names(schema, self.view)
        self.check_view(table, table.schema_lookahead)
        self.look_ahead(shown, table)
        self.sampler.bind(table.items, for_sampler)
        if self.kept is not None:
            self.kept.adopt(table)
        self.capacity, self.schema = layout.capacity, schema
        self._link(table)
        self._table = table
        self.gather()
        if isinstance(self.view, Sequences):  # from the first step on
            self.follow(self.view)
        if self.kept is not None and self.kept.found:
            self._recover(table, self.kept)
            self._link(table)

    def _check_compressed(self, layout: StorageLayout) -> None:
        """Raise for a table that cannot keep compressed values. Nothing is allocated yet."""
        Lz4()  # raises without its library
        (name, *_) = (field.name for field in layout.schema.fields if field.codec is not None)
        if type(self.remover) is not Fifo:
            raise ConfigError(
                f"field {name!r} has a codec, whose values make room in the order of their steps, "
                f"and {self.remover!r} takes those out of order: use the Fifo remover, or no codec"
            )
        if self._keeps(layout.capacity) and not layout.whole:
            raise ConfigError(
                f"field {name!r} has a codec, max_bytes leaves less than values that do not "
                "compress need, and this table may lose no item before it was drawn: leave "
                "max_bytes out (memory is taken as values come), or leave the codec out"
            )

    def sequence_sampler(self, view: Sequences) -> SequenceSampler:
        """Return what draws the sequences of a view as the table's sampler draws steps.

        One for each view, from its first use on. Raises ConfigError if the table cannot have it.
        """
        with self.lock:
            known = self.sequence_samplers.get(view)
            if known is None:
                check_end_names(self.table.storage.layout.schema, view)
            return self.follow(view) if known is None else known

    def follow(self, view: Sequences, state: dict[str, Any] | None = None) -> SequenceSampler:
        """Make the sampler of a view, which goes on with a ``state`` if one is given.

        Under the lock. Raises what `sequence_sampler` raises.
        """
        self._check_sequences(view, self.table)
        (seeds,) = self.seeds.spawn(1)
        made = self.in_sequences(view, like(self.sampler), seeds)
        if self.kept is not None and view == self.view and len(made.assigned):
            made.assigned = self.kept.in_sequences()
        if state is not None:
            made.restore(state)
        self.attach(made)
        self.sequence_samplers[view] = made
        return made

    def in_sequences(
        self, view: Sequences, sampler: Sampler, seeds: np.random.SeedSequence
    ) -> SequenceSampler:
        """Have a sampler that is bound to no table draw sequences, and keep the successors that
        they need. Under the lock.

        Raises ConfigError if the table cannot show them.
        """
        self._check_sequences(view, self.table)
        self.catch_up()
        self.look_ahead(ReadPlan.of(self.table.storage.layout.schema, view))
        return SequenceSampler(view, sampler, self.table.items, self.table.g, seeds)

    def _check_sequences(self, view: Sequences, table: Table) -> None:
        """Raise ConfigError if the table cannot show these sequences."""
        check_sequences(
            view,
            table.storage.layout.capacity,
            table.surely(1),
            self.limiter,
            self.max_times_sampled,
        )

    def eta_of(self, view: View | None = None) -> float | None:
        """Return the share of the largest error in the priority of a sequence: of this view, the
        table's, or any that was used. ``None`` where no view shows sequences.
        """
        for one in (view, self.view, *self.sequence_samplers):
            if isinstance(one, Sequences):
                return one.eta
        return None

    def look_ahead(self, read_plan: ReadPlan, table: Table | None = None) -> None:
        """Keep the successors that a read plan shows with each item from now on.

        Under the lock; raises ConfigError if the table cannot.
        """
        table = self.table if table is None else table
        if read_plan.sequence is not None:
            table.in_sequences = True
            table.across |= read_plan.sequence.crosses
        if read_plan.lookahead <= table.g[LOOKAHEAD]:
            return
        self.check_view(table, read_plan.lookahead)
        if table.free is not None:
            wanted = (
                "a view of sequences"
                if read_plan.sequence
                else "a view of hindsight goals"
                if read_plan.goals
                else f"n_steps={read_plan.n}"
            )
            raise ConfigError(
                f"{wanted} needs steps that follow each other, and {self.remover!r} "
                "takes them out of order"
            )
        table.look_ahead(read_plan.lookahead)
        self._link(table)

    def _link(self, table: Table) -> None:
        self.linked = bool(table.g[DEPTH] > 1 or table.g[LOOKAHEAD] > 0)

    def check_default_stream(self) -> None:
        """Raise ConfigError if two threads add to one open episode of the default stream.

        The table links steps.
        """
        thread = threading.get_ident()
        if thread == self.default_thread:
            return
        with self.lock:
            self.catch_up()
            number = self.table.streams.get(0) if self._table is not None else None
            if self.default_thread and number is not None and self.table.is_open(number):
                raise ConfigError(
                    "another thread has begun the open episode of the default stream, and this "
                    "table links each step to the one before it: give each thread a writer() or a "
                    "stream=... of its own, or call end_episode() before"
                )
            self.default_thread = thread

    def begin_again(self) -> None:
        """Empty the table, which keeps its memory and samplers. Under the lock."""
        table = self.table
        table.finish()
        table.keeps = self._keeps(table.storage.layout.capacity)
        table.begin_again()
        self.default_thread, self._ending = 0, None
        self.gather()

    def go_on(self, lookahead: int) -> None:
        """Adapt the loaded table to the successors of its view and of the views so far.

        Under the lock.
        """
        table = self.table
        table.look_ahead(lookahead)
        self.look_ahead(ReadPlan.of(table.storage.layout.schema, self.view))
        self._link(table)
        if self.kept is not None:
            self.kept.confirm_all()
            self.kept.note_counts()
        self.waiters.ring()

    def check_view(self, table: Table, lookahead: int) -> None:
        """Raise ConfigError for items that need more steps around them than the table keeps, or
        that leave too few items.
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
                f"{remedy}raise the capacity to {depth + lookahead:,} or more"
            )
        check_room(self.limiter, capacity, surely)
