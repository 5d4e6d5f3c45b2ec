"""The settings of a rate limiter: how far sampling may run ahead of inserting. And limits of tables
that draw each item once, or show sequences. Arithmetic.

# NOTE [capacity of a queue]
The size of a queue counts items, its capacity rows. Where steps stand alone these are the same.
Where the schema or the view links them, rows lie beside the items: the final observation of each
episode, the steps of an open episode that wait for their successors, and the past that the stacks
of its next steps show. So that ``size`` items can wait however short the episodes are, each item
has a row for a final observation, and there are rows for `OPEN_EPISODES` open episodes. Where more
are open, or one stands still while as many rows are written, its steps that wait are given up.
"""

from __future__ import annotations

import math
import numbers
import warnings
from dataclasses import dataclass
from typing import Final

from async_loader.errors import ConfigError
from async_loader.name_hints import explain_wrong_names
from async_loader.replay.arguments import positive
from async_loader.replay.hindsight_view import Hindsight
from async_loader.replay.views import Sequences, View, depth_and_lookahead
from async_loader.schema import Schema


def check_sequences(
    view: Sequences,
    capacity: int,
    surely: int,
    limiter: RateLimiter | None,
    max_times_sampled: int,
) -> None:
    """Raise ConfigError for sequences that a table of ``capacity`` steps can never show.

    ``surely``: how many steps can be drawn while an episode is open.
    """
    if max_times_sampled:
        raise ConfigError(
            "this table counts the draws of each step, and a step is in several sequences: "
            "leave out max_times_sampled, or store each sequence as one step"
        )
    if view.whole:
        return
    if view.span > surely:
        raise ConfigError(
            f"a sequence of {view.span:,} steps does not fit: the table keeps {capacity:,}, raise "
            "the capacity"
        )
    if limiter is None:
        return
    _, most = limiter.bounds
    first = max(limiter.min_size_to_sample, most / limiter.samples_per_insert)
    if first <= view.span:  # its last step waits for the one after it
        raise ConfigError(
            f"{limiter} stop inserting at {first:,.0f} steps, before there is a sequence of "
            f"{view.span:,}: use min_size_to_sample={view.span + 1} or more for each stream"
        )


OPEN_EPISODES: Final = 64
"""Episodes that may be open at once in a queue with a derived capacity: actors, or environments of
a vector.
"""


def capacity_of(size: int, schema: Schema | None, view: View | None = None) -> int:
    """Return the rows of a queue in which ``size`` items can wait.

    Raises ConfigError for a bad size.

    See NOTE [capacity of a queue].
    """
    size = positive("size", size)
    if isinstance(view, Hindsight):
        raise ConfigError(
            "a queue gives each step once, before its episode has achieved much: use a "
            "ReplayBuffer with view=Hindsight(...)"
        )
    if isinstance(view, Sequences):
        raise ConfigError(
            "a queue gives each step once, and a step is in several sequences: store each sequence "
            "as one step of the queue, or use a ReplayBuffer with view=Sequences(...)"
        )
    depth, followed = (1, 0) if schema is None else depth_and_lookahead(schema)
    waiting = (1 if view is None else view.n_steps) - 1 + followed
    if depth == 1 and not waiting:
        return size
    return size * (1 + followed) + OPEN_EPISODES * (depth - 1 + waiting + followed) + 2


def check_stack(schema: Schema | None) -> None:
    """Raise ConfigError for a schema that links steps: a stack reuses rows out of order."""
    linked = [] if schema is None else [field.name for field in schema.fields if field.linked]
    if linked:
        raise ConfigError(
            f"field {linked[0]!r} has a stack= or a next=, which are read from the steps around "
            "it, and a stack takes those out of order: store what a step needs in it, or use "
            "ReplayBuffer.queue(size, schema)"
        )


def check_limiter(limiter: object, max_times_sampled: int) -> None:
    """Raise ConfigError for a value that is not a limiter, and for a queue's limiter in any other
    table.
    """
    if limiter is None:
        return
    if not isinstance(limiter, RateLimiter):
        raise ConfigError(
            f"limiter={limiter!r}: give a RateLimiter or MinSize(n), or make a queue: "
            "ReplayBuffer.queue(size)"
        )
    if limiter.queue_size is not None and max_times_sampled != 1:
        raise ConfigError(
            f"limiter={limiter!r} counts on each item being drawn once, and "
            f"max_times_sampled={max_times_sampled} says otherwise: "
            f"use ReplayBuffer.queue({limiter.queue_size}, schema), or stack(...), which set both"
        )


