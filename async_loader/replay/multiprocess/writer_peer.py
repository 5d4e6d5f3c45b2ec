"""One writer of another process, as the table's process sees it. Under the table's lock."""

from __future__ import annotations

import contextlib
import time

import numpy as np

from async_loader.replay.array_types import Ids
from async_loader.replay.base import ring_format
from async_loader.replay.base.field_table import NO_FIELDS
from async_loader.replay.base.grant_log import GrantLog
from async_loader.replay.base.row_format import TRUNCATED
from async_loader.replay.multiprocess import messages
from async_loader.replay.multiprocess.messages import MessageType
from async_loader.replay.multiprocess.publish_ring import PublishRing
from async_loader.replay.multiprocess.row_need import RowNeed
from async_loader.replay.table.table import Table
from async_loader.shm.fd_channel import FdChannel
from async_loader.shm.segment import close_all

_FAST_S, _SLOW_S = 0.005, 0.05
"""An extent that lasts less than the first is doubled, one that lasts more than the second is
halved.
"""
_FIRST_SIZE = 4


class WriterPeer:
    """The ring of one writer, the rows that it holds, and what it waits for.

    Parameters
    ----------
    number : int
    channel : FdChannel
    ring : PublishRing
    table : Table

    Attributes
    ----------
    pid : int
        0 until the handle is opened.
    death_fd : int
        Readable when the writer's process has ended; -1 until the handle is opened.
    grant_log : GrantLog
        The rows of this writer, and how many were committed.
    issued : int
        Credits that were given and not taken back. Committed steps have used some, the rest may
        still be used.
    need : RowNeed | None
        What a waiting writer wants.
    """

    def __init__(self, number: int, channel: FdChannel, ring: PublishRing, table: Table) -> None:
        self.number, self.channel, self.ring = number, channel, ring
        self.pid, self.death_fd = 0, -1
        self.deaf = False
        self.grant_log = GrantLog(ring.address)
        self.issued = 0
        self.need: RowNeed | None = None
        self.why = ""
        self._table = table
        self.streams: set[int] = set()
        self._size = _FIRST_SIZE
        self._granted_at = 0.0

    def __str__(self) -> str:
        return f"writer {self.number} (pid {self.pid})"

    # -- rows --------------------------------------------------------------------------------------

    def grant(self, at_least: int, most: int) -> int:
        """Grant another extent of ``at_least`` rows, of more if it is due, and of ``most`` at most.

        It is shorter where the memory wraps around. Return how many rows it has.
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
        return count

    def numbers(self, names: list[object]) -> Ids:
        """Return the table's numbers of streams that this writer will write to."""
        numbers = self._table.numbers(names)
        new = set(numbers.tolist()) - self.streams
        self._table.begin_anew(new)
        self._table.hold(new)
        self.streams |= new
        return numbers

    def drop(self, numbers: list[int]) -> None:
        """Release the numbers of streams that this writer does not use any more."""
        ended = {one for one in numbers if one in self.streams and not self._table.is_open(one)}
        self.streams -= ended
        self._table.release(ended)

    # -- messages ----------------------------------------------------------------------------------

    def tell(self, kind: MessageType, a: int = 0, b: int = 0, body: bytes = b"") -> None:
        """Send one record, if the writer is there.

        It reads what it asked for, so that there is always room.
        """
        with contextlib.suppress(OSError):
            messages.send(self.channel, kind, a, b, body)

    def explain(self, why: str) -> None:
        """Tell the writer once for each request why it has to wait."""
        if not self.why:
            self.tell(MessageType.WHY, body=why.encode()[:4096])
        self.why = why

    # -- the end -----------------------------------------------------------------------------------

    def reap_writer(self, state: int = ring_format.IS_CLOSED) -> None:
        """Commit complete records, give up other rows, end the writer's episodes, and close
        everything.
        """
        self._table.commit(np.array([self.grant_log.address]))
        self._table.abandon(self.grant_log.address)
        for stream in self.streams:
            self._table.end_stream(stream, TRUNCATED, NO_FIELDS)
        self._table.release(self.streams)
        self.streams = set()
        self.ring.shut(state)
        self.ring.take_back()
        self.tell(MessageType.CLOSED)
        self.close()

    def close(self) -> None:
        """Close the descriptors. Does not change the table."""
        self.channel.close()
        if self.death_fd >= 0:
            close_all((self.death_fd,))
            self.death_fd = -1
        self.ring.close()
