"""How far sampling may run ahead of inserting, as arithmetic.

Holds no lock and no clock; the table calls it under its own.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from async_loader.errors import ConfigError
from async_loader.names import explain_wrong_names

UNLIMITED: Final = 2**63 - 1
"""What `LimiterState.insertable` and `LimiterState.sampleable` say where nothing limits."""


@dataclass(frozen=True, init=False, repr=False)
class RateLimiter:
    """Sampling starts at a minimum and, with a ratio, keeps pace with inserting, give or take an
    error.

    A sample is one row, not a batch. What is kept between bounds is the cursor,
    ``inserted * samples_per_insert - sampled``: the samples that inserting has earned and sampling
    has not yet spent. The rules are those of Reverb (Cassirer et al. 2021, section 3.3;
    ``rate_limiter.cc``).

    A step counts as inserted when it is written, also while it still waits for its successors
    (``Field(next=...)``, n-step returns): the end of an episode, with which several steps can be
    drawn at once, moves the cursor by one step. ``min_size_to_sample`` counts rows that can be
    drawn, and so does everything in a table with ``max_times_sampled``. While the steps that wait
    keep a draw from the items that it needs, inserting goes on beyond the bounds, by as many steps
    as wait.

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
        minimum: these block inserting or sampling for good.

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
        least = _count("min_size_to_sample", min_size_to_sample)
        if samples_per_insert is None and error_buffer is not None:
            raise ConfigError(
                f"error_buffer={error_buffer!r} without samples_per_insert: it is how far that "
                "ratio may be missed, "
                "give both or neither"
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
            f"samples_per_insert={self.samples_per_insert!r}, "
            f"error_buffer={self.error_buffer!r})"
        )

    def _check_bounds(self) -> None:
        spi, (low, high) = self.samples_per_insert, self.bounds
        least, start = 2 * max(1.0, spi), self.min_size_to_sample * spi
        if not high - low >= least:
            raise ConfigError(
                f"error_buffer={self.error_buffer} leaves {_n(high - low)} samples between the "
                "bounds; the least that cannot "
                f"block inserting or sampling is 2 * max(1, samples_per_insert) = {_n(least)}: use "
                f"{self.buffer_for(least)}"
            )
        if low > start:
            raise ConfigError(
                f"error_buffer={self.error_buffer} starts above {_n(start)}, which is "
                "samples_per_insert * min_size_to_sample: "
                f"nothing could be sampled there, use a lower bound of at most {_n(start)}"
            )
        if high < start:
            warnings.warn(
                f"error_buffer={self.error_buffer} ends below {_n(start)}, which is "
                "samples_per_insert * min_size_to_sample: "
                f"with {self.min_size_to_sample:,} rows inserted the next waits for a sampler that "
                "runs at the same time; "
                f"an upper bound of {_n(start)} or more avoids that",
                stacklevel=4,  # the caller of the constructor
            )

    def hands_out_all(self, times: int, capacity: int) -> bool:
        """Whether a table of ``capacity`` steps is a queue: each item is drawn ``times`` times, and
        none is overwritten before.

        So it is where sampling may take every item, and no more may wait than there is room for.
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
        per_insert, buffer = f"{_n(self.samples_per_insert)} samples per insert", self.error_buffer
        if isinstance(buffer, tuple):
            return f"{per_insert} and bounds of {_n(buffer[0])} to {_n(buffer[1])}"
        return f"{per_insert} and an error buffer of {_n(buffer)}"

    def buffer_for(self, samples: float) -> str:
        """In words, an error buffer between whose bounds so many samples fit."""
        if isinstance(self.error_buffer, tuple):
            return f"bounds {_n(math.ceil(samples))} or more apart"
        return f"an error buffer of {_n(math.ceil(samples / 2))} or more"


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
    limiter._set(1, 1.0, (0.0, float(_count("size", size))))
    return limiter


class LimiterState:
    """A table's counts, and what its limiter makes of them. O(1); called under the table's lock.

    Parameters
    ----------
    config : RateLimiter
        May be replaced while running. The counts stay: a new ratio holds for all that was ever
        inserted and sampled.

    Attributes
    ----------
    inserted, sampled, deleted : int
        Items since the table was new. Deletions count for its size only, not for the ratio.
    waiting : int
        Steps that were written and are no items yet. They count for the ratio, not for the size.
    needed : int
        Items that the largest draw so far needs: each of its rows another, where the sampler
        repeats none.
    """

    __slots__ = (
        "_config",
        "_high",
        "_low",
        "_min_size",
        "_spi",
        "deleted",
        "inserted",
        "needed",
        "sampled",
        "waiting",
    )

    def __init__(self, config: RateLimiter) -> None:
        self.inserted = self.sampled = self.deleted = self.waiting = self.needed = 0
        self.config = config

    @property
    def config(self) -> RateLimiter:
        return self._config

    @config.setter
    def config(self, config: RateLimiter) -> None:
        self._config = config
        self._min_size = config.min_size_to_sample
        self._spi = config.samples_per_insert
        self._low, self._high = config.bounds

    def may_insert(self, n: int) -> bool:
        """Whether ``n`` rows may be inserted at once."""
        inserted = self.inserted + n
        written = inserted + self.waiting
        if (
            inserted - self.deleted <= self._min_size
            or written * self._spi - self.sampled <= self._high
        ):
            return True
        return n <= self._free_of_ratio()

    def may_insert_together(self, n: int, promised: int = 0) -> bool:
        """Whether ``n`` rows that go in together or not at all may be inserted, beside ``promised``
        others.

        While nothing can be sampled one row is always let in, and the others come with it.
        """
        if self.may_insert(n + promised):
            return True
        return (
            n * self._spi <= self.window()
            and self.inserted - self.deleted + promised < self._min_size
        )

    def _free_of_ratio(self) -> int:
        """Steps that may be inserted whatever the ratio says, while waiting steps keep a draw from
        its items.

        A step that waits becomes an item with the next one of its stream. So the ratio could stop
        the writers of several streams while the items are too few for any draw, and neither side
        would ever go on.
        """
        lacking = max(self.needed, self._min_size) - self.inserted + self.deleted
        return max(lacking, self.waiting) if self.waiting and lacking > 0 else 0

    def can_ever_insert(self, n: int) -> bool:
        """Whether sampling, and nothing else, leads to where ``n`` rows may be inserted at once."""
        return self.may_insert(n) or n * self._spi <= self.window()

    def may_sample(self, n: int) -> bool:
        """Whether ``n`` rows may be sampled at once."""
        inserted = self.inserted
        written = inserted + self.waiting
        return (
            inserted - self.deleted >= self._min_size
            and written * self._spi - self.sampled - n >= self._low
        )

    def insert(self, n: int) -> None:
        self.inserted += n

    def sample(self, n: int) -> None:
        self.sampled += n

    def delete(self, n: int) -> None:
        self.deleted += n

    def insertable(self) -> int:
        """The most rows that may be inserted at once, now; `UNLIMITED` if nothing limits."""
        by_ratio = _whole((self._high + self.sampled) / self._spi - self.inserted - self.waiting)
        if by_ratio == UNLIMITED:
            return UNLIMITED
        n = max(0, by_ratio, self._min_size - self.inserted + self.deleted, self._free_of_ratio())
        # division rounds
        return n + 1 if self.may_insert(n + 1) else n - 1 if n and not self.may_insert(n) else n

    def sampleable(self) -> int:
        """The most rows that may be sampled at once, now; `UNLIMITED` if nothing limits."""
        if self.inserted - self.deleted < self._min_size:
            return 0
        n = max(0, _whole((self.inserted + self.waiting) * self._spi - self.sampled - self._low))
        if n == UNLIMITED:
            return n
        # as in `insertable`
        return n + 1 if self.may_sample(n + 1) else n - 1 if n and not self.may_sample(n) else n

    def can_ever_sample(self, n: int) -> bool:
        """Whether inserting, and nothing else, leads to where ``n`` rows may be sampled at once.

        Sampling in other amounts may change the answer where ``samples_per_insert`` does not divide
        them. In every state it is yes for ``n <= window() - samples_per_insert``, and once the
        table is full no for ``n > window()``.
        """
        return n <= self._most_at_once()

    def _most_at_once(self) -> int:
        """What may be sampled at once after as many inserts as are allowed.

        They always reach the minimum size.
        """
        more = self.insertable()
        if more == UNLIMITED:
            return UNLIMITED
        return max(
            0, _whole((self.inserted + self.waiting + more) * self._spi - self.sampled - self._low)
        )

    def window(self) -> float:
        """Samples between the two bounds."""
        return self._high - self._low

    def window_warning(self, batch_size: int, ahead: int) -> str | None:
        """What to say of a loader that samples ``ahead`` batches before the one in use, if the
        window cannot hold them all.
        """
        wanted, window = batch_size * (ahead + 1), self.window()
        if wanted <= window:
            return None
        fits = int(window // batch_size) - 1
        fewer = (
            f"prefetch at most {fits}"
            if fits >= 0
            else f"sample at most {_n(math.floor(window))} at a time"
        )
        return (
            f"batches of {batch_size:,} with {ahead:,} ahead are {wanted:,} samples, and "
            f"{self.config} leave a window of "
            f"{_n(window)}: {fewer}, or use {self.config.buffer_for(wanted + self._spi)}"
        )

    def why_not_sample(self, n: int) -> str:
        """Why `may_sample` said no, and what would change it."""
        if not self.can_ever_sample(n):
            return self._never_sampled(n)
        size = self.inserted - self.deleted
        missing = self._inserts_before_sampling(n)
        if size < self._min_size:
            return f"sampling {n:,} needs the table to hold {self._min_size:,} items, it holds {size:,}: add {missing:,} more"
        over = self._low - ((self.inserted + self.waiting) * self._spi - self.sampled - n)
        return (
            f"sampling {n:,} more would be {_n(over)} samples further ahead of inserting than "
            f"{self.config} allow: "
            f"insert at least {missing:,} more"
        )

    def _inserts_before_sampling(self, n: int) -> int:
        written = self.inserted + self.waiting
        by_ratio = (
            math.ceil((self._low + self.sampled + n) / self._spi - written)
            if math.isfinite(self._low)
            else 0
        )
        return max(0, by_ratio, self._min_size - self.inserted + self.deleted)

    def _never_sampled(self, n: int) -> str:
        size = self.config.queue_size
        if size is not None:
            text = f"{n:,} can never be sampled at once: at most {size:,} items wait here"
            return f"{text}: sample fewer at a time, or use a size of {n:,} or more"
        return (
            f"{n:,} can never be sampled at once: {self.config} leave a window of "
            f"{_n(self.window())} samples, and the most "
            f"that inserting alone can make of it now is {self._most_at_once():,}: sample fewer at "
            "a time, or use "
            f"{self.config.buffer_for(n + self._spi)}"
        )

    def why_not_insert(self, n: int) -> str:
        """Why `may_insert` said no, and what would change it."""
        over = (self.inserted + self.waiting + n) * self._spi - self.sampled - self._high
        if n * self._spi > self.window():
            remedy = f"insert at most {_n(self.window() // self._spi)} at a time, of these {self.insertable():,} now"
        else:
            remedy = f"sample at least {_n(math.ceil(over))} more"
        size = self.config.queue_size
        if size is not None:
            waiting = self.inserted + self.waiting - self.sampled
            return f"inserting {n:,} more finds {waiting:,} items that wait to be sampled, and at most {size:,} may: {remedy}"
        return f"inserting {n:,} more would be {_n(over)} samples further ahead of sampling than {self.config} allow: {remedy}"

    def state(self) -> dict[str, int]:
        """The counts, as JSON holds them.

        The limiter is no part of them: a restored table keeps the one it was made with.
        """
        return {"inserted": self.inserted, "sampled": self.sampled, "deleted": self.deleted}

    def restore(self, state: Mapping[str, int]) -> None:
        """Take over the counts of a `state`.

        Raises
        ------
        ConfigError
            If it is none. Nothing has changed then.
        """
        try:
            inserted, sampled, deleted = (
                operator.index(state[name]) for name in ("inserted", "sampled", "deleted")
            )
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"{state!r} lacks the counts inserted, sampled and deleted: use what state() gave"
            ) from error
        if sampled < 0 or not 0 <= deleted <= inserted:
            raise ConfigError(f"{state!r} cannot be a table's counts: use what state() gave")
        self.inserted, self.sampled, self.deleted = inserted, sampled, deleted


def check_room(limiter: RateLimiter | None, capacity: int, surely: int) -> None:
    """Raise ConfigError for a limiter that waits for more items than a table of ``capacity`` steps
    holds at once.

    ``surely``: how many it holds while an episode is open.
    """
    if limiter is None:
        return
    wanted = limiter.min_size_to_sample
    if wanted > surely:
        raise ConfigError(
            f"min_size_to_sample={wanted:,}: {_holds(capacity, surely)}, so that nothing would "
            "ever "
            f"be sampled: use {surely:,} or less, or raise the capacity by {wanted - surely:,}"
        )
    size = limiter.queue_size
    if size is not None and size > surely:
        raise ConfigError(
            f"a queue of {size:,}: {_holds(capacity, surely)}, so that it would never be full: use "
            "a size of "
            f"{surely:,} or less, or raise the capacity by {size - surely:,}"
        )


def _holds(capacity: int, surely: int) -> str:
    if surely >= capacity:
        return f"the table keeps {capacity:,} steps"
    return f"the table keeps {capacity:,} steps, of which {surely:,} can be drawn while an episode is open"


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < 1:
        raise ConfigError(f"{name}={value!r}: it must be an integer of 1 or more")
    return operator.index(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise ConfigError(f"{name}={value!r}: it must be a number")
    return float(value)


def _error_buffer(value: Any) -> float | tuple[float, float]:
    if not isinstance(value, tuple | list):
        return _number("error_buffer", value)
    if len(value) != 2:
        raise ConfigError(f"error_buffer={value!r}: it must be a number, or two: the bounds")
    return _number("error_buffer[0]", value[0]), _number("error_buffer[1]", value[1])


def _whole(x: float) -> int:
    """Rounded down; `UNLIMITED` where a float no longer counts by ones."""
    return math.floor(x) if x < 2**53 else UNLIMITED


def _n(x: float) -> str:
    return f"{x:,.10g}"
