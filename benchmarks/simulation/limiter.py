"""The limiters of all shards, with writers that are not equal: who waits, and how far each is off.

The decisions are those of the package: `LimiterState` in each shard, `LimiterBalance` between them,
`rows_of_each` for a batch. Tables are full, and all shards have as many rows, so a batch takes as
many from each. A shard whose writers send more than the others' then has a ratio of its own; the
balance keeps the ratio of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from async_loader.replay.limiter_state import LimiterBalance as Cursor
from async_loader.replay.limiter_state import LimiterState
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.scale.limiter_balance import _SELDOM_S as SELDOM_S
from async_loader.scale.limiter_balance import LimiterBalance
from async_loader.scale.shares import rows_of_each
from benchmarks.simulation.costs import Assumed, Costs
from benchmarks.simulation.events import EventQueue

RUN_S, WARM_S = 30.0, 10.0
_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What writers and the learner want.

    Parameters
    ----------
    samples_per_insert : float
    batch : int
        Rows.
    chunk : int
        Rows of a writer's message.
    rows_per_s : float
        Of an average shard's writers.
    spread : float
        Times by which the busiest shard's writers send more than the laziest one's: rates are even
        between them.
    window_s : float
        The error buffer of each shard, as the time in which an average shard's writers earn it:
        ``error_buffer = samples_per_insert * rows_per_s * window_s``.
    demand : float
        What the learner can take, as a share of what all writers earn.
    """

    samples_per_insert: float = 4.0
    batch: int = 256
    chunk: int = 16
    rows_per_s: float = 100.0
    spread: float = 4.0
    window_s: float = 1.0
    demand: float = 1.2

    def rates(self, shards: int) -> np.ndarray:
        """Return the rows a second of each shard's writers."""
        rates = np.linspace(1.0, self.spread, shards)
        return np.asarray(rates * self.rows_per_s / rates.mean())


class Traffic:
    """Counts the calls of the balance, and how often it waits for all that it has asked at once."""

    def __init__(self) -> None:
        self.calls = self.waits = 0
        self._asked = False

    def ask(self) -> None:
        """A call is sent."""
        self.calls, self._asked = self.calls + 1, True

    def wait(self) -> None:
        """An answer is waited for: the first after some calls takes a round trip."""
        self.waits, self._asked = self.waits + self._asked, False


class SimulatedShard:
    """One shard's limiter, and the calls that `LimiterBalance` makes of it."""

    answers = True

    def __init__(self, limiter: RateLimiter, traffic: Traffic) -> None:
        self.state, self.moved = LimiterState(limiter), 0
        self.state.insert(limiter.min_size_to_sample)
        self.state.sample(round(limiter.min_size_to_sample * limiter.samples_per_insert))
        self.state.sample(-round(limiter.bounds[0]))  # sampling has spent all that it may
        self.wrote, self.drawn, self.traffic = 0, 0, traffic
        self.every_s, self.writer_waits = 0.0, False

    def ask_balance(self, was: int | None = None, now: int = 0) -> Cursor:
        """As `TableCalls.ask_balance`."""
        self.traffic.ask()
        return self._balance(was, now)

    def balance_of(self, call: Cursor, deadline: object) -> Cursor:
        """As `TableCalls.balance_of`: the answers to what was asked at once come together."""
        self.traffic.wait()
        return call

    def _balance(self, was: int | None, now: int) -> Cursor:
        found = cast(Cursor, self.state.balance(self.moved))
        if was is None or was != found.moved or found.cursor - found.low < was - now:
            return found
        self.state.sampled -= now - was
        self.moved = now
        return cast(Cursor, self.state.balance(now))


class _All:
    """The shards, in the place of `Connections`."""

    def __init__(self, shards: list[SimulatedShard]) -> None:
        self.all = shards


@dataclass
class Fairness:
    """What a run has shown.

    Attributes
    ----------
    shards : int
    balanced : bool
    learner : float
        Samples that were drawn, as a share of what the writers could earn or the learner take,
        whichever is less.
    writers : float
        The rows of the shard whose writers were held back most, as a share of what they could send
        if the learner's pace were the only limit.
    whole, worst : float
        How far samples per insert are off in the watched time, over all shards and in the worst
        shard, as a share of the ratio.
    outside : float
        By how many samples the sum of the cursors was outside the sum of the bounds, at most.
    round_s : float
        Between two rounds of the balance, at most.
    """

    shards: int
    balanced: bool
    learner: float = 0.0
    writers: float = 0.0
    whole: float = 0.0
    worst: float = 0.0
    outside: float = 0.0
    round_s: float = 0.0


