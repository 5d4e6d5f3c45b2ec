"""What was lost with the memory of shards, as far as one client knows it."""

from __future__ import annotations

from async_loader.held_locks import held_lock, unheld
from async_loader.scale.connections import Connections
from async_loader.scale.stats import LostRows


class Losses:
    """Remembers how many rows each server of each shard had of one table.

    A server that took the place of another and has fewer rows at first, was started without the
    others. How many acknowledged rows of this client's own writers are missing there, the writers
    know by their sequence numbers. Threads: any.

    Parameters
    ----------
    connections : Connections
    table : str
    """

    def __init__(self, connections: Connections, table: str) -> None:
        self._connections, self._table = connections, table
        self._lock = held_lock()
        self._sizes: dict[tuple[str, int], int] = {}  # by shard and server: as said last
        self._missing: dict[tuple[str, int], int] = {}

    def note(self, shard: str, server: int, items: int) -> None:
        """Note how many items a server has."""
        with unheld(self._lock):
            if (shard, server) not in self._sizes:
                before = [number for name, number in self._sizes if name == shard]
                last = max((number for number in before if number < server), default=None)
                if last is not None and (gone := self._sizes[shard, last] - items) > 0:
                    self._missing[shard, last] = gone
            self._sizes[shard, server] = items

    def lost(self) -> list[LostRows]:
        """Return what was lost so far, by shard and incarnation."""
        found = []
        for one in self._connections.everything():
            acked = one.client.lost(self._table)
            with unheld(self._lock):
                missing = {
                    server: rows
                    for (name, server), rows in self._missing.items()
                    if name == one.name
                }
            for server in sorted({*acked, *missing}):
                found.append(
                    LostRows(
                        shard=one.name,
                        incarnation=one.place.incarnation_of(server),
                        rows=acked.get(server, 0),
                        items=missing.get(server, 0),
                    )
                )
        return found
