"""Counters and frozen snapshots.

Each counter is a plain number with one writing thread; reading takes no lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from async_loader.errors import ConfigError
from async_loader.public_names import set_public_names

__all__ = [
    "LoaderStats",
    "StageStats",
    "Stats",
]
set_public_names(globals())


class Stats:
    """What all snapshots can do: give their numbers, and write them to a logger.

    Attributes
    ----------
    KIND : str
        What is described; the first part of names in logs and metrics.
    COUNTERS : frozenset of str
        Fields that only grow; other numbers are of this moment.
    """

    __slots__ = ()
    KIND: ClassVar[str]
    COUNTERS: ClassVar[frozenset[str]] = frozenset()

    def parts(self) -> Iterator[tuple[str, Stats]]:
        """Return the snapshots inside this one, by name."""
        for field in fields(self):  # type: ignore[arg-type]  # each kind is a dataclass
            value = getattr(self, field.name)
            if isinstance(value, Stats):
                yield field.name, value

    def numbers(self) -> dict[str, float]:
        """Return the fields that are numbers; those of parts, texts and unknown ones are left
        out.
        """
        found = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: float(one) for name, one in found.items() if isinstance(one, int | float)}

    def scalars(self) -> dict[str, float]:
        """Return all numbers, by names such as ``learner/wait_s``."""
        found = dict(self.numbers())
        for name, part in self.parts():
            found.update({f"{name}/{field}": one for field, one in part.scalars().items()})
        return found

    def log_to(self, writer: object, step: int | None = None, prefix: str | None = None) -> None:
        """Write all numbers to TensorBoard, W&B, or a logger like one of them.

        Parameters
        ----------
        writer : object
            With ``add_scalar(tag, value, step)``, as ``SummaryWriter`` has it, or with
            ``log(dict, step=step)``, as a run of W&B has it.
        step : int, optional
            The learner's step.
        prefix : str, optional
            In front of each name, as in ``loader/learner/wait_s``; by default `KIND`.

        Raises
        ------
        ConfigError
            For a writer with neither method.
        """
        first = self.KIND if prefix is None else prefix
        named = {f"{first}/{name}": value for name, value in self.scalars().items()}
        target: Any = writer
        if hasattr(target, "add_scalar"):
            for name, value in named.items():
                target.add_scalar(name, value, step)
        elif hasattr(target, "log"):
            target.log(named, step=step)
        else:
            raise ConfigError(
                f"a {type(writer).__name__} has neither add_scalar(tag, value, step) nor "
                "log(dict, step=): give a SummaryWriter or a run of W&B"
            )


DURATIONS = 26
"""Places for calls of ``next`` by powers of two of microseconds: up to 17 s, and above."""


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

    def _turn(self, waiting: bool) -> None:
        now = self._clock()
        if self._waiting:
            self.wait_s += now - self._since
        else:
            self.busy_s += now - self._since
        self._since, self._waiting = now, waiting

    def snapshot(self, depth: int) -> StageStats:
        return StageStats(self.batches, self.waits, self.busy_s, self.wait_s, depth)


class LearnerMeter(Meter):
    """Counters of the caller of ``next``, and its calls by how long they took."""

    __slots__ = ("durations",)

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(clock)
        self.durations = [0] * DURATIONS

    def waited(self, since: float) -> None:
        """Count a wait from ``since`` until now, with work before it."""
        now = self._clock()
        self.busy_s += since - self._since
        waited = now - since
        self.wait_s += waited
        self.waits += 1
        self._since, self._waiting = now, False
        self.durations[min(int(waited * 1e6).bit_length(), DURATIONS - 1)] += 1


@dataclass(frozen=True, slots=True)
class StageStats(Stats):
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

    KIND: ClassVar[str] = "stage"
    COUNTERS: ClassVar[frozenset[str]] = frozenset({"batches", "waits", "busy_s", "wait_s"})

    batches: int = 0
    waits: int = 0
    busy_s: float = 0.0
    wait_s: float = 0.0
    depth: int = 0

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
class LoaderStats(Stats):
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
    workers_replaced : int
        Workers that died and were restarted.
    drawing_thread : "caller" | "producer"
        The thread that draws: the one that calls ``next``, where a draw costs less than a hand-over
        between threads, or the producer thread, ahead of it.
    bottleneck : str
        The stage that the others wait for: ``source``, ``workers``, ``copy`` or ``learner``.
    durations : tuple of int
        Calls of ``next`` by duration: place i counts those of less than 2**i microseconds and at
        least half of that; the last place, all longer ones.
    """

    KIND: ClassVar[str] = "loader"
    COUNTERS: ClassVar[frozenset[str]] = frozenset({"copied_out", "skipped", "workers_replaced"})

    source: StageStats
    workers: StageStats
    copy: StageStats
    learner: StageStats
    slots: int
    slots_lent: int
    copied_out: int
    skipped: int
    workers_replaced: int
    drawing_thread: Literal["caller", "producer"]
    bottleneck: str
    durations: tuple[int, ...] = ()

    @property
    def wait_fraction(self) -> float:
        """The share of the learner's time that it waited in ``next``: 0 to 1."""
        waited = self.learner.wait_s
        return waited / (waited + self.learner.busy_s) if waited else 0.0

    def numbers(self) -> dict[str, float]:
        """See `Stats.numbers`; with ``wait_fraction``."""
        return {**super(LoaderStats, self).numbers(), "wait_fraction": self.wait_fraction}

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
            "workers replaced": self.workers_replaced,
        }
        said = [f"{count:,} {name}" for name, count in counts.items() if count]
        lines.append(", ".join([f"{self.slots_lent} of {self.slots} slots lent", *said]))
        return "\n".join(lines)

    __repr__ = __str__  # a notebook shows it


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
