"""The connection to one shard."""

from __future__ import annotations

import os
from pathlib import Path

from async_loader.errors import Broken
from async_loader.feeder.client.client import Client
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.curve_keys import load_client_keys
from async_loader.lifecycle import Deadline
from async_loader.scale.hosts import is_here
from async_loader.scale.place import ShardPlace
from async_loader.scale.shard_map import Shard


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
        self.place, self.lost_bytes, self.removed = place, 0, False
        keys = None if key is None else load_client_keys(key)
        self.connection = Connection(place, None, keys=keys, name=name, client=identity)
        self.client = Client(self.connection, timeout_s)

    @property
    def shard(self) -> Shard:
        """The shard as the newest map has it."""
        return self.place.shard

    @property
    def name(self) -> str:
        """Of the shard."""
        return self.place.shard.name

    @property
    def number(self) -> int:
        """Of the shard: the high bits of its ids."""
        return self.place.shard.number

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self.connection.is_open

    @property
    def answers(self) -> bool:
        """Whether there is a session, and the shard was heard a moment ago."""
        return self.answers_s > 0.0

    @property
    def answers_s(self) -> float:
        """Seconds after which it no longer `answers`, without another sign of life."""
        return self.connection.answers_s

    @property
    def takes_writers(self) -> bool:
        """Whether a new writer may be bound to it."""
        return self.is_open and self.shard.state == "serving"

    @property
    def is_here(self) -> bool:
        """Whether it is on this machine."""
        return is_here(self.shard.host)

    def wait_open(self, deadline: Deadline) -> None:
        """Wait for a session. Raises Timeout, Unsupported, ConfigError, Broken."""
        self.connection.wait_open(deadline)

    def follow(self, shard: Shard) -> None:
        """Take what a newer map says of the shard."""
        moved = shard.address != self.shard.address
        self.place.shard = shard
        if moved:
            self.connection.wake()

    def remove(self) -> None:
        """End with Broken: the shard is no part of the cluster any more."""
        self.removed = True
        self.lost_bytes = self.client.stats().bytes_kept
        text = f"{self.name} was removed from the cluster: open another writer or source"
        self.connection.follow(os.eventfd(1), lambda: Broken(text))
