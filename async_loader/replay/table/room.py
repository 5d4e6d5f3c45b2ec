"""How many rows of a table may be written.

# NOTE [queue tables]
Rows are written in order, and the limiter counts items. Rows without items (final observations,
steps that wait for their successors, the past of stacks) take room beside them. So where no item
may be lost, a row is overwritten only when nothing in it is still to be drawn, which `room` counts,
and writers wait for that. Spare rows provide what one open episode needs beside its items, so that
a queue of ``capacity`` items fits; and, as long as they are some, the rows of deleted items, which
are free when the order has passed them.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from async_loader.replay.base import row_format as r
from async_loader.replay.table.streams import TableStreams


class TableRoom(TableStreams):
    """The layer of a table that counts its room. Under the table's lock."""

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

    @property
    def waiting(self) -> int:
        """Steps that wait for their successors before they become items. O(rows)."""
        flags = self.storage.heads()[:, r.FLAGS // 8]
        steps = (self.ids >= 0) & (flags & (r.FINAL | r.DELETED) == 0)
        return int(np.count_nonzero(steps)) - len(self)

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
