"""Counters and frozen snapshots.

Each counter is a plain number with one writing thread; reading takes no lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "LoaderStats",
    "StageStats",
]


class Meter:
    """Counters of one stage. Written by that stage's thread only.

    ``with meter.busy():`` and ``with meter.waiting():`` would cost more than the measured code on
    the hot path, so a stage calls `work` and `wait` at the transitions instead.
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
        """Count the time from here on as work."""
        self._turn(False)

    def wait(self) -> None:
        """Count the time from here on as waiting."""
        self.waits += 1
        self._turn(True)

    def worked(self, since: float) -> None:
        """Count work from ``since`` until now, with a wait before it."""
        now = self._clock()
        self.wait_s += since - self._since
        self.busy_s += now - since
        self.waits += 1
        self._since, self._waiting = now, True

    def waited(self, since: float) -> None:
        """Count a wait from ``since`` until now, with work before it: one call in place of two."""
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
        Number of waits.
    busy_s, wait_s : float
        Seconds of work and of waiting, up to the last transition.
    depth : int
        Batches (for workers: chunks) currently in the queue behind the stage.
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
    """Sum the counters of several threads of one stage."""
    return StageStats(
        sum(meter.batches for meter in meters),
        sum(meter.waits for meter in meters),
        sum(meter.busy_s for meter in meters),
        sum(meter.wait_s for meter in meters),
        depth,
    )


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """State of a loader at one moment.

    Attributes
    ----------
    source, workers, copy, learner : StageStats
        `source` is the producer thread in ``plan``; `workers` the work on plans, in any process or
        thread, with seconds summed over processes; `copy` the streamer (all zero on the CPU);
        `learner` the caller of ``next``, whose busy time is the time between two calls.
    slots : int
        Slots in the ring, 0 before the first batch.
    slots_lent : int
        Slots currently held by the consumer.
    copied_out : int
        Batches that were copied instead of lent, because they were small or slots were short.
    skipped : int
        Failed batches that were skipped (``on_error="skip"``).
    interrupted : int
        Batches that `next` had taken when a signal (Ctrl-C) interrupted it and has not delivered
        since: 1 until the following call delivers that batch, else 0.
    workers_replaced : int
        Workers that died and were restarted.
    drawing_thread : "caller" | "producer"
        The thread that draws: the one that calls ``next``, where a draw costs less than a hand-over
        between threads, or the producer thread, ahead of it.
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
    drawing_thread: Literal["caller", "producer"]
    bottleneck: str

    def __str__(self) -> str:
        """Return a line for each stage, and one for what was out of the ordinary."""
        lines = [f"the others wait for: {self.bottleneck}; drawn by the {self.drawing_thread}"]
        for name in ("source", "workers", "copy", "learner"):
            stage: StageStats = getattr(self, name)
            lines.append(
                f"{name:8} {stage.batches:>10,} batches, {stage.busy_fraction:4.0%} busy, "
                f"{stage.depth} queued"
            )
        counts = {
            "copied out": self.copied_out,
            "skipped": self.skipped,
            "interrupted": self.interrupted,
            "workers replaced": self.workers_replaced,
        }
        said = [f"{count:,} {name}" for name, count in counts.items() if count]
        lines.append(", ".join([f"{self.slots_lent} of {self.slots} slots lent", *said]))
        return "\n".join(lines)


def bottleneck(
    source: StageStats,
    workers: StageStats,
    copy: StageStats,
    learner: StageStats,
    *,
    one_thread: bool,
) -> str:
    """Return the stage with the largest share of busy time: the other stages wait for it.

    Parameters
    ----------
    one_thread : bool
        `source` and `workers` alternate in one thread (no worker processes), so they hold up others
        together.
    """
    shares = {
        "source": source.busy_fraction,
        "workers": workers.busy_fraction,
        "copy": copy.busy_fraction,
    }
    if one_thread:
        larger = max(("source", "workers"), key=shares.__getitem__)
        shares[larger] = shares["source"] + shares["workers"]
    shares["learner"] = learner.busy_fraction
    return max(shares, key=shares.__getitem__)
