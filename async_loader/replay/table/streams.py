"""The streams of a table: their numbers, their open episodes, and how these end. And how many rows
may be written.

# NOTE [queue tables]
Rows are written in order, and the limiter counts items. Rows without items (final observations,
steps that wait for their successors, the past of stacks) take room beside them. So where no item
may be lost, a row is overwritten only when nothing in it is still to be drawn, which `room` counts,
and writers wait for that. Spare rows provide what one open episode needs beside its items, so that
a queue of ``capacity`` items fits; and, as long as they are some, the rows of deleted items, which
are free when the order has passed them.
"""

from __future__ import annotations

import sys
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
    # of a new episode, padded. But a table whose sequences go on into the next episode (`across`)
    # knows its streams for as long as their last episodes are there.
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
        longer = np.full(places, -1, np.int64)
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
        alone = self.g[r.DEPTH] == 1
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

    def _ready(self, more: int) -> None:
        """Prepare the memory of ``more`` rows that are about to be written for the first time."""
        used = self.items.top
        if used + more > self.storage.ready:
            self.storage.make_ready(used + more)

    # -- room --------------------------------------------------------------------------------------

    def room(self) -> int:
        """Return how many rows may be written before one is overwritten whose item is still to be
        drawn.
        """
        if self.free is not None:
            return self.free.left()
        room = int(self._k.room(self.g, len(self.last)))
        if room <= 1 and self._stale:  # episodes from before a load never go on
            self.begin_anew(self._stale)
            room = int(self._k.room(self.g, len(self.last)))
        return room

    def room_for(self, streams: Container[int]) -> int:
        """As `room`, for writing to these streams.

        An open episode pins its newest steps, and goes on only if there are rows for its next ones.
        So each leaves that many rows to every other, and only the one that pins the oldest row in
        use may take all that are left: that row is released in the end, in whatever order episodes
        go on.
        """
        room, per = self.room(), self.reserve
        if not per or room >= 2 + per * len(self.streams):
            return room
        if self.tail_stream() in streams:
            return room
        others = sum(
            1 for number in np.flatnonzero(self.last >= 0).tolist() if number not in streams
        )
        return max(0, room - per * others)

    @property
    def reserve(self) -> int:
        """Rows that an open episode needs until its oldest pinned step is released; 0 if it pins
        none.
        """
        ahead, depth = int(self.g[r.LOOKAHEAD]), int(self.g[r.DEPTH])
        pins = self.free is None and (ahead or depth > 1)
        return max(1, ahead) + int(self.g[r.FOLLOWED]) if pins else 0

    def tail_stream(self) -> int:
        """Return the stream whose open episode pins the oldest row in use; -1 if none does."""
        tail = int(self.g[r.TAIL])
        row = tail % self.storage.layout.rows
        if self.items.alive[row]:
            return -1
        numbers = np.flatnonzero(self.last >= tail).tolist()
        return next((number for number in numbers if self._shows(int(self.last[number]), tail)), -1)

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
        oldest = int(self.g[r.CURSOR]) - self.window
        rows = np.arange(oldest, oldest + min(self.window, max(4, self.window // 16)))
        return oldest >= 0 and bool(self.items.alive[rows % self.storage.layout.rows].any())

    def why_full(self) -> str:
        """Say what the oldest row in use waits for."""
        if self.free is not None or self.room() >= self.window:
            return (
                f"all {self.storage.layout.capacity:,} rows hold items that are still to be drawn"
            )
        tail = int(self.g[r.TAIL])
        row = tail % self.storage.layout.rows
        if self.items.alive[row]:
            return f"{self._full()}, the oldest by an item that is still to be drawn"
        keeps = self.tail_stream()
        stream = next((name for name, number in self.streams.items() if number == keeps), None)
        return (
            f"{self._full()}, the oldest by the open episode of stream {stream!r}: add its next "
            "step, or end_episode() lets it go"
        )

    def _full(self) -> str:
        room = self.room()
        if not room:
            return f"all {self.window:,} rows are in use"
        return (
            f"{self.window - room:,} of {self.window:,} rows are in use and the rest is kept for "
            "open episodes (a larger capacity avoids that)"
        )

    def _shows(self, last: int, name: int) -> bool:
        """Return whether later items of an open episode need this step."""
        heads, rows = self.storage.heads(), self.storage.layout.rows
        for _ in range(int(self.g[r.DEPTH] + self.g[r.LOOKAHEAD])):
            if last < name or self.ids[last % rows] != last:
                return False
            if last == name:
                return True
            last = int(heads[last % rows, r.PREV // 8])
        return False
