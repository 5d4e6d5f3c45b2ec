"""Whether a table can give a batch now, later, or never."""

from __future__ import annotations

from async_loader.errors import ConfigError, NotEnoughData
from async_loader.replay.base.row_format import LOOKAHEAD
from async_loader.replay.limiter_state import LimiterState
from async_loader.replay.rate_limiter import UNLIMITED
from async_loader.replay.samplers import Sampler
from async_loader.replay.samplers.binding import Seeded
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
            reason = _short(held, min_size if enough else max(count, min_size), sampler)
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
