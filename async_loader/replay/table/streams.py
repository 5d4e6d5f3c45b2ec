"""The streams of a table: their numbers, their open episodes, and how these end. And how many rows
may be written.

# NOTE [queue tables]
Rows are written in order, and the limiter counts items. Rows without items (final observations,
steps that wait for their successors, the past of stacks) take room beside them. So where no item
may be lost, a row is overwritten only when no item in it is still to be drawn, which `room` counts,
and writers wait for that. Steps that wait for successors hold no row: they give way to others, so
that an episode that stands still stops nothing. Spare rows provide what one open episode needs
beside its items, so that a queue of ``capacity`` items fits; and, as long as they are some, the
rows of deleted items, which are free when the order has passed them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Container, Hashable, Iterable

import numpy as np

from async_loader.replay.array_types import Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.table.items import TableItems


class TableStreams(TableItems):
    """The layer of a table that numbers its streams, and counts the room for these. Under the
    table's lock.
    """

    # NOTE [streams]
    # A stream is known by its name while its episode is open or a writer elsewhere holds its
    # number. All others may be forgotten, and are when numbers run short or a checkpoint is made: a
    # stream that goes on after the end of an episode is as good as a new one. So one stream for
    # each episode costs nothing, and `last` is at most twice as long as needed. The same holds for
    # an open episode whose last step has left the table, where no stack would show that something
    # is missing: with stacks, a forgotten stream that goes on would show its first steps as those
    # of a new episode, padded, and so would sequences (`in_sequences`), by `is_first`. And a table
    # whose sequences go on into the next episode (`across`) knows its streams for as long as their
    # last episodes are there.
    #
    # A loaded table has the open episodes of before as they were, but their environments begin
    # anew: what is written to such a stream first ends the old episode there, and is not linked to
    # it.

    def stream(self, name: Hashable) -> int:
        """Return the number of a stream, valid until the next call of this or `numbers` unless it
        is held.
        """
        number = self.streams.get(name)
        if number is None:
            self._make_room(1, (name,))
            number = self._add(name)
        return number

    def numbers(self, names: Iterable[Hashable]) -> Ids:
        """As `stream`, for many."""
        listed = list(names)
        unknown = [name for name in dict.fromkeys(listed) if name not in self.streams]
        if unknown:
            self._make_room(len(unknown), set(listed))
            for name in unknown:
                self._add(name)
        return np.array([self.streams[name] for name in listed], np.int64)

    def _add(self, name: Hashable) -> int:
        """Add a stream, for which there is room."""
        if self._spare:
            number = self._spare.pop()
        else:
            number = self._numbers
            self._numbers = number + 1
        if self.kept is not None:
            self.kept.name(number, name)
        self.streams[name] = number
        return number

    def _make_room(self, more: int, keep: Container[Hashable]) -> None:
        """Make room for ``more`` streams beside those that are open, held, or in ``keep``."""
        if more <= len(self._spare) + len(self.last) - self._numbers:
            return
        self.forget_ended(keep)
        places = len(self.last)
        while places < 2 * (len(self.streams) + more):
            places *= 2
        longer = np.full(places, -1, np.int64) if self.kept is None else self.kept.marks(places)
        longer[: len(self.last)] = self.last
        self.unfinished = True
        self.last = longer
        self._point()
        self.unfinished = False

    def forget_ended(self, keep: Container[Hashable] = ()) -> None:
        """Forget streams whose episodes have ended, except those that are held or in ``keep``.

        See NOTE [streams].
        """
        self.finish()
        last, kept, gone = self.last.tolist(), {}, []
        oldest = int(self.g[r.CURSOR] - self.g[r.CAPACITY]) if self.g[r.ORDERED] else 0
        alone = self.g[r.DEPTH] == 1 and not self.in_sequences
        newest = oldest if self.across else sys.maxsize
        for name, number in self.streams.items():
            is_open = last[number] >= 0
            if is_open and (alone or number in self._stale):
                is_open = last[number] >= oldest
            if is_open or -2 - last[number] >= newest or number in self._held or name in keep:
                kept[name] = number
            else:
                gone.append(number)
        stale = self._stale.difference(gone)
        self.last[gone] = -1  # first: a number is not given away with an open episode
        self.streams, self._spare, self._stale = kept, self._spare + gone, stale

    def hold(self, numbers: Iterable[int]) -> None:
        """Keep the numbers of these streams, which other processes know, until `release`."""
        for number in numbers:
            self._held[number] = self._held.get(number, 0) + 1

    def release(self, numbers: Iterable[int]) -> None:
        """Undo one `hold` of each number."""
        for number in numbers:
            left = self._held.pop(number, 0) - 1
            if left > 0:
                self._held[number] = left

    def is_open(self, number: int) -> bool:
        """Return whether the stream has an open episode."""
        return bool(self.last[number] >= 0)

    def begin_anew(self, numbers: Iterable[int]) -> None:
        """End the episodes of these streams that were open before the table was loaded."""
        self.end(self._stale.intersection(numbers), r.TRUNCATED)

    def go_on_with(self, streams: dict[Hashable, int], stale: set[int]) -> None:
        """Know these streams, whose marks are in a kept file; ``stale`` ones begin anew."""
        self.streams, self._stale = streams, stale
        taken = set(streams.values())
        self._numbers = 1 + max(taken, default=-1)
        self._spare = [number for number in range(self._numbers) if number not in taken]
        places = len(self.last)
        while places < 2 * self._numbers:
            places *= 2
        self.last = self.kept.marks(places)
        self._point()

    def go_on(self) -> None:
        """Have the open episodes of a loaded table go on: their environments do."""
        self._stale.clear()

    def _ready(self, more: int) -> None:
        """Prepare the memory of ``more`` rows that are about to be written for the first time."""
        used = self.items.top
        if used + more > self.storage.ready:
            self.storage.make_ready(used + more)

    # -- room --------------------------------------------------------------------------------------

    def room(self, wanted: int) -> int:
        """Return how many rows may be written now. Where fewer than ``wanted`` are free, steps that
        wait for their successors are given up.
        """
        if self.free is not None:
            return self.free.left()
        before = self.g[r.GIVEN_UP]
        room = int(self._k.room(self.g, wanted))
        if self.g[r.GIVEN_UP] and not before:
            text = (
                f"a step that waited for its successor was given up: all {self.window:,} rows of "
                "the queue were written since; give it a larger capacity, or end episodes that "
                "stand still"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return room

    def surely(self, lookahead: int) -> int:
        """Return how many items a full table holds at every moment, with one open episode and
        ``lookahead`` successors for each item.
        """
        return max(0, self.window - lookahead - int(self.g[r.DEPTH]) + 1)

    @property
    def full(self) -> bool:
        """Whether the oldest items leave for the next rows: final observations and past steps take
        rows too, so there may never be as many items as rows.
        """
        if self.free is not None:
            return self.free.left() == 0
        return int(self.g[r.CURSOR]) >= self.window

    def why_full(self) -> str:
        """Say what the oldest row in use waits for."""
        return (
            f"{self.window - self.room(0):,} of {self.window:,} rows are in use, the oldest by an "
            "item that is still to be drawn"
        )
