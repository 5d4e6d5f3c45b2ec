"""One writer as the table's owner sees it: its lane, the rows that it holds, what it needs. Under the table's lock."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque

import numpy as np

from async_loader.replay import words
from async_loader.replay.remote import wire
from async_loader.replay.remote.lane import Floats, Ids, Lane
from async_loader.replay.remote.wire import Say
from async_loader.replay.rows import FINAL, TERMINATED, TRUNCATED
from async_loader.replay.staging import NO_FIELDS
from async_loader.replay.table import Table

_FAST_S, _SLOW_S = 0.005, 0.05
"""An extent that lasts less than the one is doubled, one that lasts more than the other is halved."""
_FIRST_SIZE = 4


class Link:
    """The owner's end.

    Parameters
    ----------
    number : int
    sock : socket.socket
    lane : Lane
    table : Table

    Attributes
    ----------
    pid : int
        0 until the handle is opened.
    death_fd : int
        Readable when the writer's process has ended; -1 until the handle is opened.
    held : int
        Rows that were granted and are not adopted.
    issued, stepped : int
        Permits that were given and not taken back; steps that were adopted. The rest may still come.
    need : (int, int) | None
        Rows that the writer wants to have, and steps that it wants permits for, when it waits for them.
    """

    def __init__(self, number: int, sock: socket.socket, lane: Lane, table: Table) -> None:
        self.number, self.sock, self.lane = number, sock, lane
        self.pid, self.death_fd = 0, -1
        self.deaf = False
        self.adopted = self.held = 0
        self.issued = self.stepped = 0
        self.need: tuple[int, int] | None = None
        self.why = ""
        self._table = table
        self._extents: deque[tuple[int, int]] = deque()
        self._streams: set[int] = set()
        self._size = _FIRST_SIZE
        self._granted_at = 0.0

    def __str__(self) -> str:
        return f"writer {self.number} (pid {self.pid})"

    # -- rows ------------------------------------------------------------------------------------------------------------

    def grant(self, at_least: int, most: int) -> None:
        """Another extent, of ``at_least`` rows unless more are due, ``most`` at most; less where the memory wraps around."""
        now = time.monotonic()
        lasted, self._granted_at = now - self._granted_at, now
        if lasted < _FAST_S:
            self._size *= 2
        elif lasted > _SLOW_S:
            self._size //= 2
        self._size = max(1, min(self._size, most))
        first, count = self._table.grant(min(most, max(self._size, at_least)))
        self._extents.append((first, count))
        self.held += count
        self.tell(Say.GRANT, first, count)

    def adopt(self) -> int:
        """Take in what the writer has published; how many records."""
        stop = self.lane.published()
        count = stop - self.adopted
        if count:
            streams, flags, given = self.lane.records(self.adopted, stop)
            start = 0
            for mark in np.flatnonzero(flags & words.NO_ROW).tolist():
                self._adopt_rows(streams[start:mark], flags[start:mark], given[start:mark])
                self._follow(int(streams[mark]), int(flags[mark]))
                start = mark + 1
            self._adopt_rows(streams[start:], flags[start:], given[start:])
            self.stepped += int(((flags & (words.NO_ROW | FINAL)) == 0).sum())
            self.adopted = stop
            self.lane.set_adopted(stop)
        return count

    def _adopt_rows(self, streams: Ids, flags: Ids, given: Floats) -> None:
        burst, start = self._table.storage.layout.burst, 0
        while start < len(streams):
            first, count = self._next(min(burst, len(streams) - start))
            stop = start + count
            self._table.adopt(first, streams[start:stop], flags[start:stop], given[start:stop])
            start = stop

    def _next(self, most: int) -> tuple[int, int]:
        """The next rows in the order in which they were granted."""
        first, left = self._extents.popleft()
        count = min(left, most)
        if count < left:
            self._extents.appendleft((first + count, left - count))
        self.held -= count
        return first, count

    def _follow(self, stream: int, flags: int) -> None:
        """A record that is no row."""
        if flags & words.ENDED:
            self._table.end_stream(stream, flags & (TERMINATED | TRUNCATED), NO_FIELDS)
        else:
            self._give_up(stream)

    def _give_up(self, rows: int) -> None:
        while rows:
            first, count = self._next(rows)
            self._table.abandon(first, count)
            rows -= count

    def numbers(self, names: list[object]) -> Ids:
        """The table's numbers of streams, which this writer will write to."""
        numbers = self._table.numbers(names)
        self._streams.update(numbers.tolist())
        return numbers

    # -- messages --------------------------------------------------------------------------------------------------------

    def tell(self, kind: Say, a: int = 0, b: int = 0, body: bytes = b"") -> None:
        """One record, if the writer is there. It reads what it asked for, so there is always room."""
        with contextlib.suppress(OSError):
            wire.send(self.sock, wire.pack(kind, a, b, body))

    def explain(self, why: str) -> None:
        """Say why what it needs does not come, once for each time that it asks."""
        if not self.why:
            self.tell(Say.WHY, body=why.encode()[:4096])
        self.why = why

    # -- the end ---------------------------------------------------------------------------------------------------------

    def bury(self, state: int = words.IS_CLOSED) -> None:
        """Take in what is complete, give up what is not, end its episodes, and let go of everything."""
        self.adopt()
        self._give_up(self.held)
        for stream in self._streams:
            self._table.end_stream(stream, TRUNCATED, NO_FIELDS)
        self.lane.shut(state)
        self.lane.take_back()
        self.tell(Say.CLOSED)
        self.close()

    def close(self) -> None:
        """Close the descriptors; leave the table alone."""
        self.sock.close()
        if self.death_fd >= 0:
            wire.close_fd(self.death_fd)
            self.death_fd = -1
        self.lane.close()
