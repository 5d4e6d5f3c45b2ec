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
from async_loader.shm.segment import check_batch_fits
from async_loader.source import Window

_KEPT_PLANS = 8


class TableSampler(TableState):
    """The part of a table's process that draws batches. Any thread.

    It also works out how batches of a view are read, once for each view.

    # NOTE [draws]
    `take` chooses items under the lock. Short batches of small fields are read there too, and so
    are items that are used up: no other draw would show a row that is overwritten. All others are
    read without the lock, by `complete`.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._read_plans: dict[Any, ReadPlan] = {}
        # By the id of a read plan: one reader for each thread that samples at the same time.
        self._idle: dict[int, list[ReplayReader]] = {}

    def read_plan(self, view: View | None, sampler: Sampler | None = None) -> ReadPlan:
        """Return how batches of a view are read, by default the table's view: worked out once.

        From here on the table keeps the successors that the view shows. Raises ConfigError for a
        view that the table can never show; then nothing is changed.
        """
        view = self.view if view is None else checked_view(view)
        key = (view, sampler is not None and sampler.weighted)
        known = self._read_plans.get(key)
        if known is not None:
            return known
        assert self.schema is not None
        if view is not self.view:  # a table that was loaded may show what it showed
            check_end_names(self.schema, view)
        shown = within(view, self.table.items.rows)
        read_plan = ReadPlan.of(self.schema, shown, weighted=key[1])
        with self.lock:
            self.catch_up()
            self.look_ahead(read_plan)
            if len(self._read_plans) == _KEPT_PLANS:  # of views made anew for each call
                oldest = self._read_plans.pop(next(iter(self._read_plans)))
                self._idle.pop(id(oldest), None)
            self._idle[id(read_plan)] = []
            return self._read_plans.setdefault(key, read_plan)

    def drawing_sampler(self, sampler: Any, view: View | None) -> Any:
        """Return what draws the items of ``view`` as a sampler of the table does.

        That is the sampler itself, but for sequences; see `SequenceSampler`.
        """
        view = self.view if view is None else view
        if not isinstance(view, Sequences) or not self.ready:
            return sampler
        if isinstance(sampler, Seeded):
            inner = self.drawing_sampler(sampler.sampler, view)
            return sampler if inner is sampler.sampler else sampler.over(inner)
        return self.sequence_sampler(view) if sampler is self.sampler else sampler

    def reader(self, read_plan: ReadPlan, numbers: RandomNumbers | None = None) -> ReplayReader:
        """Make a reader.

        ``numbers`` choose hindsight goals; by default it has its own, from the table's seed.
        """
        if numbers is None and read_plan.goals is not None:
            numbers = RandomNumbers(self.seeds.spawn(1)[0])
        return ReplayReader(self.table.storage, read_plan, numbers)

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
        batch_size = positive("batch_size", batch_size)
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        waits = self.limiter is not None or timeout_s is not None
        if not self.ready:
            if not waits:
                raise self.not_enough(batch_size)

            def begun() -> bool:
                self.check_open()
                return self.ready

            self.waiters.until(begun, "sample", lambda: "no step has been added yet", timeout_s)
        sampler = self.drawing_sampler(sampler, view)
        read_plan = self.read_plan(view, sampler)
        readers = self._idle.get(id(read_plan), [])
        try:
            reader = readers.pop()
        except IndexError:
            reader = self.reader(read_plan)
        with self.lock:
            taken = self.take(reader, sampler, batch_size)
        if taken is None:
            if not waits:
                raise self.not_enough(batch_size, sampler)

            def attempt() -> bool:
                nonlocal taken
                taken = self.take(reader, sampler, batch_size)
                return taken is not None

            self.waiters.until(
                attempt, "sample", lambda: self.why_not(sampler, batch_size), timeout_s
            )
        if isinstance(taken, Drawn):
            taken = self.complete(reader, taken)
        assert taken is not None
        readers.append(reader)
        return taken

    def fill(self, reader: ReplayReader, sampler: Sampler, target: Target) -> None:
        """Draw a batch into a target of the reader. `why_not` has returned ``None``."""
        with self.lock:
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
        self.check_open()
        if self.why_not(sampler, count, min_size) is not None:
            return None
        table = self.table
        uses_up = bool(self.max_times_sampled)
        taken: Sequence[Array] | Drawn | None = None
        if not uses_up and reader.at_once(count):
            quick = shortcut(sampler, "draw_into", "draw")
            taken = None if quick is None else reader.drawn(count, quick, into)
            if taken is None:
                drawn = table.chosen(sampler, count)
                taken = reader.these(drawn.rows, drawn.weight, into)
        if taken is not None:
            self._count(table, count)
        else:
            rows = count if sampler.repeats else min(count, table.items.rows)
            check_batch_fits(rows * reader.row_bytes, f"batch_size={count:,}")
            taken = self.now(sampler, count)
            if uses_up:
                return self.complete(reader, taken, into)
        if self.waiters.any_waits:
            self.waiters.ring()
        return taken

    def now(self, sampler: Sampler, count: int) -> Drawn:
        """Choose items, and count them. Under the lock, when `why_not` has returned ``None``."""
        table = self.table
        drawn = table.draw(sampler, count)
        if not self.max_times_sampled:
            self._count(table, len(drawn.ids))
        if self.waiters.any_waits:
            self.waiters.ring()
        return drawn

    def _count(self, table: Any, drawn: int) -> None:
        table.sampled += drawn
        if table.kept is not None:
            table.kept.note_draw(table.sampled)

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

    def these(self, ids: Ids, read_plan: ReadPlan) -> dict[str, Any]:
        """Read steps by id, in their order. Ids that are gone are left out."""
        with self.lock:
            self.check_open()
            self.catch_up()
            ids = ids[self.table.find(ids) >= 0]
        reader = self.reader(read_plan)
        check_batch_fits(len(ids) * reader.row_bytes, f"{len(ids):,} ids")
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
        self.catch_up()
        held = 0
        most: int | None = 0  # in one draw
        if self.ready:
            held, most = self.table.held_for(sampler), self.table.drawable(sampler)
        limits = self.limits
        once = not sampler.repeats or bool(self.max_times_sampled)
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
        if self.ready:
            self.check_ever(sampler, count, min_size)
        lag = _inner(sampler)
        return reason + (lag.left_out if isinstance(lag, LagSampler) else "")

    def check_ever(self, sampler: Sampler, count: int, min_size: int) -> None:
        """Raise ConfigError for more items than the table ever holds at once. Under the lock."""
        table, capacity = self.table, self.table.storage.layout.capacity
        surely = capacity if _view(sampler) else table.surely(int(table.g[LOOKAHEAD]))
        times = self.max_times_sampled if sampler.repeats else 1
        wanted = max(min_size, -(-count // times) if times else 0)
        if wanted > surely:
            raise ConfigError(
                f"{wanted:,} items are asked for at once, and the table keeps {capacity:,} steps, "
                f"of which {surely:,} can be drawn while an episode is open: ask for fewer, or "
                "raise the capacity"
            )

    def not_enough(self, count: int, sampler: Sampler | None = None) -> NotEnoughData:
        """Return what a draw of too many items raises. Under the lock."""
        held, what, needs = 0, "items", ""
        if self.ready:
            sampler = sampler or self.sampler
            held = self.table.held_for(sampler)
            what = "items" if _noun(sampler) == "steps" else "sequences"
            needs = _needs(sampler)
        return NotEnoughData(
            f"cannot draw {count} {what}, the table holds {held} that can be drawn{needs}: add "
            "steps first, give timeout_s, or use a loader, which waits",
            count,
            held,
        )


def assembled(read_plan: ReadPlan, arrays: Sequence[Any]) -> dict[str, Any]:
    """Nest the arrays of a batch as its steps are."""
    root = read_plan.schema.structure
    if isinstance(root, tree.Node) and not any(root.children):
        return tree.fields(root.keys, arrays)
    rebuilt: dict[str, Any] = tree.rebuild_batch(root, arrays)
    return rebuilt


def _inner(sampler: Sampler) -> Sampler:
    """Return what draws, behind a seed of its own."""
    return sampler.sampler if isinstance(sampler, Seeded) else sampler


def _view(sampler: Sampler) -> Sequences | None:
    """Return the view whose sequences a sampler draws."""
    sampler = _inner(sampler)
    return sampler.view if isinstance(sampler, SequenceSampler) else None


def _noun(sampler: Sampler) -> str:
    return "steps" if _view(sampler) is None else "sequences"


def _needs(sampler: Sampler) -> str:
    """Say what a sequence is made of, as a part of a message."""
    view = _view(sampler)
    if view is None:
        return ""
    if view.whole:
        return f" (each is an episode of {view.length:,} steps or fewer that has ended)"
    steps = (view.least - 1) * view.dilation + 1
    fewer = "" if view.boundary == "pad" else "; with boundary='pad' it may be cut short"
    return f" (each needs {steps:,} steps of one episode{fewer})"