UNLIMITED: Final = 2**63 - 1
"""The answer of `LimiterState.insertable` and `LimiterState.sampleable` without a limit."""


@dataclass(frozen=True, init=False, repr=False)
class RateLimiter:
    """Sampling starts at a minimum and, with a ratio, keeps pace with inserting, give or take an
    error.

    A sample is one row, not a batch. What is kept between bounds is the cursor,
    ``inserted * samples_per_insert - sampled``: the samples that inserting has earned and sampling
    has not yet spent. The rules are those of Reverb (Cassirer et al. 2021, section 3.3;
    ``rate_limiter.cc``).

    A step counts as inserted when it can be drawn: with ``Field(next=...)`` and n-step returns it
    waits for its successors first. The end of an episode, with which several steps can be drawn at
    once, may move the cursor beyond its bound by these.

    Parameters
    ----------
    min_size_to_sample : int
        Rows that the table must hold before any is sampled. Up to there inserting is free.
    samples_per_insert : float, optional
        How often a row is to be sampled, on average. Without it only the minimum counts: inserting
        never waits, and sampling waits for nothing else (this is `MinSize`).
    error_buffer : float | (float, float), optional
        How far, in samples, the cursor may be from ``min_size_to_sample * samples_per_insert``; or
        its bounds themselves. By default as far as that is from 0, and at least one sample:
        sampling may spend all that inserting has earned and no more, and inserting may be ahead by
        twice what it earns up to the minimum. Batches have to fit between the bounds: for a loader
        give ``batch_size * (prefetch + 1) / 2`` or more.

    Raises
    ------
    ConfigError
        For a minimum below 1, a ratio that is not above 0, an error buffer without a ratio, bounds
        less than ``2 * max(1, samples_per_insert)`` apart, or bounds above the cursor at the
        minimum: these block inserting or sampling for ever.

    Warns
    -----
    UserWarning
        For bounds below the cursor at the minimum: inserting then waits there for a sampler that
        runs at the same time.

    Examples
    --------
    >>> RateLimiter(min_size_to_sample=100, samples_per_insert=4, error_buffer=20).bounds
    (380.0, 420.0)
    >>> RateLimiter(min_size_to_sample=100, samples_per_insert=4).bounds
    (0.0, 800.0)
    """

    min_size_to_sample: int
    samples_per_insert: float
    error_buffer: float | tuple[float, float]

    @explain_wrong_names
    def __init__(
        self,
        *,
        min_size_to_sample: int = 1,
        samples_per_insert: float | None = None,
        error_buffer: float | tuple[float, float] | None = None,
    ) -> None:
        least = positive("min_size_to_sample", min_size_to_sample)
        if samples_per_insert is None and error_buffer is not None:
            raise ConfigError(
                f"error_buffer={error_buffer!r} without samples_per_insert: it is how far that "
                "ratio may be missed, give both or neither"
            )
        ratio, buffer = 1.0, _error_buffer(math.inf)  # one for one, and any number of samples apart
        if samples_per_insert is not None:
            ratio = _number("samples_per_insert", samples_per_insert)
            buffer = _error_buffer(
                max(1.0, least * ratio) if error_buffer is None else error_buffer
            )
        if not 0 < ratio < math.inf:
            raise ConfigError(f"samples_per_insert={ratio:g}: it must be above 0 and finite")
        self._set(least, ratio, buffer)
        self._check_bounds()

    def _set(self, least: int, ratio: float, buffer: float | tuple[float, float]) -> None:
        for name, value in (
            ("min_size_to_sample", least),
            ("samples_per_insert", ratio),
            ("error_buffer", buffer),
        ):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        if self.queue_size is not None:
            return f"Queue({self.queue_size})"
        if (self.samples_per_insert, self.error_buffer) == (1.0, math.inf):
            return f"RateLimiter(min_size_to_sample={self.min_size_to_sample})"
        return (
            f"RateLimiter(min_size_to_sample={self.min_size_to_sample}, "
            f"samples_per_insert={self.samples_per_insert!r}, error_buffer={self.error_buffer!r})"
        )

    def _check_bounds(self) -> None:
        spi, (low, high) = self.samples_per_insert, self.bounds
        least, start = 2 * max(1.0, spi), self.min_size_to_sample * spi
        if not high - low >= least:
            raise ConfigError(
                f"error_buffer={self.error_buffer} leaves {number_text(high - low)} samples "
                "between the bounds; the least that cannot block inserting or sampling is 2 * "
                f"max(1, samples_per_insert) = {number_text(least)}: use {self.buffer_for(least)}"
            )
        if low > start:
            raise ConfigError(
                f"error_buffer={self.error_buffer} starts above {number_text(start)}, which is "
                "samples_per_insert * min_size_to_sample: "
                f"nothing could be sampled there, use a lower bound of at most {number_text(start)}"
            )
        if high < start:
            warnings.warn(
                f"error_buffer={self.error_buffer} ends below {number_text(start)}, which is "
                f"samples_per_insert * min_size_to_sample: with {self.min_size_to_sample:,} rows "
                "inserted the next waits for a sampler that runs at the same time; an upper bound "
                f"of {number_text(start)} or more avoids that",
                stacklevel=4,  # the caller of the constructor
            )

    def hands_out_all(self, times: int, capacity: int) -> bool:
        """Return whether a table of ``capacity`` steps is a queue: it overwrites no item before
        that was drawn ``times`` times.

        That holds if sampling may take every item, and no more may wait than the table has room
        for.
        """
        low, high = self.bounds
        spi = self.samples_per_insert
        return times > 0 and spi == times and low <= 0 and high <= capacity * spi

    @property
    def queue_size(self) -> int | None:
        """Items that may wait in a `Queue`; ``None`` for any other limiter."""
        if not isinstance(self.error_buffer, tuple):
            return None
        low, high = self.error_buffer
        queue = (self.min_size_to_sample, self.samples_per_insert, low) == (1, 1.0, 0.0)
        return math.floor(high) if queue and math.isfinite(high) else None

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest cursor, in samples: Reverb's min_diff and max_diff."""
        if isinstance(self.error_buffer, tuple):
            return self.error_buffer
        start = self.min_size_to_sample * self.samples_per_insert
        return start - self.error_buffer, start + self.error_buffer

    def __str__(self) -> str:
        per_insert, buffer = (
            f"{number_text(self.samples_per_insert)} samples per insert",
            self.error_buffer,
        )
        if isinstance(buffer, tuple):
            return (
                f"{per_insert} and bounds of {number_text(buffer[0])} to {number_text(buffer[1])}"
            )
        return f"{per_insert} and an error buffer of {number_text(buffer)}"

    def buffer_for(self, samples: float) -> str:
        """Say which error buffer has bounds between which ``samples`` samples fit."""
        if isinstance(self.error_buffer, tuple):
            return f"bounds {number_text(math.ceil(samples))} or more apart"
        return f"an error buffer of {number_text(math.ceil(samples / 2))} or more"


