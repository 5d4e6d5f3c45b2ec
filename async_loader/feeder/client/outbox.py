"""Messages of a writer that are not acknowledged, in order, as arithmetic.

::

    base                cursor            high
     │ sent, under way    │ to send again   │ never sent under this number
     ▼                    ▼                 ▼
    [e0 e1 e2 ...        ei ei+1 ...       ek ...      en]      sequence of entry i: base + i

# NOTE [numbers that were used]
A message that was ever sent under a number may still arrive, however often it was rewound. So only
messages from ``high`` on may be dropped: their numbers were never sent.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

_HISTORY = 1 << 16
"""Acknowledged messages whose row counts are kept, for a server that restarts with fewer rows."""


@dataclass(slots=True, eq=False)
class Entry:
    """One message.

    Attributes
    ----------
    payload : Insert
    rows, nbytes : int
    finals : int
        Rows that are final observations, not steps.
    streams : frozenset of int
        Streams that it continues.
    buffer : RowBuffer | None
        The buffer that holds its rows; ``None`` if they were copied out.
    sent : int
        How often it was sent.
    elsewhere : bool
        An earlier server may have had it, and may have delivered its rows.
    """

    payload: Any
    rows: int
    nbytes: int
    finals: int = 0
    streams: frozenset[int] = frozenset()
    buffer: Any = None
    sent: int = 0
    elsewhere: bool = False

    @property
    def steps(self) -> int:
        """Rows that count as steps."""
        return self.rows - self.finals


class Outbox:
    """Delivers each message once, in order, by sending it as often as it takes.

    Parameters
    ----------
    buffer_bytes : int
        Bytes kept at most, sent or not; a single message may be larger.
    done : callable
        Called with each message that is acknowledged, or dropped before it was sent.
    count : callable
        Called with what to add to counts, by the names of `ClientStats`.

    Attributes
    ----------
    queue : bool
        Whether the window bounds also what is kept and not sent, but for one message.
    cursor : int
        Messages that were sent and not yet acknowledged.
    done_total, put_total : int
        Messages that are acknowledged or dropped, and all that were put.
    """

    def __init__(
        self, buffer_bytes: int, done: Callable[[Entry], object], count: Callable[..., object]
    ) -> None:
        self.buffer_bytes, self._done, self._count = buffer_bytes, done, count
        self.window_bytes = self.window_rows = 0
        self.queue = False
        self.base = self.nbytes = self.done_total = self.cursor = 0
        self.entries: deque[Entry] = deque()
        self._high = self._sent_bytes = self._sent_rows = self._acked = 0
        self._history: deque[int] = deque(maxlen=_HISTORY)

    @property
    def put_total(self) -> int:
        return self.done_total + len(self.entries)

    @property
    def rows(self) -> int:
        """Rows in all messages that are kept."""
        return sum(entry.rows for entry in self.entries)

    def left(self) -> int:
        """Return how many rows may be put; that of a queue is 1 while nothing is kept."""
        if not self.queue:
            return sys.maxsize
        return max(self.window_rows - self.rows, not self.entries)

    def room(self, nbytes: int) -> bool:
        """Return whether a message of this size may be put."""
        return not self.entries or (self.nbytes + nbytes <= self.buffer_bytes and self.left() > 0)

    def put(self, entry: Entry) -> None:
        self.nbytes += entry.nbytes
        self.entries.append(entry)

    # -- sending -----------------------------------------------------------------------------------

    def next(self) -> tuple[int, Entry] | None:
        """Return the next message and its sequence; ``None``: none, or the window is full.

        One message fits any window.
        """
        if self.cursor == len(self.entries):
            return None
        entry = self.entries[self.cursor]
        full = (
            self._sent_bytes + entry.nbytes > min(self.window_bytes, self.buffer_bytes)
            or self._sent_rows + entry.rows > self.window_rows
        )
        return None if self.cursor and full else (self.base + self.cursor, entry)

    def sent(self) -> None:
        """Note that the message of `next` was sent."""
        entry, again = self.entries[self.cursor], self.cursor < self._high
        entry.sent += 1
        self._count(messages_sent=1, messages_resent=again, bytes_sent=entry.nbytes)
        self.cursor += 1
        self._high = max(self._high, self.cursor)
        self._sent_bytes += entry.nbytes
        self._sent_rows += entry.rows

    # -- answers -----------------------------------------------------------------------------------

    def acked(self, applied: int) -> bool:
        """Handle a cumulative ACK. Return True if it advances the watermark.

        False for stale ACKs, and for ACKs beyond what was sent.
        """
        count = min(applied - self.base, self._high)
        if count <= 0:
            return False
        rows = 0
        for i in range(count):
            entry = self.entries.popleft()
            self.nbytes -= entry.nbytes
            if i < self.cursor:
                self._sent_bytes -= entry.nbytes
                self._sent_rows -= entry.rows
            self._done(entry)
            self._history.append(entry.steps)
            rows += entry.steps
        self.base += count
        self.cursor = max(0, self.cursor - count)
        self._high -= count
        self.done_total += count
        self._acked += rows
        self._count(messages_acked=count, rows_acked=rows)
        return True

    def reopened(
        self, applied: int, resumed: bool, cut: Callable[[], Entry], another: bool = False
    ) -> int:
        """Reopen at ``applied``; return how many acknowledged rows the server does not have.

        Parameters
        ----------
        resumed : bool
            The server knows the producer. If not, it has none of its rows.
        cut : callable
            Makes what is sent first if acknowledged rows are missing.
        another : bool
            The server is another one than before.
        """
        self.cursor = self._sent_bytes = self._sent_rows = 0  # all that is kept is sent again
        missing, history = self.base - applied, self._history
        if another or not resumed:
            for entry in self.entries:
                entry.elsewhere = entry.elsewhere or entry.sent > 0
        if resumed and missing <= 0:
            self.acked(applied)
            return 0
        if not resumed or missing > len(history):  # more than is remembered: at most all
            lost = self._acked
            history.clear()
        else:
            lost = sum(history.pop() for _ in range(missing))
        self.base, self._high = applied, 0
        if lost and resumed:
            self.put(cut())
            self.entries.rotate(1)
            self.done_total -= 1  # so that earlier values of `put_total` are still reached
        self._acked -= lost
        self._count(rows_lost=lost)
        return lost

    def drop_oldest(self, cut: Callable[[frozenset[int]], Entry]) -> bool:
        """Drop the oldest message with steps that was never sent; return whether there was one.

        ``cut`` makes its replacement, which ends the streams, so that later rows do not continue
        them. Messages before it that have no step are dropped with it.
        """
        dropped: list[Entry] = []
        for entry in islice(self.entries, self._high, None):
            dropped.append(entry)
            if entry.steps:
                break
        else:
            return False
        made = cut(frozenset().union(*(entry.streams for entry in dropped)))
        for entry in dropped:
            del self.entries[self._high]
            self.nbytes -= entry.nbytes
            self._done(entry)
        self.entries.insert(self._high, made)
        self.nbytes += made.nbytes
        self.done_total += len(dropped) - 1
        self._count(rows_dropped=dropped[-1].steps)
        return True
