"""One writer as the table's owner sees it: its lane, the rows that it holds, what it needs.

Under the table's lock.
"""

from __future__ import annotations

import contextlib
import socket
import time

import numpy as np

from async_loader.replay.base import ring_format
from async_loader.replay.base.field_table import NO_FIELDS
from async_loader.replay.base.grant_log import GrantLog
from async_loader.replay.base.row_format import TRUNCATED
from async_loader.replay.multiprocess import messages
from async_loader.replay.multiprocess.messages import MessageType
from async_loader.replay.multiprocess.publish_ring import Ids, PublishRing
from async_loader.replay.table.table import Table

_FAST_S, _SLOW_S = 0.005, 0.05
"""An extent that lasts less than the one is doubled, one that lasts more than the other is halved.
"""
_FIRST_SIZE = 4


class WriterPeer:
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
    grant_log : GrantLog
        Its rows, and what was adopted of it.
    issued : int
        InsertCredits that were given and not taken back. As many of them as there are steps that
        were adopted are used up, the rest may still come.
    need : (int, int) | None
        Rows that the writer wants to have, and steps that it wants permits for, when it waits for
        them.
    """

    def __init__(self, number: int, sock: socket.socket, lane: PublishRing, table: Table) -> None:
        self.number, self.sock, self.lane = number, sock, lane
        self.pid, self.death_fd = 0, -1
        self.deaf = False
        self.grant_log = GrantLog(lane.address)
        self.issued = 0
        self.need: tuple[int, int] | None = None
        self.why = ""
        self._table = table
        self.streams: set[int] = set()
        self._size = _FIRST_SIZE
        self._granted_at = 0.0

    def __str__(self) -> str:
        return f"writer {self.number} (pid {self.pid})"

    # -- rows --------------------------------------------------------------------------------------

    def grant(self, at_least: int, most: int) -> None:
        """Another extent, of ``at_least`` rows unless more are due, ``most`` at most; less where
        the memory wraps around.
        """
        now = time.monotonic()
        lasted, self._granted_at = now - self._granted_at, now
        if lasted < _FAST_S:
            self._size *= 2
        elif lasted > _SLOW_S:
            self._size //= 2
        self._size = max(1, min(self._size, most))
        first, count = self._table.grant(min(most, max(self._size, at_least)))
        self.grant_log.granted(first, count)
        self.tell(MessageType.GRANT, first, count)

    def numbers(self, names: list[object]) -> Ids:
        """The table's numbers of streams, which this writer will write to."""
        numbers = self._table.numbers(names)
        new = set(numbers.tolist()) - self.streams
        self._table.begin_anew(new)
        self._table.hold(new)
        self.streams |= new
        return numbers

    def drop(self, numbers: list[int]) -> None:
        """This writer does not use these numbers any more, and has ended their episodes."""
        ended = {one for one in numbers if one in self.streams and not self._table.is_open(one)}
        self.streams -= ended
        self._table.release(ended)

    # -- messages ----------------------------------------------------------------------------------

    def tell(self, kind: MessageType, a: int = 0, b: int = 0, body: bytes = b"") -> None:
        """One record, if the writer is there.

        It reads what it asked for, so there is always room.
        """
        with contextlib.suppress(OSError):
            messages.send(self.sock, messages.pack(kind, a, b, body))

    def explain(self, why: str) -> None:
        """Say why what it needs does not come, once for each time that it asks."""
        if not self.why:
            self.tell(MessageType.WHY, body=why.encode()[:4096])
        self.why = why

    # -- the end -----------------------------------------------------------------------------------

    def reap_writer(self, state: int = ring_format.IS_CLOSED) -> None:
        """Take in what is complete, give up what is not, end its episodes, and let go of
        everything.
        """
        self._table.adopt(np.array([self.grant_log.address]))
        self._table.abandon(self.grant_log.address)
        for stream in self.streams:
            self._table.end_stream(stream, TRUNCATED, NO_FIELDS)
        self._table.release(self.streams)
        self.streams = set()
        self.lane.shut(state)
        self.lane.take_back()
        self.tell(MessageType.CLOSED)
        self.close()

    def close(self) -> None:
        """Close the descriptors; leave the table alone."""
        self.sock.close()
        if self.death_fd >= 0:
            messages.close_fd(self.death_fd)
            self.death_fd = -1
        self.lane.close()
