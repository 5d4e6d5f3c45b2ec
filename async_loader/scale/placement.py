"""Which shard a new writer is bound to."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from async_loader.errors import AsyncLoaderError, Timeout
from async_loader.held_locks import held_lock, unheld
from async_loader.lifecycle import Deadline, EventFd, readable
from async_loader.scale.connections import Connections
from async_loader.scale.shard_connection import ShardConnection

_ASK_S = 1.0
"""How long a shard may take to say how many writers it has."""
_OPENS_S = 2.0
"""After this time a shard counts a new writer itself."""
_UNKNOWN = 1 << 62
"""Writers of a shard that does not say how many: it comes last."""


class _Choice(NamedTuple):
    """A new writer: when it was given its shard, and how many that had by then."""

    at: float
    writers: int


class Placement:
    """Chooses a shard on this host if there is one, else the one with the fewest writers and rows.

    It is asked once for each writer, whose streams stay there. Threads: any.

    Parameters
    ----------
    connections : Connections
    table : str
    clock : callable
        Monotonic seconds.
    """

    def __init__(
        self,
        connections: Connections,
        table: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections, self._table = connections, table
        self._lock = held_lock(while_waiting=True)
        self._clock = clock
        self._chosen: dict[str, deque[_Choice]] = {}  # writers that the shards may not know yet

    def choose(self, deadline: Deadline) -> ShardConnection:
        """Return the shard of a new writer. Waits until one serves. Raises Timeout."""
        shards = self._serving(deadline)
        near = [one for one in shards if one.is_here]
        shards = near or shards
        with unheld(self._lock):
            if len(shards) == 1:
                return shards[0]
            loads = [self._load(one) for one in shards]
            best = loads.index(min(loads))
            chosen = self._chosen.setdefault(shards[best].name, deque())
            known = loads[best][0]
            chosen.append(_Choice(self._clock(), 0 if known == _UNKNOWN else known))
        return shards[best]

    def _load(self, shard: ShardConnection) -> tuple[int, int, float]:
        """Return its writers, its rows, and a number by lot."""
        try:
            tables = shard.client.status(timeout_s=_ASK_S)["tables"]
        except AsyncLoaderError:
            return _UNKNOWN, 0, 0.0
        said = tables.get(self._table)
        writers, rows = (0, 0) if said is None else (said["writers"], said["size"])
        chosen = self._chosen.get(shard.name, deque())
        while chosen and chosen[0].at + _OPENS_S < self._clock():
            chosen.popleft()  # the shard has counted it by now, or it has ended
        if chosen:
            writers = max(writers, chosen[0].writers + len(chosen))
        return writers, rows, random.random()

    def _serving(self, deadline: Deadline) -> list[ShardConnection]:
        bell = EventFd()
        self._connections.listen(bell)
        try:
            while not (found := [one for one in self._connections.all if one.takes_writers]):
                left = deadline.left()
                if not readable([bell.fileno()], left):
                    states = {one.name: one.shard.state for one in self._connections.all}
                    text = f"no shard takes a writer of table {self._table!r}: {states}"
                    raise Timeout(f"{text}: start a shard, or wait longer")
                bell.clear()
            return found
        finally:
            self._connections.unlisten(bell)
            bell.close()
