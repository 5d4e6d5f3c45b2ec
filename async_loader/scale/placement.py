"""Which shard a new writer is bound to."""

from __future__ import annotations

import random
import threading
from collections import Counter

from async_loader.errors import AsyncLoaderError, Timeout
from async_loader.lifecycle import Deadline, EventFd, readable
from async_loader.scale.connections import Connections
from async_loader.scale.shard_connection import ShardConnection

_ASK_S = 1.0
"""How long a shard may take to say how many writers it has."""


class Placement:
    """Chooses a shard on this host if there is one, else the one with the fewest writers and rows.

    It is asked once for each writer, whose streams stay there. Threads: any.

    Parameters
    ----------
    connections : Connections
    table : str
    """

    def __init__(self, connections: Connections, table: str) -> None:
        self._connections, self._table = connections, table
        self._lock = threading.Lock()
        self._chosen: Counter[str] = Counter()  # writers that the shards may not know yet

    def choose(self, deadline: Deadline) -> ShardConnection:
        """Return the shard of a new writer. Waits until one serves. Raises Timeout."""
        shards = self._serving(deadline)
        near = [one for one in shards if one.is_here]
        shards = near or shards
        with self._lock:
            if len(shards) > 1:
                shards = [min(shards, key=self._load)]
            self._chosen[shards[0].name] += 1
        return shards[0]

    def _load(self, shard: ShardConnection) -> tuple[int, int, float]:
        """Return its writers, its rows, and a number by lot."""
        own = self._chosen[shard.name]
        try:
            tables = shard.client.status(timeout_s=_ASK_S)["tables"]
        except AsyncLoaderError:
            return 1 << 62, 0, 0.0
        said = tables.get(self._table)
        if said is None:
            return own, 0, random.random()
        return max(own, said["writers"]), said["size"], random.random()

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
