"""Draws batches: items are chosen under the table's lock, and their rows are read without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError, NotEnoughData
from async_loader.lifecycle import seconds
from async_loader.replay.arguments import positive
from async_loader.replay.array_types import Array, Ids
from async_loader.replay.base.row_format import LOOKAHEAD
from async_loader.replay.episode_ends import check_end_names
from async_loader.replay.limiter_arithmetic import LimiterState
from async_loader.replay.rate_limiter import UNLIMITED
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.samplers import Sampler, shortcut
from async_loader.replay.samplers.binding import RandomNumbers, Seeded
from async_loader.replay.table.batch_arrays import Target
from async_loader.replay.table.lag_sampler import LagSampler
from async_loader.replay.table.reader import ReplayReader
from async_loader.replay.table.sequence_sampler import SequenceSampler
from async_loader.replay.table.table import Drawn
from async_loader.replay.table.table_state import TableState
from async_loader.replay.views import Sequences, View, checked_view, ragged, within
from async_loader.shm.segment import check_fits
from async_loader.source import Window

_KEPT_PLANS = 8
_MUCH = 64 << 20  # bytes of a batch, from which on its memory is checked first


class TableSampler:
    """Draws batches from a table. Any thread.

    It also works out how batches of a view are read, once for each view.

    # NOTE [draws]
    `take` chooses items under the lock. Short batches of small fields are read there too, and so
    are items that are used up: no other draw would show a row that is overwritten. All others are
    read without the lock, by `complete`.

    Parameters
    ----------
    table_state : TableState
    """

    def __init__(self, table_state: TableState) -> None:
        self._table_state = table_state
        self._read_plans: dict[Any, ReadPlan] = {}
        # By the id of a read plan: one reader for each thread that samples at the same time.
        self._idle: dict[int, list[ReplayReader]] = {}

    def read_plan(self, view: View | None, sampler: Sampler | None = None) -> ReadPlan:
        """Return how batches of a view are read, by default the table's view: worked out once.

        From here on the table keeps the successors that the view shows. Raises ConfigError for a
        view that the table can never show; then nothing is changed.
        """
        table_state = self._table_state
        view = table_state.view if view is None else checked_view(view)
        key = (view, sampler is not None and sampler.weighted)
        known = self._read_plans.get(key)
        if known is not None:
            return known
        assert table_state.schema is not None
        if view is not table_state.view:  # a table that was loaded may show what it showed
            check_end_names(table_state.schema, view)
        shown = within(view, table_state.table.items.rows)
        read_plan = ReadPlan.of(table_state.schema, shown, weighted=key[1])
        with table_state.lock:
            table_state.catch_up()
            table_state.look_ahead(read_plan)
            if len(self._read_plans) == _KEPT_PLANS:  # of views made anew for each call
                oldest = self._read_plans.pop(next(iter(self._read_plans)))
                self._idle.pop(id(oldest), None)
            self._idle[id(read_plan)] = []
            return self._read_plans.setdefault(key, read_plan)

    def reader(self, read_plan: ReadPlan, numbers: RandomNumbers | None = None) -> ReplayReader:
        """Make a reader.

        ``numbers`` choose hindsight goals; by default it has its own, from the table's seed.
        """
        if numbers is None and read_plan.goals is not None:
            numbers = RandomNumbers(self._table_state.seeds.spawn(1)[0])
        return ReplayReader(self._table_state.table.storage, read_plan, numbers)

    def batch(
        self, sampler: Sampler, batch_size: int, view: View | None, timeout_s: float | None
    ) -> dict[str, Any]:
        """Draw a batch, nested as a step is. Waits as `arrays` does."""
        arrays = self.arrays(sampler, batch_size, view, timeout_s)
        read_plan = self.read_plan(view, sampler)
        return ragged(assembled(read_plan, arrays), read_plan.sequence)

    def arrays(
        self, sampler: Sampler, batch_size: int, view: View | None, timeout_s: float | None
    ) -> Sequence[Array]:
        """Draw a batch: one array for each field of the read plan's schema.

        Waits for enough items, and for the limiter; without a limiter and a ``timeout_s`` it raises
        NotEnoughData instead.
        """
        table_state = self._table_state
        batch_size = positive("batch_size", batch_size)
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        waits = table_state.limiter is not None or timeout_s is not None
        if not table_state.ready:
            if not waits:
                raise self.not_enough(batch_size)

            def begun() -> bool:
                table_state.check_open()
                return table_state.ready

            table_state.waiters.until(
                begun, "sample", lambda: "no step has been added yet", timeout_s
            )
        sampler = drawing_sampler(table_state, sampler, view)
        read_plan = self.read_plan(view, sampler)
        readers = self._idle.get(id(read_plan), [])
        try:
            reader = readers.pop()
        except IndexError:
            reader = self.reader(read_plan)
        with table_state.lock:
            taken = self.take(reader, sampler, batch_size)
        if taken is None:
            if not waits:
                raise self.not_enough(batch_size, sampler)

            def attempt() -> bool:
                nonlocal taken
                taken = self.take(reader, sampler, batch_size)
                return taken is not None

            table_state.waiters.until(
                attempt, "sample", lambda: self.why_not(sampler, batch_size), timeout_s
            )
        if isinstance(taken, Drawn):
            taken = self.complete(reader, taken)
        assert taken is not None
        readers.append(reader)
        return taken

    def fill(self, reader: ReplayReader, sampler: Sampler, target: Target) -> None:
        """Draw a batch into a target of the reader. `why_not` has returned ``None``."""
        with self._table_state.lock:
            taken = self.take(reader, sampler, len(target.rows), into=target)
        self.complete(reader, taken, target)

    def take(
        self,
        reader: ReplayReader,
        sampler: Sampler,
        count: int,
        min_size: int = 1,
        into: Target | None = None,
    ) -> Sequence[Array] | Drawn | None:
        """Draw a batch, and read it if that is quick or the items are used up; ``None`` if it
        cannot be drawn now. Under the lock. See NOTE [draws].
        """
        table_state = self._table_state
        table_state.check_open()
        if self.why_not(sampler, count, min_size) is not None:
            return None
        table = table_state.table
        uses_up = bool(table_state.max_times_sampled)
        taken: Sequence[Array] | Drawn | None = None
        if not uses_up and reader.at_once(count):
            quick = shortcut(sampler, "draw_into", "draw")
            taken = None if quick is None else reader.drawn(count, quick, into)
            if taken is None:
                drawn = table.chosen(sampler, count)
                taken = reader.these(drawn.rows, drawn.weight, into)
        if taken is not None:
            table.sampled += count
        else:
            rows = count if sampler.repeats else min(count, table.items.rows)
            _check_memory(reader, rows, f"batch_size={count:,}")
            taken = self.now(sampler, count)
            if uses_up:
                return self.complete(reader, taken, into)
        if table_state.waiters.any_waits:
            table_state.waiters.ring()
        return taken

    def now(self, sampler: Sampler, count: int) -> Drawn:
        """Choose items, and count them. Under the lock, when `why_not` has returned ``None``."""
        table_state, table = self._table_state, self._table_state.table
        drawn = table.draw(sampler, count)
        if not table_state.max_times_sampled:
            table.sampled += len(drawn.ids)
        if table_state.waiters.any_waits:
            table_state.waiters.ring()
        return drawn

    def complete(
        self,
        reader: ReplayReader,
        taken: Sequence[Array] | Drawn | None,
        into: Target | None = None,
    ) -> Sequence[Array]:
        """Return the arrays of what `take` has drawn. Items that were overwritten since, which
        spare rows make rare, are replaced by others of the batch.
        """
        assert taken is not None
        if not isinstance(taken, Drawn):
            return taken
        ids = taken.ids
        reader.announce(ids)
        if into is None:
            window, gone = reader.take(ids, taken.weight)
        else:
            window = Window(into.arrays)
            gone = reader.fill(ids, window, taken.weight)
        if len(gone):
            rng = np.random.default_rng(int(ids.sum()) & 0xFFFFFFFF)
            reader.replace(ids, gone, window, rng)
        return window.fields

    def these(self, ids: Ids, view: View | None) -> dict[str, Any]:
        """Read steps by id, in their order. Ids that are gone are left out."""
        table_state, read_plan = self._table_state, self.read_plan(view)
        with table_state.lock:
            table_state.check_open()
            table_state.catch_up()
            ids = ids[table_state.table.find(ids) >= 0]
        reader = self.reader(read_plan)
        _check_memory(reader, len(ids), f"{len(ids):,} ids")
        into, gone = reader.take(ids)
        arrays = (
            [np.delete(array, gone, axis=0) for array in into.fields] if len(gone) else into.fields
        )
        return ragged(assembled(read_plan, arrays), read_plan.sequence)

    def forget(self) -> None:
        """Drop idle readers, which a load has come between. Under the lock."""
        for readers in self._idle.values():
            readers.clear()

    def why_not(self, sampler: Sampler, count: int, min_size: int = 1) -> str | None:
        """Say in numbers why ``count`` items cannot be drawn now; ``None`` if they can.

        Under the lock. Raises ConfigError if they never can be.
        """
        table_state = self._table_state
        table_state.catch_up()
        held = 0
        most: int | None = 0  # in one draw
        if table_state.ready:
            held, most = table_state.table.held_for(sampler), table_state.table.drawable(sampler)
        limits = table_state.limits
        once = not sampler.repeats or bool(table_state.max_times_sampled)
        if limits is not None and not limits.may_sample(count):
            if not limits.can_ever_sample(count):
                raise ConfigError(limits.why_not_sample(count))
            reason = limits.why_not_sample(count)
        elif held >= min_size and (most is None or most >= count):
            return None
        else:
            enough = most is None or most >= count or not (most or once)
            needed = min_size if enough else max(count, min_size)
            reason = (
                f"{_noun(sampler)}: the replay buffer holds {held} of the {needed} that sampling "
                f"needs{_needs(sampler)}, add more"
            )
        if table_state.ready:
            self._check_ever(sampler, count, min_size, most or 0)
        lag = _inner(sampler)
        return reason + (lag.left_out if isinstance(lag, LagSampler) else "")

    def _check_ever(self, sampler: Sampler, count: int, min_size: int, held: int) -> None:
        """Raise ConfigError if ``count`` items can never be drawn at once. ``held``: now."""
        table_state, table = self._table_state, self._table_state.table
        limits, capacity = table_state.limits, table.storage.layout.capacity
        if _noun(sampler) != "steps":
            wanted = min_size if sampler.repeats else max(count, min_size)
            if wanted > capacity:
                raise ConfigError(
                    f"{wanted:,} sequences are asked for, and a table of {capacity:,} steps holds "
                    "one for each step at most: ask for fewer, or raise the capacity"
                )
            return
        surely = self.check_size(min_size)
        if sampler.repeats and not table_state.max_times_sampled:
            return
        times = table_state.max_times_sampled if sampler.repeats else 1
        if count > times * surely:
            raise ConfigError(
                f"{sampler!r} draws no item {_too_often(times)}, and {count:,} are more than a "
                f"table of {capacity:,} steps holds at once, {times * surely:,}: draw fewer at a "
                "time, or raise the capacity"
            )
        if limits is not None:
            self._check_limiter(limits, count, held, times)

    def check_size(self, min_size: int) -> int:
        """Return how many items the table holds at every moment. Under the lock.

        Raises ConfigError if that is less than ``min_size``.
        """
        table = self._table_state.table
        surely = table.surely(int(table.g[LOOKAHEAD]))
        if min_size > surely:
            raise ConfigError(
                f"min_size={min_size:,}: the table keeps {table.storage.layout.capacity:,} steps, "
                f"of which {surely:,} can be drawn while an episode is open: use {surely:,} or "
                "less, or raise the capacity"
            )
        return surely

    def _check_limiter(self, limits: LimiterState, count: int, held: int, times: int) -> None:
        """Raise ConfigError if the limiter stops inserting before there are enough items."""
        more = limits.insertable()
        if more == UNLIMITED or (
            more and self._table_state.table.g[LOOKAHEAD]
        ):  # a step may make items of several
            return
        most = max(len(self._table_state.table) + more, limits.config.min_size_to_sample)
        if count > max(held, times * most):
            buffer = limits.config.buffer_for(count * limits.config.samples_per_insert)
            raise ConfigError(
                f"{count:,} can never be sampled at once: {limits.config} stop inserting at "
                f"{most:,} items, and no item is drawn {_too_often(times)}: sample fewer at a "
                f"time, or use {buffer}"
            )

    def not_enough(self, count: int, sampler: Sampler | None = None) -> NotEnoughData:
        """Return what a draw of too many items raises. Under the lock."""
        held, what, needs = 0, "items", ""
        if self._table_state.ready:
            sampler = sampler or self._table_state.sampler
            held = self._table_state.table.held_for(sampler)
            what = "items" if _noun(sampler) == "steps" else "sequences"
            needs = _needs(sampler)
        return NotEnoughData(
            f"cannot draw {count} {what}, the table holds {held} that can be drawn{needs}: add "
            "steps first, give timeout_s, or use a loader, which waits",
            count,
            held,
        )


def _check_memory(reader: ReplayReader, rows: int, what: str) -> None:
    """Raise OutOfMemory if a batch of ``rows`` rows exceeds the free memory."""
    nbytes = rows * reader.row_bytes
    if nbytes > _MUCH:
        check_fits(nbytes, what)


def assembled(read_plan: ReadPlan, arrays: Sequence[Any]) -> dict[str, Any]:
    """Nest the arrays of a batch as its steps are."""
    root = read_plan.schema.structure
    if isinstance(root, tree.Node) and not any(root.children):
        return tree.fields(root.keys, arrays)
    rebuilt: dict[str, Any] = tree.rebuild_batch(root, arrays)
    return rebuilt


def drawing_sampler(table_state: TableState, sampler: Any, view: View | None) -> Any:
    """Return what draws the items of ``view`` as a sampler of the table does.

    That is the sampler itself, but for sequences; see `SequenceSampler`.
    """
    view = table_state.view if view is None else view
    if not isinstance(view, Sequences) or not table_state.ready:
        return sampler
    if isinstance(sampler, Seeded):
        inner = drawing_sampler(table_state, sampler.sampler, view)
        return sampler if inner is sampler.sampler else sampler.over(inner)
    return table_state.sequence_sampler(view) if sampler is table_state.sampler else sampler


def _too_often(times: int) -> str:
    return "twice" if times == 1 else f"more than {times} times"


def _noun(sampler: Sampler) -> str:
    return "sequences" if isinstance(_inner(sampler), SequenceSampler) else "steps"


def _inner(sampler: Sampler) -> Sampler:
    """Return what draws, behind a seed of its own."""
    return sampler.sampler if isinstance(sampler, Seeded) else sampler


def _needs(sampler: Sampler) -> str:
    """Say what a sequence is made of, as a part of a message."""
    sampler = _inner(sampler)
    if not isinstance(sampler, SequenceSampler):
        return ""
    view = sampler.view
    if view.whole:
        return f" (each is an episode of {view.length:,} steps or fewer that has ended)"
    steps = (view.least - 1) * view.dilation + 1
    fewer = "" if view.boundary == "pad" else "; with boundary='pad' it may be cut short"
    return f" (each needs {steps:,} steps of one episode{fewer})"