def MinSize(n: int) -> RateLimiter:
    """Sampling waits for ``n`` rows; inserting never waits."""
    return RateLimiter(min_size_to_sample=n)


def Queue(size: int) -> RateLimiter:
    """The limiter of `ReplayBuffer.queue` and `ReplayBuffer.stack`: each item is drawn once, and at
    most ``size`` wait.

    Raises
    ------
    ConfigError
        For a size below 1.
    """
    # a queue of 1 works, though its bounds are closer than those of a ratio may be
    limiter = object.__new__(RateLimiter)
    limiter._set(1, 1.0, (0.0, float(positive("size", size))))
    return limiter


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(f"{name}={value!r}: it must be a number")
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        raise ConfigError(f"{name} is larger than any float: give a smaller number") from None


def _error_buffer(value: object) -> float | tuple[float, float]:
    if not isinstance(value, tuple | list):
        return _number("error_buffer", value)
    if len(value) != 2:
        raise ConfigError(f"error_buffer={value!r}: it must be a number, or two: the bounds")
    return _number("error_buffer[0]", value[0]), _number("error_buffer[1]", value[1])


def whole(x: float) -> int:
    """Round down; `UNLIMITED` if a float no longer counts by ones."""
    return math.floor(x) if x < 2**53 else UNLIMITED


def number_text(x: float) -> str:
    return f"{x:,.10g}"