class LimiterModel:
    """Writers, one learner, and the balance between the shards' limiters.

    Parameters
    ----------
    costs : Costs
    assumed : Assumed
    shards : int
    work : Workload
    balanced : bool
    seed : int
    """

    def __init__(
        self,
        costs: Costs,
        assumed: Assumed,
        shards: int,
        work: Workload,
        balanced: bool = True,
        seed: int = 0,
    ) -> None:
        self._work, self._balanced = work, balanced
        self._rng = np.random.default_rng(seed)
        self.events = EventQueue()
        self._trip_s = costs.round_trip_us / 1e6 + 2 * assumed.latency_s
        self._call_s = costs.call_us / 1e6
        least = max(1_000, round(2 * work.rows_per_s * work.window_s))
        earned = work.samples_per_insert * work.rows_per_s * work.window_s
        # a message, and a batch's part of a shard, have to fit between the bounds
        part = work.batch / shards + 5.0 * (work.batch / shards) ** 0.5 + 5.0
        buffer = max(earned, work.samples_per_insert * work.chunk, part)
        limiter = RateLimiter(
            min_size_to_sample=least,
            samples_per_insert=work.samples_per_insert,
            error_buffer=buffer,
        )
        self._traffic = Traffic()
        self.shards = [SimulatedShard(limiter, self._traffic) for _ in range(shards)]
        self._rates = work.rates(shards)
        self._balance = LimiterBalance(cast(Any, _All(self.shards)), lambda shard: cast(Any, shard))
        self._counts: list[np.ndarray] = []
        self._wanted: list[tuple[SimulatedShard, int]] = []
        earns = float(self._rates.sum()) * work.samples_per_insert
        self._batch_s = work.batch / (earns * work.demand)
        self._due_s = 0.0
        self.found = Fairness(shards, balanced)

    def run(self, seconds: float, warm_s: float = 0.0) -> Fairness:
        """Run for some simulated seconds, and watch after the first ``warm_s`` of them."""
        for shard, rate in zip(self.shards, self._rates, strict=True):
            shard.every_s = self._work.chunk / float(rate)
            self.events.at(float(self._rng.uniform(0.0, shard.every_s)), self._write, shard)
        self.events.at(0.0, self._draw)
        if self._balanced:
            self.events.at(0.0, self._round, 0.0)
        self.events.run(warm_s)
        for shard in self.shards:
            shard.wrote = shard.drawn = 0
        self.events.run(seconds)
        self._balance.close()
        return self._measured(seconds - warm_s)

    # -- writers ---------------------------------------------------------------------------------

    def _write(self, shard: SimulatedShard) -> None:
        """Insert a chunk, and the next one after its time; or wait for the limiter."""
        chunk = self._work.chunk
        if not shard.state.may_insert(chunk):
            shard.writer_waits = True
            return
        shard.state.insert(chunk)
        shard.state.delete(chunk)
        shard.wrote += chunk
        self.events.after(shard.every_s, self._write, shard)
        if self._wanted:
            self._take()

    def _wake(self, shard: SimulatedShard) -> None:
        if shard.writer_waits and shard.state.may_insert(self._work.chunk):
            shard.writer_waits = False
            self._write(shard)

    # -- the learner -----------------------------------------------------------------------------

    def _draw(self) -> None:
        if not self._counts:
            same = [1.0] * len(self.shards)
            self._counts = rows_of_each(self._rng, self._work.batch, same, False, _AT_ONCE)
        counts = self._counts.pop()
        self._wanted = [(self.shards[i], int(counts[i])) for i in np.flatnonzero(counts)]
        self._due_s = self.events.now + self._batch_s
        self._take()

    def _take(self) -> None:
        """Take what the shards give of a batch; the next batch follows when it is whole."""
        left, woken = [], []
        for shard, rows in self._wanted:
            if shard.state.may_sample(rows):
                shard.state.sample(rows)
                shard.drawn += rows
                if shard.writer_waits:
                    woken.append(shard)
            else:
                left.append((shard, rows))
        self._wanted = left
        if not left:
            self.events.at(max(self.events.now, self._due_s), self._draw)
        for shard in woken:
            self._wake(shard)

    # -- the balance -----------------------------------------------------------------------------

    def _round(self, wait_s: float) -> None:
        """Ask and move, as `LimiterBalance` does, all shards at once."""
        traffic = self._traffic
        calls, waits = traffic.calls, traffic.waits
        moved = self._balance.once()
        took_s = (traffic.waits - waits) * self._trip_s + (traffic.calls - calls) * self._call_s
        self._check_bounds()
        often_s = self._balance.often_s
        wait_s = often_s if moved else min(SELDOM_S, max(often_s, 2 * wait_s))
        every_s = wait_s + took_s
        self.found.round_s = max(self.found.round_s, every_s)
        self.events.after(every_s, self._round, wait_s)
        for shard in self.shards:
            self._wake(shard)
        if self._wanted:
            self._take()

    def _check_bounds(self) -> None:
        """Note by how much the sum of the cursors is outside the sum of the bounds."""
        cursors = [cast(Cursor, one.state.balance(one.moved)) for one in self.shards]
        whole = sum(one.cursor for one in cursors)
        low, high = sum(one.low for one in cursors), sum(one.high for one in cursors)
        self.found.outside = max(self.found.outside, low - whole, whole - high)

    # -- what was seen ---------------------------------------------------------------------------

    def _measured(self, seconds: float) -> Fairness:
        work, found = self._work, self.found
        self._check_bounds()
        wrote = np.array([one.wrote for one in self.shards], float)
        drawn = np.array([one.drawn for one in self.shards], float)
        offered = self._rates * seconds
        spi = work.samples_per_insert
        pace = min(1.0, work.demand)
        found.learner = float(drawn.sum() / (offered.sum() * spi * pace))
        found.writers = float((wrote / (offered * pace)).min())
        found.whole = float(abs(drawn.sum() / max(1.0, wrote.sum()) / spi - 1.0))
        found.worst = float(np.abs(drawn / np.maximum(wrote, 1.0) / spi - 1.0).max())
        return found


def least_window_s(costs: Costs, assumed: Assumed, shards: int, share: float = 0.97) -> float:
    """Return an error buffer, as `Workload.window_s`, by which the learner keeps a share of what
    the writers earn: the first that does of 0.5, 1, 2, 4, 8 and 16 s.
    """
    for window_s in (0.5, 1.0, 2.0, 4.0, 8.0):
        model = LimiterModel(costs, assumed, shards, Workload(window_s=window_s))
        if model.run(RUN_S, WARM_S).learner >= share:
            return window_s
    return 16.0
