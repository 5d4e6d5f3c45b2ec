"""Holds the limiters of all shards as one, by moving samples between them.

# NOTE [one limiter]
By itself, without a call, each shard decides whether it may be inserted into or drawn from:
its own limiter keeps its own table to the ratio. That alone would stop a learner that draws from
shards in proportion to what they hold, as soon as one of them gets fewer steps than the others. So
some times a second the reader of rank 0 asks the shards where their cursors are, all at once, and
moves samples from those that have many to those that have few. Samples are taken first, and given
then: the sum of the cursors stays between the sums of the bounds, whatever happens in between. What
was taken by a process that ended before it gave shows in the sum of what was moved, and is given
back by the next one. What a lost shard had been given goes back in the same way.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

from async_loader.errors import AsyncLoaderError
from async_loader.feeder.client.calls import Call
from async_loader.feeder.client.table_calls import TableCalls
from async_loader.feeder.wire import Balanced
from async_loader.held_locks import held_lock, unheld
from async_loader.lifecycle import Deadline, EndFlag, join, readable
from async_loader.scale.connections import Connections
from async_loader.scale.limiter_shares import ShardCursor, differ, even_shares
from async_loader.scale.shard_connection import ShardConnection

_OFTEN_S, _SELDOM_S = 0.02, 0.2
_SHARDS = 16
"""Shards that are asked every `_OFTEN_S`. More are asked less often, so that there are 800
questions a second at most."""
_ANSWER_S = 0.5
_TOLERANCE = 0.1
_PARTING_S = 2.0


class Move(NamedTuple):
    """Samples that a shard's limiter has from others: it is to have ``now`` if it has ``was``."""

    shard: ShardConnection
    was: int
    now: int


Question = tuple[ShardConnection, int | None, int]
"""A `Move`, or without ``was`` the question where the cursor is."""


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
        self._end, self._lock = EndFlag(), held_lock(while_waiting=True)
        self._thread: threading.Thread | None = None
        self._wrong_before = False
        weakref.finalize(self, self._end.set)

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with unheld(self._lock):
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
        with unheld(self._lock):
            thread = self._thread
        if thread is not None:
            join(thread, _PARTING_S)

    def once(self) -> bool:
        """Ask all shards, and move what has to be moved; return whether that was anything."""
        there = [one for one in self._connections.all if one.answers]
        asked = zip(there, self._cursors(there), strict=True)
        known = [(one, found) for one, found in asked if found is not None]
        wrong_before, self._wrong_before = self._wrong_before, False
        if len(known) < 2:
            return False
        cursors = [found for _, found in known]
        shares = even_shares(cursors)
        if not differ(cursors, shares, _TOLERANCE):
            return False
        missing = -sum(one.moved for one in cursors)
        if missing and not wrong_before:  # another reader may be about to give them
            self._wrong_before = True
            return True
        moves = [
            Move(one, found.moved, share)
            for (one, found), share in zip(known, shares, strict=True)
            if share != found.moved
        ]
        taken = [move for move in moves if move.now < move.was]
        for move, said in zip(taken, self._all_at_once(taken), strict=True):
            if said is not None and said.moved == move.now:
                missing += move.was - move.now
        given = []
        for move in moves:
            more = min(move.now - move.was, missing)
            if more > 0:
                given.append(Move(move.shard, move.was, move.was + more))
                missing -= more
        self._all_at_once(given)  # what was not given shows in the next round
        return True

    def _cursors(self, shards: Sequence[ShardConnection]) -> list[ShardCursor | None]:
        found: list[ShardCursor | None] = []
        for said in self._all_at_once([(one, None, 0) for one in shards]):
            if said is None or said.cursor is None or not said.high > said.low:
                found.append(None)
            else:
                found.append(ShardCursor(said.moved, said.cursor, said.low, said.high))
        return found

    def _all_at_once(self, questions: Sequence[Question]) -> list[Balanced | None]:
        """Send all, then wait for the answers. ``None``: a shard gave no answer, as it is lost,
        older, or about to end; the others balance without it.
        """
        asked: list[tuple[TableCalls, Call] | None] = []
        for shard, was, now in questions:
            try:
                calls = self._calls_of(shard)
                asked.append((calls, calls.ask_balance(was, now)))
            except AsyncLoaderError:
                asked.append(None)
        found: list[Balanced | None] = []
        deadline = Deadline(_ANSWER_S)
        for one in asked:
            try:
                found.append(None if one is None else one[0].balance_of(one[1], deadline))
            except AsyncLoaderError:
                found.append(None)
        return found

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
