"""Messages of a writer that are not acknowledged, in order. Go-back-N, as arithmetic.

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
from collections.abc import Callable, Sequence
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
    rows, nbytes : int
    cut : bool
        It replaces dropped messages, and has no step.
    sent : int
        How often it was sent, or may have been.
    finals : int
        Rows that are final observations, not steps.
    elsewhere : bool
        An earlier server may have had it, and may have delivered its rows.
    """

    payload: Any
    rows: int
    nbytes: int
    cut: bool = False
    sent: int = 0
    finals: int = 0
    elsewhere: bool = False

    @property
    def steps(self) -> int:
        """Rows that count as steps."""
        return 0 if self.cut else self.rows - self.finals


@dataclass(slots=True)
class Counts:
    """Counts since the outbox was made."""

    messages_sent: int = 0
    messages_resent: int = 0
    messages_acked: int = 0
    rows_acked: int = 0
    rows_dropped: int = 0
    rows_lost: int = 0
    bytes_sent: int = 0


class Outbox:
    """Delivers each message once, in order, by sending it as often as it takes.

    Parameters
    ----------
    buffer_bytes : int
        Bytes kept at most, sent or not; a single message may be larger.
    done : callable, optional
        Called with each message that is acknowledged, or dropped before it was sent.

    Attributes
    ----------
    queue : bool
        Whether the window bounds also what is kept and not sent, but for one message.
    rows : int
        In all messages that are kept.
    """

    def __init__(self, buffer_bytes: int, done: Callable[[Entry], None] | None = None) -> None:
        self.buffer_bytes, self._done = buffer_bytes, done
        self.window_bytes = self.window_rows = 0
        self.queue = False
        self.base = 0
        self.nbytes = 0
        self.done_total = 0
        """Messages that were put, and are acknowledged or dropped."""
        self.counts = Counts()
        self.entries: deque[Entry] = deque()
        self._cursor = self._high = 0
        self._sent_bytes = self._sent_rows = 0
        self._rewound = -1
        self._acked_steps = 0
        self._history: deque[int] = deque(maxlen=_HISTORY)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def put_total(self) -> int:
        """Messages that were put."""
        return self.done_total + len(self.entries)

    @property
    def end(self) -> int:
        """The sequence of the next message."""
        return self.base + len(self.entries)

    @property
    def under_way(self) -> int:
        """Messages that were sent and not yet acknowledged."""
        return self._cursor

    @property
    def unsent(self) -> int:
        return len(self.entries) - self._cursor

    @property
    def rows(self) -> int:
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
        self.entries += (entry,)

    # -- sending -----------------------------------------------------------------------------------

    def next(self) -> tuple[int, Entry] | None:
        """Return the next message and its sequence; ``None``: none, or the window is full.

        One message fits any window.
        """
        if self._cursor == len(self.entries):
            return None
        entry = self.entries[self._cursor]
        full = (
            self._sent_bytes + entry.nbytes > self.window_bytes
            or self._sent_rows + entry.rows > self.window_rows
        )
        return None if self._cursor and full else (self.base + self._cursor, entry)

    def sent(self) -> None:
        """Note that the message of `next` was sent."""
        entry = self.entries[self._cursor]
        entry.sent += 1
        again = self._cursor < self._high
        self._cursor += 1
        self._high = max(self._high, self._cursor)
        self._sent_bytes += entry.nbytes
        self._sent_rows += entry.rows
        self.counts.messages_sent += 1
        self.counts.messages_resent += again
        self.counts.bytes_sent += entry.nbytes

    def probe(self) -> tuple[int, Entry] | None:
        """Return the newest sent message, to be sent again after long silence.

        ACK or GAP answers it.
        """
        if not self._cursor:
            return None
        self._rewound = -1
        self.entries[self._cursor - 1].sent += 1
        self.counts.messages_sent += 1
        self.counts.messages_resent += 1
        return self.base + self._cursor - 1, self.entries[self._cursor - 1]

    # -- what comes back ---------------------------------------------------------------------------

    def window(self, nbytes: int, rows: int) -> None:
        self.window_bytes, self.window_rows = nbytes, rows

    def acked(self, applied: int) -> bool:
        """Handle a cumulative ACK. Return True if it advances the watermark.

        False for stale ACKs, and for ACKs beyond what was sent.
        """
        count = min(applied - self.base, self._high)
        if count <= 0:
            return False
        for i in range(count):
            entry = self.entries.popleft()
            self.nbytes -= entry.nbytes
            if i < self._cursor:
                self._sent_bytes -= entry.nbytes
                self._sent_rows -= entry.rows
            if self._done is not None:
                self._done(entry)
            self._history.append(entry.steps)
            self._acked_steps += entry.steps
            self.counts.rows_acked += entry.steps
        self.base += count
        self._cursor = max(0, self._cursor - count)
        self._high -= count
        self.done_total += count
        self.counts.messages_acked += count
        return True

    def gap(self, expected: int) -> bool:
        """Send again from ``expected``; return whether this rewinds.

        Not an ACK: earlier messages may wait in the server. Each message behind a lost one is
        answered so; only the first answer rewinds.
        """
        back = expected - self.base
        if not 0 <= back < self._cursor or expected == self._rewound:
            return False
        self._rewound = expected
        self._rewind(back)
        return True

    def reopened(self, applied: int, resumed: bool, cut: Entry | None = None) -> int:
        """Reopen at ``applied``; return how many acknowledged rows the server does not have.

        Parameters
        ----------
        resumed : bool
            The server knows the producer. If not, it has none of its rows.
        cut : Entry, optional
            Sent first if acknowledged rows are missing.
        """
        self._rewound = -1
        self._rewind(0)
        if resumed and applied >= self.base:
            self.acked(applied)
            self._rewind(0)
            return 0
        if not resumed:
            for entry in self.entries:
                entry.elsewhere = entry.elsewhere or entry.sent > 0
        lost = self._missing(self.base - applied) if resumed else self._acked_steps
        self.base, self._high = applied, 0
        self._acked_steps = self._acked_steps - lost if resumed else 0
        if not resumed:
            self._history.clear()
        elif lost and cut is not None:
            self.entries.appendleft(cut)
            self.nbytes += cut.nbytes
            self.done_total -= 1  # so that earlier values of `put_total` are still reached
        self.counts.rows_lost += lost
        return lost

    def drop_oldest(self, cut: Callable[[Sequence[Entry]], Entry]) -> int:
        """Drop the oldest message with steps that was never sent; return its steps, 0: none.

        ``cut`` makes its replacement, which ends the streams, so that later rows do not continue
        them. Messages before it that have no step, cuts and ends of episodes, are dropped with it.
        """
        at, rows = self._high, 0
        while not rows:
            taken = list(islice(self.entries, at, at + 2))
            if taken and taken[0].steps:
                taken = taken[:1]
            elif len(taken) < 2:
                return 0
            rows = sum(entry.steps for entry in taken)
            dropped = rows + sum(not entry.steps and not entry.cut for entry in taken)
            made = cut(taken)
            added, two = made.nbytes - sum(entry.nbytes for entry in taken), len(taken) == 2
            if two:  # no call from here on: Ctrl-C comes before all of it or after
                del self.entries[at]
                self.done_total += 1
            self.entries[at] = made
            self.nbytes += added
            self.counts.rows_dropped += dropped
            if self._done is not None:
                for entry in taken:
                    self._done(entry)
        return rows

    def _rewind(self, to: int) -> None:
        for entry in islice(self.entries, to, self._cursor):
            entry.sent += 1  # once more, when it is sent again
            self._sent_bytes -= entry.nbytes
            self._sent_rows -= entry.rows
        self._cursor = to

    def _missing(self, messages: int) -> int:
        """Return the steps of the last ``messages`` acknowledged messages."""
        if messages >= len(self._history) and len(self._history) == _HISTORY:
            lost = self._acked_steps  # more than is remembered: at most all
            self._history.clear()
            return lost
        return sum(self._history.pop() for _ in range(min(messages, len(self._history))))
