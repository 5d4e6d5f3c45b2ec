"""The connection to one shard."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from async_loader.errors import Broken
from async_loader.feeder.client.client import Client
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.table import TableClient
from async_loader.feeder.curve_keys import load_client_keys
from async_loader.lifecycle import EventFd
from async_loader.scale.shards import Shard


class Bells:
    """Rung when a shard is lost, reached, added or removed. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bells: list[EventFd] = []

    def add(self, bell: EventFd) -> None:
        """Ring it from here on."""
        with self._lock:
            self._bells.append(bell)

    def remove(self, bell: EventFd) -> None:
        """Ring it no more: from here on it may be closed."""
        with self._lock:
            self._bells = [one for one in self._bells if one is not bell]

    def ring(self) -> None:
        """Ring all."""
        with self._lock:
            for bell in self._bells:
                bell.ring()


class ShardPlace:
    """Where a shard is, as its connection's IO thread asks it: a `Whereabouts`.

    Parameters
    ----------
    shard : Shard
        Replaced when it has moved.
    bells : Bells
    look : callable
        Called when the shard is lost: it may be somewhere else.
    """

    def __init__(self, shard: Shard, bells: Bells, look: Callable[[], None]) -> None:
        self.shard, self._bells, self._look = shard, bells, look

    def now(self) -> str:
        """See `Whereabouts`."""
        return self.shard.address

    def reached(self, server: int) -> None:
        """See `Whereabouts`."""
        self._bells.ring()

    def lost(self) -> None:
        """See `Whereabouts`."""
        self._look()
        self._bells.ring()

    def ended(self) -> None:
        """See `Whereabouts`."""
        self._bells.ring()


class ShardConnection:
    """One shard, and this process's client of it. Threads: any.

    Parameters
    ----------
    place : ShardPlace
    key : path | None
        The client's secret file.
    name : str
        Of the client, for the shard's status.
    identity : bytes
        The same for all shards of a client, so that the weights that it publishes are one run.
    timeout_s : float

    Attributes
    ----------
    client : Client
        It reconnects for as long as it takes, wherever the shard is by then.
    lost_bytes : int
        Of rows that were not acknowledged when the shard was removed.
    removed : bool
        The shard is no part of the cluster any more.
    """

    def __init__(
        self, place: ShardPlace, key: Path | None, name: str, identity: bytes, timeout_s: float
    ) -> None:
        self._place, self.lost_bytes, self.removed = place, 0, False
        keys = None if key is None else load_client_keys(key)
        self.connection = Connection(place, None, keys=keys, name=name, client=identity)
        self.client = Client(self.connection, timeout_s)
        self._tables: dict[str, TableClient] = {}

    @property
    def shard(self) -> Shard:
        """The shard as it was found last."""
        return self._place.shard

    @property
    def name(self) -> str:
        """Of the shard."""
        return self._place.shard.name

    @property
    def number(self) -> int:
        """Of the shard: the high bits of its ids."""
        return self._place.shard.number

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self.connection.is_open

    @property
    def answers(self) -> bool:
        """Whether there is a session, and the shard was heard a moment ago."""
        return self.connection.answers_s > 0.0

    def table(self, name: str) -> TableClient:
        """Return a table of this shard; the same for each call, which knows its schema."""
        found = self._tables.get(name)
        return self._tables.setdefault(name, self.client.table(name)) if found is None else found

    def follow(self, shard: Shard) -> None:
        """Go where the shard is now."""
        moved = shard.address != self.shard.address
        self._place.shard = shard
        if moved:
            self.connection.wake()

    def remove(self) -> None:
        """End with Broken: the shard is no part of the cluster any more."""
        self.removed = True
        self.lost_bytes = self.client.stats().bytes_kept
        text = f"{self.name} was removed from the cluster: open another writer or source"
        self.connection.follow(os.eventfd(1), lambda: Broken(text))
