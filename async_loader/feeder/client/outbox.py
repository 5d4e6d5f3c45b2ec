"""What a writer has not yet been told is in the table, in order. Go-back-N, as arithmetic: no socket, no clock, no lock.

::

    base                cursor            high
     │ sent, under way    │ to send again   │ never sent under this number
     ▼                    ▼                 ▼
    [e0 e1 e2 ...        ei ei+1 ...       ek ...      en]      sequence of entry i: base + i

NOTE [numbers that were used]. A message that was ever sent under a number may still arrive, however often it was rewound. So only
those from ``high`` on may be dropped, whose numbers nobody has seen yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

_HISTORY = 1 << 16
"""Messages of which it is remembered how many rows they had, for a server that comes back with less than it had."""


@dataclass(slots=True, eq=False)
class Entry:
    """One message.

    Attributes
    ----------
    rows, nbytes : int
    cut : bool
        It stands where others were dropped, and holds no step.
    sent : int
        How often it was, or may have been.
    finals : int
        Rows that are no steps, but what was observed after one.
    elsewhere : bool
        A server that is no more may have had it, and may have handed its rows out.
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
        """Rows that a user would miss."""
        return 0 if self.cut else self.rows - self.finals


@dataclass(slots=True)
class Counts:
    """Since the outbox was made. `dropped` and `lost` are rows."""

    messages_sent: int = 0
    messages_resent: int = 0
    messages_acked: int = 0
    rows_acked: int = 0
    rows_dropped: int = 0
    rows_lost: int = 0
    bytes_sent: int = 0


class Outbox:
    """Messages that are to be delivered once each, in order, by sending them as often as it takes.

    Parameters
    ----------
    buffer_bytes : int
        Kept at most, whether sent or not; one message is kept however large it is.
    done : callable, optional
        Told of each that was sent once, and is acknowledged: nobody reads it any more.
    """

    def __init__(self, buffer_bytes: int, done: Callable[[Entry], None] | None = None) -> None:
        self.buffer_bytes, self._done = buffer_bytes, done
        self.window_bytes = self.window_rows = 0
        self.base = 0
        self.nbytes = 0
        self.done_total = 0
        """Messages that came in, and are acknowledged or dropped."""
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
        """Messages that came in."""
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

    def room(self, nbytes: int) -> bool:
        """Whether a message of this size may come."""
        return not self.entries or self.nbytes + nbytes <= self.buffer_bytes

    def put(self, entry: Entry) -> None:
        self.nbytes += entry.nbytes
        self.entries += (entry,)

    # -- sending ---------------------------------------------------------------------------------------------------------

    def next(self) -> tuple[int, Entry] | None:
        """The message to send now and its sequence; ``None``: none, or the window is full. One fits any window."""
        if self._cursor == len(self.entries):
            return None
        entry = self.entries[self._cursor]
        full = self._sent_bytes + entry.nbytes > self.window_bytes or self._sent_rows + entry.rows > self.window_rows
        return None if self._cursor and full else (self.base + self._cursor, entry)

    def sent(self) -> None:
        """What `next` gave is on its way."""
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
        """The newest that is under way, to be sent again after long silence: a GAP or an ACK answers it."""
        if not self._cursor:
            return None
        self._rewound = -1
        self.entries[self._cursor - 1].sent += 1
        self.counts.messages_sent += 1
        self.counts.messages_resent += 1
        return self.base + self._cursor - 1, self.entries[self._cursor - 1]

    # -- what comes back -------------------------------------------------------------------------------------------------

    def window(self, nbytes: int, rows: int) -> None:
        self.window_bytes, self.window_rows = nbytes, rows

    def acked(self, applied: int) -> bool:
        """All below ``applied`` are in the table; whether that is news. Old ACKs, and those of what was never sent, are none."""
        count = min(applied - self.base, self._high)
        if count <= 0:
            return False
        for i in range(count):
            entry = self.entries.popleft()
            self.nbytes -= entry.nbytes
            if i < self._cursor:
                self._sent_bytes -= entry.nbytes
                self._sent_rows -= entry.rows
            if entry.sent == 1 and self._done is not None:
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
        """Send again from ``expected``; whether that is news. What is below it may wait in the server: it is no ACK.

        Each of the messages that followed a lost one is answered so; only the first of the answers rewinds.
        """
        back = expected - self.base
        if not 0 <= back < self._cursor or expected == self._rewound:
            return False
        self._rewound = expected
        self._rewind(back)
        return True

    def reopened(self, applied: int, resumed: bool, cut: Entry | None = None) -> int:
        """The writer was opened again, and the server is at ``applied``; the acknowledged rows that it does not have.

        Parameters
        ----------
        resumed : bool
            It knows the producer. If not, it has nothing of it.
        cut : Entry, optional
            To be sent first where acknowledged rows are missing in between.
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
            self.done_total -= 1  # whoever counts up to what was put before still gets there
        self.counts.rows_lost += lost
        return lost

    def drop_oldest(self, cut: Callable[[Sequence[Entry]], Entry]) -> int:
        """Drop the oldest message whose number nobody has seen; its rows, 0 if there is none.

        ``cut`` makes what stands in its place, so that no one takes what comes after for its continuation.
        """
        at = self._high
        taken = list(islice(self.entries, at, at + 2))
        if taken and not taken[0].cut:
            taken = taken[:1]
        rows = sum(entry.steps for entry in taken)
        if not rows:
            return 0
        made = cut(taken)
        added, two = made.nbytes - sum(entry.nbytes for entry in taken), len(taken) == 2
        if two:  # no call from here on: Ctrl-C comes before all of it or after
            del self.entries[at]
            self.done_total += 1
        self.entries[at] = made
        self.nbytes += added
        self.counts.rows_dropped += rows
        return rows

    def _rewind(self, to: int) -> None:
        for entry in islice(self.entries, to, self._cursor):
            entry.sent += 1  # as it will be
            self._sent_bytes -= entry.nbytes
            self._sent_rows -= entry.rows
        self._cursor = to

    def _missing(self, messages: int) -> int:
        """Steps of the last so many acknowledged messages."""
        if messages >= len(self._history) and len(self._history) == _HISTORY:
            lost = self._acked_steps  # more than is remembered: at most all
            self._history.clear()
            return lost
        return sum(self._history.pop() for _ in range(min(messages, len(self._history))))
