"""Holds the limiters of all shards as one, by moving samples between them.

# NOTE [one limiter]
By itself, without a call, each shard decides whether it may be inserted into or drawn from:
its own limiter keeps its own table to the ratio. That alone would stop a learner that draws from
shards in proportion to what they hold, as soon as one of them gets fewer steps than the others. So
some times a second the reader of rank 0 asks the shards where their cursors are, and moves samples
from those that have many to those that have few. Samples are taken first, and given then: the sum
of the cursors stays between the sums of the bounds, whatever happens in between. What was taken by
a process that ended before it gave shows in the sum of what was moved, and is given back by the
next one. What a lost shard had been given goes back in the same way.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from async_loader.errors import AsyncLoaderError
from async_loader.feeder.client.table_calls import TableCalls
from async_loader.lifecycle import EndFlag, join, readable
from async_loader.scale.connections import Connections
from async_loader.scale.limiter_shares import ShardCursor, differ, even_shares
from async_loader.scale.shard_connection import ShardConnection

_OFTEN_S, _SELDOM_S = 0.02, 0.2
_SHARDS = 8
"""Shards that are asked every `_OFTEN_S`; more are asked as much less often."""
_ANSWER_S = 0.5
_TOLERANCE = 0.1
_PARTING_S = 2.0


class LimiterBalance:
    """Moves samples between the limiters of one table's shards, in a thread of its own.

    See NOTE [one limiter].

    Parameters
    ----------
    connections : Connections
    calls_of : callable
        Returns the calls of a shard's table.
    """

    def __init__(
        self, connections: Connections, calls_of: Callable[[ShardConnection], TableCalls]
    ) -> None:
        self._connections, self._calls_of = connections, calls_of
        self._end, self._lock = EndFlag(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._wrong_before = False
        weakref.finalize(self, self._end.set)

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._lock:
            if self._thread is None and not self._end.is_set():
                self._thread = threading.Thread(
                    target=_run,
                    args=(weakref.ref(self), self._end),
                    name="async-loader-limiter",
                    daemon=True,
                )
                self._thread.start()

    def close(self) -> None:
        """End the thread, after what it is moving."""
        self._end.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            join(thread, _PARTING_S)

    def once(self) -> bool:
        """Ask all shards, and move what has to be moved; return whether that was anything."""
        there = [one for one in self._connections.all if one.answers]
        asked = [(one, self._ask(one)) for one in there]
        known = [(one, found) for one, found in asked if found is not None]
        if len(known) < 2:
            return False
        cursors = [found for _, found in known]
        shares = even_shares(cursors)
        if not differ(cursors, shares, _TOLERANCE):
            return False
        missing = -sum(one.moved for one in cursors)
        if missing and not self._wrong_before:  # another reader may be about to give them
            self._wrong_before = True
            return True
        self._wrong_before = False
        moves = [
            (one, found.moved, share)
            for (one, found), share in zip(known, shares, strict=True)
            if share != found.moved
        ]
        for one, was, now in moves:
            if now < was and self._move(one, was, now):
                missing += was - now
        for one, was, now in moves:
            more = min(now - was, missing)
            if more > 0 and self._move(one, was, was + more):
                missing -= more
        return True

    def _ask(self, shard: ShardConnection) -> ShardCursor | None:
        try:
            said = self._calls_of(shard).balance(timeout_s=_ANSWER_S)
        except AsyncLoaderError:  # lost, older, or about to end: the others balance without it
            return None
        if said.cursor is None or not said.high > said.low:
            return None
        return ShardCursor(said.moved, said.cursor, said.low, said.high)

    def _move(self, shard: ShardConnection, was: int, now: int) -> bool:
        try:
            return self._calls_of(shard).balance(was, now, timeout_s=_ANSWER_S).moved == now
        except AsyncLoaderError:
            return False

    @property
    def often_s(self) -> float:
        """Seconds between two rounds while something has to be moved."""
        return _OFTEN_S * max(1.0, len(self._connections.all) / _SHARDS)


def _run(balance: weakref.ReferenceType[LimiterBalance], end: EndFlag) -> None:
    wait_s = 0.0
    while not end.is_set():
        readable([end.fileno()], wait_s)
        owner = balance()
        if owner is None or end.is_set():
            return
        moved = owner.once()
        wait_s = owner.often_s if moved else min(_SELDOM_S, max(owner.often_s, 2 * wait_s))
        del owner
