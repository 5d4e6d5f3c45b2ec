"""Finds the shards of a cluster on Ray, by the names of their actors."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from typing import Any

from async_loader.errors import AsyncLoaderError, ConfigError
from async_loader.scale import ray_library
from async_loader.scale.shards import Shard

_ANSWER_S = 2.0
"""How long one look waits for the actors: one that is being restarted says where it is later."""


class RayShards:
    """Asks the shards' actors where they listen. A `Finder`.

    Parameters
    ----------
    address : str, optional
        Of Ray, where this process is not connected to it: see `ray_library.join`.
    cluster : str
        The ``name`` in the cluster's settings.

    Raises
    ------
    MissingExtra
    ConfigError
        There is no Ray, or no such cluster in it.
    """

    fixed = False

    def __init__(self, address: str | None = None, cluster: str = "default") -> None:
        self._cluster = cluster
        self._shards: dict[str, Shard] = {}
        self._removed: set[int] = set()
        self._asked: dict[str, Future[Any]] = {}
        self._joined = ray_library.join(address)
        if not ray_library.shard_actors(cluster):
            there = ray_library.clusters()
            self.close()
            raise ConfigError(
                f"there is no cluster {cluster!r} in this Ray (there are: "
                f"{', '.join(there) or 'none'}): start it by `async-loader cluster up --config "
                "FILE`"
            )

    def find(self) -> tuple[Sequence[Shard], AbstractSet[int]]:
        """See `Finder`. An actor that gives no answer in time is asked no second time meanwhile."""
        for name in ray_library.shard_actors(self._cluster):
            if name not in self._asked:
                try:
                    actor = ray_library.actor_of(self._cluster, name)
                    self._asked[name] = ray_library.future_of(actor, "describe")
                except AsyncLoaderError:
                    continue  # it has ended meanwhile
        concurrent.futures.wait(self._asked.values(), _ANSWER_S)
        for name, future in list(self._asked.items()):
            if not future.done():
                continue
            del self._asked[name]
            if future.exception() is None:
                said = future.result()
                self._removed |= set(said["removed"])
                self._shards[name] = Shard(
                    name=name, number=said["number"], address=said["address"], host=said["host"]
                )
        found = [one for one in self._shards.values() if one.number not in self._removed]
        return sorted(found, key=lambda one: one.number), self._removed

    def close(self) -> None:
        """See `Finder`."""
        if self._joined:
            self._joined = False
            ray_library.leave()
