"""Whether a table can give a batch now, later, or never."""

from __future__ import annotations

from async_loader.errors import ConfigError, NotEnoughData
from async_loader.replay.base.row_format import LOOKAHEAD
from async_loader.replay.limiter_state import LimiterState
from async_loader.replay.rate_limiter import UNLIMITED
from async_loader.replay.samplers import Sampler
from async_loader.replay.samplers.seeded import Seeded
from async_loader.replay.table.lag_sampler import LagSampler
from async_loader.replay.table.sequence_sampler import SequenceSampler
from async_loader.replay.table.table_state import TableState


class DrawChecks:
    """Says why a batch cannot be drawn. Any thread; most methods are called under the table's lock.

    Parameters
    ----------
    table_state : TableState
    """

    def __init__(self, table_state: TableState) -> None:
        self._table_state = table_state

    def why_not(self, sampler: Sampler, count: int, min_size: int = 1) -> str | None:
        """Say in numbers why ``count`` items cannot be drawn now; ``None`` if they can.

        Under the lock. Raises ConfigError if they never can be.
        """
        table_state = self._table_state
        table = table_state.table if table_state.ready else None
        table_state.catch_up()
        there = None if table is None else (table.held_for(sampler), table.drawable(sampler))
        reason = self._why_not_of(sampler, count, min_size, there)
        if reason is not None:
            self._check_ever(sampler, count, min_size, self.ahead())
            if isinstance(sampler, LagSampler):
                reason += sampler.left_out
        return reason

    def ahead(self) -> int:
        """Return how many successors an item has now. Under the lock."""
        return int(self._table_state.table.g[LOOKAHEAD]) if self._table_state.ready else 0

    def _why_not_of(
        self, sampler: Sampler, count: int, min_size: int, there: tuple[int, int | None] | None
    ) -> str | None:
        """As `why_not`, of a table with as many items as are ``there``, and in one draw at most.

        ``None``: there is no table yet.
        """
        table_state = self._table_state
        limits = table_state.limits
        once = not sampler.repeats or bool(table_state.max_times_sampled)
        if limits is not None and not limits.may_sample(count):
            return limits.why_not_sample(count)
        if there is None:
            return _short(0, min_size, sampler)
        items, most = there
        if most is None or most >= count:
            return None if items >= min_size else _short(items, min_size, sampler)
        return _short(items, max(count, min_size) if most or once else min_size, sampler)

    def _check_plan(self, sampler: Sampler, count: int, min_size: int, ahead: int) -> None:
        """Raise ConfigError if ``count`` items with ``ahead`` successors can never be drawn."""
        reason = self._why_not_of(sampler, count, min_size, self._drawable(sampler, ahead))
        if reason is not None:
            self._check_ever(sampler, count, min_size, ahead)

    def _drawable(self, sampler: Sampler, ahead: int) -> tuple[int, int | None]:
        """Return how many items there would be with ``ahead`` successors each, and how many of them
        one draw could hold; ``None``: any number. Under the lock.
        """
        table = self._table_state.table
        if ahead <= table.g[LOOKAHEAD] or getattr(sampler, "own_items", None) is not None:
            return table.held_for(sampler), table.drawable(sampler)
        wait = table.would_wait(ahead)
        return len(table) - len(wait), table.drawable(sampler, wait)

    def _check_ever(self, sampler: Sampler, count: int, min_size: int, ahead: int) -> None:
        """Raise ConfigError if ``count`` items can never be drawn at once."""
        table_state = self._table_state
        limits = table_state.limits
        if (
            limits is not None
            and not limits.may_sample(count)
            and not limits.can_ever_sample(count)
        ):
            raise ConfigError(limits.why_not_sample(count))
        if not table_state.ready:
            return
        if _noun(sampler) != "steps":
            self._check_sequences(sampler, count, min_size)
            return
        _, most = self._drawable(sampler, ahead)
        surely = self.check_size(min_size, ahead)
        table = table_state.table
        if sampler.repeats and not table_state.max_times_sampled:
            return
        times = table_state.max_times_sampled if sampler.repeats else 1
        if count > times * surely:
            raise ConfigError(
                f"{sampler!r} draws no item {_too_often(times)}, and {count:,} are more than a "
                f"table of {table.storage.layout.capacity:,} steps holds at once, "
                f"{times * surely:,}: draw fewer at a time, or raise the capacity"
            )
        held = most or 0
        if limits is not None:
            self._check_limiter(limits, count, held, times, ahead)
        if table.keeps:
            least = 1 if limits is None else limits.config.min_size_to_sample
            self._check_stuck(max(count, least), held)

    def _check_sequences(self, sampler: Sampler, count: int, min_size: int) -> None:
        """Raise ConfigError for more sequences than the table can hold at once."""
        wanted = min_size if sampler.repeats else max(count, min_size)
        capacity = self._table_state.table.storage.layout.capacity
        if wanted > capacity:
            raise ConfigError(
                f"{wanted:,} sequences are asked for, and a table of {capacity:,} steps holds one "
                "for each step at most: ask for fewer, or raise the capacity"
            )

    def check_size(self, min_size: int, ahead: int) -> int:
        """Return how many items the table holds at every moment, with ``ahead`` successors each.

        Raises ConfigError if that is less than ``min_size``.
        """
        table = self._table_state.table
        surely = table.surely(ahead)
        if min_size > surely:
            raise ConfigError(
                f"min_size={min_size:,}: the table keeps {table.storage.layout.capacity:,} steps, "
                f"of which {surely:,} can be drawn while an episode is open: use {surely:,} or "
                "less, or raise the capacity"
            )
        return surely

    def _check_limiter(
        self, limits: LimiterState, count: int, held: int, times: int, ahead: int
    ) -> None:
        """Raise ConfigError if the limiter stops inserting before there are enough items."""
        more = limits.insertable()
        if more == UNLIMITED or (more and ahead):  # a step may make items of several
            return
        most = max(len(self._table_state.table) + more, limits.config.min_size_to_sample)
        if count > max(held, times * most):
            buffer = limits.config.buffer_for(count * limits.config.samples_per_insert)
            raise ConfigError(
                f"{count:,} can never be sampled at once: {limits.config} stop inserting at "
                f"{most:,} items, and no item is drawn {_too_often(times)}: sample fewer at a "
                f"time, or use {buffer}"
            )

    def _check_stuck(self, count: int, held: int) -> None:
        """Raise ConfigError if neither this draw nor an insertion can go on.

        See streams.py, NOTE [queue tables].
        """
        table_state, table = self._table_state, self._table_state.table
        room, limits = table.room(), table_state.limits
        waits = table_state.waiters.waits_to("insert")
        blocked = waits and (limits is None or limits.may_insert(1))
        if not blocked and (room or held + table.waiting >= count):
            return
        if room and table.tail_stream() >= 0:  # that episode may go on, and rows are let go
            return
        raise ConfigError(
            f"{count:,} can never be drawn at once: {table.window:,} rows are full with {held:,} "
            "items and rows beside them (steps that wait for their successors, observations after "
            "an episode's end, the past of stacks), and a queue overwrites no item: draw "
            f"{held:,} or fewer at a time, or raise the capacity to {2 * count:,} or more"
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


def _too_often(times: int) -> str:
    return "twice" if times == 1 else f"more than {times} times"


def _noun(sampler: Sampler) -> str:
    return "sequences" if isinstance(_inner(sampler), SequenceSampler) else "steps"


def _inner(sampler: Sampler) -> Sampler:
    """Return what draws, behind a seed of its own."""
    return sampler.sampler if isinstance(sampler, Seeded) else sampler


def _short(held: int, needed: int, sampler: Sampler) -> str:
    return (
        f"{_noun(sampler)}: the replay buffer holds {held} of the {needed} that sampling "
        f"needs{_needs(sampler)}, add more"
    )


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
