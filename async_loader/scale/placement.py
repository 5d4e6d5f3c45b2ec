"""Which shard a new writer is bound to."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict

from async_loader.lifecycle import Deadline, EventFd, readable
from async_loader.scale.connections import Connections, ShardConnection
from async_loader.scale.fan_out import ask_all

_ASK_S = 1.0
"""How long a shard may take to say how many writers it has."""
_UNKNOWN = (1 << 62, 0)
"""Of a shard that does not say it in time: it comes last."""
_OPENS_S = 2.0
"""After this time a shard counts a new writer itself."""


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
        self._placed: defaultdict[str, list[float]] = defaultdict(list)

    def choose(self, deadline: Deadline) -> ShardConnection:
        """Return the shard of a new writer. Waits until one serves. Raises Timeout."""
        bell = EventFd()
        self._connections.bells.add(bell)
        try:
            while (found := self._chosen(deadline)) is None:
                if not readable([bell.fileno()], deadline.left()):
                    raise self._connections.nothing(f"a writer of table {self._table!r}")
                bell.clear()
            return found
        finally:
            self._connections.bells.remove(bell)
            bell.close()

    def _chosen(self, deadline: Deadline) -> ShardConnection | None:
        """Return a shard; ``None`` if none takes a writer now."""
        reached = self._connections.reached
        asked = [one for one in reached if one.shard.is_here] or reached
        loads = ask_all(
            self._connections, asked, self._load, Deadline(min(_ASK_S, deadline.left_or_inf()))
        ).found
        with self._lock:
            now = time.monotonic()
            for name, times in self._placed.items():
                self._placed[name] = [at for at in times if at + _OPENS_S > now]
            known = [
                (load[0] + len(self._placed[one.name]), load[1], random.random(), i)
                for i, one in enumerate(asked)
                if (load := loads.get(one.name, _UNKNOWN)) is not None
            ]
            if not known:
                return None
            chosen = asked[min(known)[-1]]
            self._placed[chosen.name].append(now)
        return chosen

    def _load(self, one: ShardConnection, limit: Deadline) -> tuple[int, int] | None:
        """Return its writers and rows; ``None``: it drains."""
        status = one.client.status(timeout_s=limit.left_or_inf())
        if status["draining"]:
            return None
        table = status["tables"].get(self._table)
        return (0, 0) if table is None else (table["writers"], table["size"])
