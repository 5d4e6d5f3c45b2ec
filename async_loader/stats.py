"""Counters and frozen snapshots. Counters are plain numbers with one writing thread each; reading takes no lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = [
    "LoaderStats",
    "StageStats",
]


class Meter:
    """What one stage has done. Written by that stage's thread only.

    ``with meter.busy():`` and ``with meter.waiting():`` would cost more than what they measure on the hot path, so a
    stage calls `work` and `wait` at the seams between the two instead.
    """

    __slots__ = ("_clock", "_since", "_waiting", "batches", "busy_s", "wait_s", "waits")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since = clock()
        self._waiting = True
        self.batches = 0
        self.waits = 0
        self.busy_s = 0.0
        self.wait_s = 0.0

    def work(self) -> None:
        """From here on the stage works."""
        self._turn(False)

    def wait(self) -> None:
        """From here on the stage waits."""
        self.waits += 1
        self._turn(True)

    def waited(self, since: float) -> None:
        """The stage waited from ``since`` until now, and worked before: one call where two are felt."""
        now = self._clock()
        self.busy_s += since - self._since
        self.wait_s += now - since
        self.waits += 1
        self._since, self._waiting = now, False

    def _turn(self, waiting: bool) -> None:
        now = self._clock()
        if self._waiting:
            self.wait_s += now - self._since
        else:
            self.busy_s += now - self._since
        self._since, self._waiting = now, waiting

    def snapshot(self, depth: int) -> StageStats:
        return StageStats(self.batches, self.waits, self.busy_s, self.wait_s, depth)


@dataclass(frozen=True, slots=True)
class StageStats:
    """One stage of the pipeline.

    Attributes
    ----------
    batches : int
        Finished so far.
    waits : int
        How often it waited.
    busy_s, wait_s : float
        Seconds of work and of waiting, up to the last change between the two.
    depth : int
        Batches (for workers: chunks) in the queue behind it at this moment.
    """

    batches: int
    waits: int
    busy_s: float
    wait_s: float
    depth: int

    @property
    def busy_fraction(self) -> float:
        total = self.busy_s + self.wait_s
        return self.busy_s / total if total else 0.0


def summed(meters: Sequence[Meter], depth: int) -> StageStats:
    """Several threads as one stage."""
    return StageStats(
        sum(meter.batches for meter in meters),
        sum(meter.waits for meter in meters),
        sum(meter.busy_s for meter in meters),
        sum(meter.wait_s for meter in meters),
        depth,
    )


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """A loader at one moment.

    Attributes
    ----------
    source, workers, copy, learner : StageStats
        `source` is the producer thread in ``plan``; `workers` the work on plans, wherever it is done, with seconds
        summed over processes; `copy` the streamer (all zero on the CPU); `learner` the caller of ``next``, whose busy
        time is what it does between two calls.
    slots : int
        In the ring, 0 before the first batch.
    slots_lent : int
        Held by the consumer now.
    copied_out : int
        Batches that were copied instead of lent, because they were small or slots were short.
    skipped : int
        Batches that failed and were passed over (``on_error="skip"``).
    interrupted : int
        Batches that `next` had taken when a signal (Ctrl-C) interrupted it, and that it has not handed out since: 1 until
        the following call hands that batch out, else 0.
    workers_replaced : int
        Workers that died and were started again.
    bottleneck : str
        The stage that the others wait for: ``source``, ``workers``, ``copy`` or ``learner``.
    """

    source: StageStats
    workers: StageStats
    copy: StageStats
    learner: StageStats
    slots: int
    slots_lent: int
    copied_out: int
    skipped: int
    interrupted: int
    workers_replaced: int
    bottleneck: str


def bottleneck(source: StageStats, workers: StageStats, copy: StageStats, learner: StageStats, *, one_thread: bool) -> str:
    """The stage that is busy for the largest share of its time: the others wait for it, or it for none.

    Parameters
    ----------
    one_thread : bool
        `source` and `workers` take turns in one thread (no worker processes): they hold others up together.
    """
    shares = {"source": source.busy_fraction, "workers": workers.busy_fraction, "copy": copy.busy_fraction}
    if one_thread:
        larger = max(("source", "workers"), key=shares.__getitem__)
        shares[larger] = shares["source"] + shares["workers"]
    shares["learner"] = learner.busy_fraction
    return max(shares, key=shares.__getitem__)
