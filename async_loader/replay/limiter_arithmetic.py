"""What a rate limiter decides from the counts of a table. Under the table's lock."""

from __future__ import annotations

import math

from async_loader.errors import ConfigError
from async_loader.replay.rate_limiter import UNLIMITED, RateLimiter, number_text, whole


class LimiterState:
    """The counts of a table, and what its limiter derives from them.

    O(1); called under the table's lock.

    Parameters
    ----------
    config : RateLimiter

    Attributes
    ----------
    inserted, sampled, deleted : int
        Items since the table was new. Deletions count for its size only, not for the ratio. But
        where each item is drawn a number of times, and none is overwritten before (a queue), draws
        that a deleted item had left are in ``sampled``: else its place would never be free again.
    """

    __slots__ = (
        "_high",
        "_low",
        "_min_size",
        "_spi",
        "config",
        "deleted",
        "inserted",
        "sampled",
    )

    def __init__(self, config: RateLimiter) -> None:
        self.inserted = self.sampled = self.deleted = 0
        self.config = config
        self._min_size = config.min_size_to_sample
        self._spi = config.samples_per_insert
        self._low, self._high = config.bounds

    def may_insert(self, n: int) -> bool:
        """Return whether ``n`` rows may be inserted at once."""
        if self.inserted + n - self.deleted <= self._min_size:
            return True
        return (self.inserted + n) * self._spi - self.sampled <= self._high

    def may_insert_together(self, n: int) -> bool:
        """Return whether ``n`` rows may be inserted together.

        While nothing can be sampled one row is always allowed, and the others come with it.
        """
        if self.may_insert(n):
            return True
        return n * self._spi <= self.window() and self.inserted - self.deleted < self._min_size

    def can_ever_insert(self, n: int) -> bool:
        """Return whether sampling alone leads to a state in which ``n`` rows may be inserted at
        once.
        """
        return self.may_insert(n) or n * self._spi <= self.window()

    def may_sample(self, n: int) -> bool:
        """Return whether ``n`` rows may be sampled at once."""
        return (
            self.inserted - self.deleted >= self._min_size
            and self.inserted * self._spi - self.sampled - n >= self._low
        )

    def insertable(self) -> int:
        """Return the most rows that may be inserted at once now; `UNLIMITED` without a limit."""
        by_ratio = whole((self._high + self.sampled) / self._spi - self.inserted)
        if by_ratio == UNLIMITED:
            return UNLIMITED
        n = max(0, by_ratio, self._min_size - self.inserted + self.deleted)
        # division rounds
        return n + 1 if self.may_insert(n + 1) else n - 1 if n and not self.may_insert(n) else n

    def sampleable(self) -> int:
        """Return the most rows that may be sampled at once now; `UNLIMITED` without a limit."""
        if self.inserted - self.deleted < self._min_size:
            return 0
        n = max(0, whole(self.inserted * self._spi - self.sampled - self._low))
        if n == UNLIMITED:
            return n
        # as in `insertable`
        return n + 1 if self.may_sample(n + 1) else n - 1 if n and not self.may_sample(n) else n

    def can_ever_sample(self, n: int) -> bool:
        """Return whether inserting alone leads to a state in which ``n`` rows may be sampled at
        once.

        Sampling in other amounts may change the answer if ``samples_per_insert`` does not divide
        them. It is true in every state for ``n <= window() - samples_per_insert``, and false for
        ``n > window()`` once the table is full.
        """
        return n <= self._most_at_once()

    def _most_at_once(self) -> int:
        """Return how many rows may be sampled at once after all allowed inserts, which always reach
        the minimum size.
        """
        more = self.insertable()
        if more == UNLIMITED:
            return UNLIMITED
        return max(0, whole((self.inserted + more) * self._spi - self.sampled - self._low))

    def carried(self) -> int:
        """Return the samples to be added to the cursor for another limiter to begin where it is at
        the minimum size. Without this the ratio would be asked of all that was ever inserted.
        """
        free = max(0, self._min_size - self.inserted + self.deleted)
        ahead = (self.inserted + free - self._min_size) * self._spi - self.sampled
        return 0 if self.window() == math.inf else -round(ahead)

    def window(self) -> float:
        """Return the samples between the two bounds."""
        return self._high - self._low

    def window_warning(self, batch_size: int, ahead: int) -> str | None:
        """Return a warning if the window cannot hold ``ahead`` batches of a loader; ``None`` if it
        can.
        """
        wanted, window = batch_size * (ahead + 1), self.window()
        if wanted <= window:
            return None
        fits = int(window // batch_size) - 1
        fewer = (
            f"prefetch at most {fits}"
            if fits >= 0
            else f"sample at most {number_text(math.floor(window))} at a time"
        )
        made = f"batches of {batch_size:,} with {ahead:,} ahead are {wanted:,} samples, and "
        if self.config.queue_size:
            return f"{made}the queue holds {window:,.0f}: {fewer}, or use a size of {wanted:,}"
        return (
            f"{made}{self.config} leave a window of "
            f"{number_text(window)}: {fewer}, or use {self.config.buffer_for(wanted + self._spi)}"
        )

    def why_not_sample(self, n: int) -> str:
        """Say why `may_sample` refuses, and what would change it."""
        if not self.can_ever_sample(n):
            return self._never_sampled(n)
        size = self.inserted - self.deleted
        missing = self._inserts_before_sampling(n)
        if size < self._min_size:
            return (
                f"sampling {n:,} needs the table to hold {self._min_size:,} items, it holds "
                f"{size:,}: add {missing:,} more"
            )
        over = self._low - (self.inserted * self._spi - self.sampled - n)
        return (
            f"sampling {n:,} more would be {number_text(over)} samples further ahead of inserting "
            f"than {self.config} allow: insert at least {missing:,} more"
        )

    def _inserts_before_sampling(self, n: int) -> int:
        by_ratio = (
            math.ceil((self._low + self.sampled + n) / self._spi - self.inserted)
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
            f"{number_text(self.window())} samples, and the most that inserting alone can make of "
            f"it now is {self._most_at_once():,}: sample fewer at a time, or use "
            f"{self.config.buffer_for(n + self._spi)}"
        )

    def why_not_insert(self, n: int) -> str:
        """Say why `may_insert` refuses ``n`` insertions, and what would change it."""
        over = (self.inserted + n) * self._spi - self.sampled - self._high
        remedy = f"sample at least {number_text(math.ceil(over))} more"
        if n * self._spi > self.window():
            most = number_text(self.window() // self._spi)
            remedy = f"insert at most {most} at a time, of these {self.insertable():,} now"
        size = self.config.queue_size
        if size is not None:
            waiting = self.inserted - self.sampled
            return (
                f"inserting {n:,} more finds {waiting:,} items that wait to be sampled, and at "
                f"most {size:,} may: {remedy}"
            )
        return (
            f"inserting {n:,} more would be {number_text(over)} samples further ahead of sampling "
            f"than {self.config} allow: {remedy}"
        )


def check_room(limiter: RateLimiter | None, capacity: int, surely: int) -> None:
    """Raise ConfigError for a limiter that waits for more items than a table of ``capacity`` steps
    holds.

    ``surely``: how many it holds while an episode is open.
    """
    if limiter is None:
        return
    wanted = limiter.min_size_to_sample
    if wanted > surely:
        raise ConfigError(
            f"min_size_to_sample={wanted:,}: {_holds(capacity, surely)}, so that nothing would "
            f"ever be sampled: use {surely:,} or less, or raise the capacity by {wanted - surely:,}"
        )
    size = limiter.queue_size
    if size is not None and size > surely:
        raise ConfigError(
            f"a queue of {size:,}: {_holds(capacity, surely)}, so that it would never be full: use "
            f"a size of {surely:,} or less, or raise the capacity by {size - surely:,}"
        )


def _holds(capacity: int, surely: int) -> str:
    if surely >= capacity:
        return f"the table keeps {capacity:,} steps"
    return (
        f"the table keeps {capacity:,} steps, of which {surely:,} can be drawn while an episode is "
        "open"
    )
