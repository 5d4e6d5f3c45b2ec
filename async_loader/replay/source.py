"""A table as a source for a loader: it plans batches of ids, and waits for items."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from async_loader.errors import CannotSend, Closed, ConfigError
from async_loader.lifecycle import EventFd, Patience
from async_loader.name_hints import stacklevel
from async_loader.replay.arguments import positive
from async_loader.replay.array_types import Floats, Ids
from async_loader.replay.limiter_arithmetic import LimiterState
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.samplers.binding import RandomNumbers, Seeded
from async_loader.replay.table.batch_arrays import join_index
from async_loader.replay.table.by_id import SharedTable
from async_loader.replay.table.lag_sampler import LagSampler
from async_loader.replay.table.reader import ReplayReader
from async_loader.replay.table.sample import assembled
from async_loader.replay.table.source_sampler import SourceSampler
from async_loader.replay.views import Ragged, Sequences, View
from async_loader.shm.batch_buffer import STAGED_BYTES, ReadyBlock
from async_loader.source import Applied, Ready, Rows
from async_loader.validation import version_of


class ReplaySource:
    """Plans the batches of a table, once it holds ``min_size`` items.

    A `Source`, made by `ReplayBuffer.source`.

    Threads: `plan` by one, all else by any.

    Parameters
    ----------
    table_state : SharedTable
    view : View | None
    chosen : SourceSampler
        Detached by `close` if it is the source's own.
    min_size : int
        Items that `plan` waits for.

    Raises
    ------
    ConfigError
        If ``min_size`` is below 1 or above what the table holds, or the schema forbids the view.
    """

    def __init__(
        self,
        table_state: SharedTable,
        view: View | None,
        chosen: SourceSampler,
        min_size: int,
    ) -> None:
        min_size = positive("min_size", min_size)
        self._table_state, sampler = table_state, chosen.sampler
        self._view, self._sampler, self._goal_seeds = view, sampler, chosen.goal_seeds()
        self._goal_numbers: RandomNumbers | None = None
        self._chosen, self._resumes_at = chosen, dict[str, Any]()
        self._own_reader: ReplayReader | None = None
        self._min_size = min_size
        self._batch_size = 1
        self._closed, self._settled = False, table_state.ready
        self._own: Any = None
        self._wanted: list[int] = []  # batch sizes of the plans that wait
        if table_state.ready:
            self._table_state.read_plan(view, sampler)
            with table_state.lock:
                table_state.check_ever(sampler, 0, min_size)
        if chosen.own is not None:
            self._own = weakref.finalize(self, table_state.let_go_of, chosen.own)
            self._own.atexit = False

    def plan(self, batch_size: int, patience: Patience) -> Rows | Ready:
        """Plan ``batch_size`` items, as the sampler chooses.

        Waits until there are enough, and for the limiter.

        For a table with ``max_times_sampled`` it returns the batch itself, since its rows may be
        overwritten as soon as they were drawn.
        """
        table_state = self._table_state
        if self._closed and self._own is not None:
            raise Closed(
                "this source was closed, and its sampler is told of nothing any more: make another"
            )
        self._batch_size = batch_size
        plan = self._attempt(batch_size)
        if plan is None:
            eventfd = EventFd()
            self._wanted.append(batch_size)
            try:
                waiters = table_state.waiters
                with waiters.ringing(
                    eventfd, eventfd.ring, "sample", lambda: self._why_not(batch_size)
                ):
                    while plan is None:
                        plan = self._attempt(batch_size)
                        if plan is None:
                            patience.wait(eventfd, self.waiting_for() or "steps")
                            # Before looking again: a later addition rings it again.
                            eventfd.clear()
            finally:
                self._wanted.remove(batch_size)
        return plan

    def published(self, version: int) -> None:
        """Tell a source with ``max_lag`` of a policy of which no step may have come yet.

        Raises
        ------
        ConfigError
            If the source was made without ``max_lag``.
        """
        if not isinstance(self._sampler, LagSampler):
            raise ConfigError("this source was made without max_lag, and leaves no version out")
        self._table_state.publish(self._sampler.see, version_of(version))

    @property
    def finishes(self) -> Callable[[Any], Any] | None:
        """See `Finishing`: episodes without padding are made of padded ones."""
        return Ragged.of(self._shown())

    @property
    def sequences(self) -> bool:
        """Whether rows are sequences of steps."""
        return isinstance(self._shown(), Sequences)

    def _shown(self) -> View | None:
        return self._table_state.view if self._view is None else self._view

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        settings = f"sampler={self._sampler!r} view={self._view!r} min_size={self._min_size}"
        return f"<ReplaySource {settings} {state}>"

    def __reduce__(self) -> Any:
        raise CannotSend(
            "a source stays in the process of its table: hand it to a loader there, or send its "
            "reader()"
        )

    def close(self) -> None:
        """Detach the source's own sampler from the table. May be called again.

        A source without references closes itself.
        """
        self._closed = True
        if self._own is not None:
            self._own()
            with self._table_state.lock:
                self._table_state.table.let_go()

    def draw_now(self, batch_size: int) -> Ready | None:
        """See `AnyThread`. Draws and reads under one lock, where that is quick."""
        table_state = self._table_state
        if self._closed or not table_state.ready:
            return None
        self._settle()
        read_plan = self._table_state.read_plan(self._view, self._sampler)
        reader = self._reader_of(read_plan)
        uses_up = table_state.limiter is not None or table_state.max_times_sampled
        if uses_up or not reader.at_once(batch_size):
            return None
        with table_state.lock:
            taken = self._table_state.take(reader, self._sampler, batch_size, self._min_size)
        if taken is None:
            return None
        arrays = self._table_state.complete(reader, taken)
        batch, layout = assembled(read_plan, arrays), reader.layout(batch_size)
        if layout is None or layout.nbytes > STAGED_BYTES:
            return Ready(batch, lent=True)
        block = arrays[0].base
        assert block is not None
        return ReadyBlock(batch, lent=True, block=block, layout=layout)

    def _reader_of(self, read_plan: ReadPlan) -> ReplayReader:
        """Return the source's own reader."""
        reader = self._own_reader
        if reader is None or reader.read_plan is not read_plan:
            numbers = None if read_plan.goals is None else self._numbers()
            reader = self._own_reader = self._table_state.reader(read_plan, numbers)
        return reader

    def _settle(self) -> None:
        """Choose what draws, if the source was made before the table knew its steps."""
        if not self._settled:
            self._sampler = self._table_state.drawing_sampler(self._sampler, self._view)
            self._settled = True
            if self._resumes_at:
                self.load_state_dict(self._resumes_at)

    def _attempt(self, batch_size: int) -> Rows | Ready | None:
        table_state = self._table_state
        if not table_state.ready:
            table_state.check_open()
            return None
        self._settle()
        read_plan = self._table_state.read_plan(self._view, self._sampler)
        with table_state.lock:
            table_state.check_open()
            if self._why_not(batch_size) is not None:
                return None
            if table_state.max_times_sampled:
                reader = self._reader_of(read_plan)
                taken = self._table_state.take(reader, self._sampler, batch_size, self._min_size)
                arrays = self._table_state.complete(reader, taken)
                return Ready(assembled(read_plan, arrays), lent=True)
            drawn = self._table_state.now(self._sampler, batch_size)
        if table_state.table.storage.on_disk:
            self._reader_of(read_plan).announce(drawn.ids)
        index = join_index(drawn.ids, drawn.weight)
        if read_plan.goals is not None:
            chances = self._numbers().take(batch_size).view(np.int64)
            index = np.column_stack((index, chances))
        return Rows(index)

    def _numbers(self) -> RandomNumbers:
        """Return the numbers that choose hindsight goals: of the source's seed or the table's."""
        if self._goal_numbers is None:
            seeds = self._goal_seeds
            self._goal_numbers = RandomNumbers(
                self._table_state.seeds.spawn(1)[0] if seeds is None else seeds
            )
        return self._goal_numbers

    def _why_not(self, batch_size: int) -> str | None:
        return self._table_state.why_not(self._sampler, batch_size, self._min_size)

    def reader(self) -> ReplayReader | None:
        """Make a reader of the rows, for this or any other process.

        ``None`` while the schema is unknown, that is before the first step of a table without one.
        Once ``plan`` has returned there is a reader: ask again then, and start worker processes
        with that one.
        """
        if not self._table_state.ready:
            return None
        self._settle()
        read_plan = self._table_state.read_plan(self._view, self._sampler)
        numbers = None if read_plan.goals is None else self._numbers()
        return self._table_state.reader(read_plan, numbers).warm()

    def state_dict(self) -> dict[str, Any] | None:
        """See `Resumable`: the seed, how many random numbers were used, and what a sampler of the
        source's own says of itself.

        ``None`` for a table that counts how often a step is drawn, and without a seed or a sampler
        of the source's own: what decides the draws is in the table then, and is saved with it.
        """
        chosen, own = self._chosen, self._chosen.own
        if self._table_state.max_times_sampled or (own is None and chosen.words is None):
            return None
        numbers = None if own is not None else self._sampler.numbers
        goals, state = self._goal_numbers, None
        if own is not None:
            with self._table_state.lock:
                state = own.state()
        return {
            "seed": chosen.words,
            "used": None if numbers is None else numbers.used,
            "goals": None if goals is None else goals.state(),
            "sampler": state,
            "newest": getattr(own, "newest", None),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Resumable`."""
        self._resumes_at = {} if self._settled else state
        own = self._chosen.own
        if own is not None and state["sampler"] is not None:
            with self._table_state.lock:
                own.restore(state["sampler"])
            if isinstance(own, LagSampler) and state["newest"] is not None:
                self._table_state.publish(own.see, state["newest"])
        elif own is None and state["used"] is not None:
            words: Any = state["seed"]
            self._chosen = self._chosen._replace(words=words)
            drawn = self._sampler
            self._sampler = Seeded(drawn.sampler if isinstance(drawn, Seeded) else drawn, words)
            self._sampler.numbers.restore({"seed": {"entropy": words}, "used": state["used"]})
        if state["goals"] is not None:
            self._goal_numbers = RandomNumbers(np.random.SeedSequence(0))
            self._goal_numbers.restore(state["goals"])

    def update_priorities(self, index: Ids, priority: Floats) -> Applied:
        """See `ReplayBuffer.update_priorities`."""
        return self._table_state.update_priorities(index, priority, self._view)

    def update(self, index: object, /, **fields: Any) -> Applied:
        """See `ReplayBuffer.update`."""
        return self._table_state.update(index, **fields)

    def waiting_for(self) -> str | None:
        """Say in numbers what `plan` waits for; ``None`` if it need not wait."""
        with self._table_state.lock:
            return self._why_not(max(self._wanted, default=self._batch_size))

    def note_ahead(self, batch_size: int, batches: int) -> None:
        """Warn if the limiter never allows ``batches`` batches before the first is used, as a
        loader will plan.
        """
        limiter = self._table_state.limiter
        text = (
            None if limiter is None else LimiterState(limiter).window_warning(batch_size, batches)
        )
        if text is not None:
            warnings.warn(text, UserWarning, stacklevel=stacklevel())
