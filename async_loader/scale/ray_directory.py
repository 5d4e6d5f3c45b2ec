"""The directory of a cluster on Ray, as clients have it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from async_loader.errors import Broken, Closed, ConfigError, Timeout
from async_loader.held_locks import held_lock, unheld
from async_loader.lifecycle import Deadline, seconds
from async_loader.scale import ray_library
from async_loader.scale.directory_actor import DIRECTORY
from async_loader.scale.shard_actor import actor_name
from async_loader.scale.shard_map import Shard, ShardMap
from async_loader.validation import path_of

_ANSWER_S = 10.0
"""What an answer may take beyond the time that the directory waits."""
_PAUSE_S = 0.5
"""Before a directory that died is asked again."""
_LONGEST_S = 60.0


def map_of(said: Mapping[str, Any], known: ShardMap | None = None) -> ShardMap:
    """Return the map of plain values.

    A shard of the map ``known`` that is missing and was not removed stays, as a lost one: a
    directory that was started anew may not have heard of it yet.
    """
    shards = [Shard(**one) for one in said["shards"]]
    there = {one.number for one in shards} | set(said["retired"])
    before = () if known is None else known.shards
    shards += [replace(one, state="lost") for one in before if one.number not in there]
    by_number = tuple(sorted(shards, key=lambda one: one.number))
    return ShardMap(version=said["version"], shards=by_number)


class RayDirectory:
    """Asks the directory actor of a cluster. A `Directory`; any thread.

    Parameters
    ----------
    address : str, optional
        Of Ray, where this process is not connected to it: see `ray_library.join`.
    cluster : str
        The ``name`` in the cluster's settings.
    keys : path, optional
        The folder of a role that ``cluster up`` has made.
    timeout_s : float
        For the first answer.

    Raises
    ------
    MissingExtra
    ConfigError
        There is no Ray, or no such cluster in it.
    Timeout, Broken
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        cluster: str = "default",
        keys: str | os.PathLike[str] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        limit = seconds("timeout_s", timeout_s)
        self._keys = None if keys is None else Path(path_of("keys", keys))
        if self._keys is not None and not self._keys.exists():
            raise ConfigError(f"keys={str(keys)!r}: there is no such file or folder")
        self._cluster, self._closed = cluster, Future[None]()
        self._lock = held_lock(while_waiting=True)
        self._known: ShardMap | None = None
        self._joined = ray_library.join(address)
        try:
            self._actor = self._find()
            self.shard_map(-1, limit)
        except BaseException:
            self.close()
            raise

    def _find(self) -> ray_library.Actor:
        actor = ray_library.find(actor_name(self._cluster, DIRECTORY))
        if actor is None:
            there = [one.partition("/")[0] for one in ray_library.names("") if DIRECTORY in one]
            raise ConfigError(
                f"there is no cluster {self._cluster!r} in this Ray (there are: "
                f"{', '.join(there) or 'none'}): start it by `async-loader cluster up --config "
                "FILE`"
            )
        return actor

    @property
    def keys(self) -> Path | None:
        """See `Directory`."""
        return self._keys

    def shard_map(self, newer_than: int = -1, timeout_s: float = 0.0) -> ShardMap:
        """See `Directory.shard_map`. An actor that died is asked again when Ray has it back."""
        deadline = Deadline(min(seconds("timeout_s", timeout_s), 1e6))
        while True:
            left = deadline.left()
            assert left is not None
            try:
                return self._ask(newer_than, min(left, _LONGEST_S))
            except (Broken, Timeout):
                if self._known is None and deadline.expired:
                    raise
            if deadline.expired and self._known is not None:
                return self._known
            self._wait([], min(_PAUSE_S, deadline.left() or 0.0))

    def _ask(self, newer_than: int, wait_s: float) -> ShardMap:
        if self._closed.done():
            raise Closed("this directory of a cluster is closed")
        limit = wait_s + _ANSWER_S
        asked = ray_library.future_of(self._actor, "shard_map", newer_than, wait_s)
        if not self._wait([asked], limit):
            raise Timeout(f"the directory of cluster {self._cluster!r} did not answer in time")
        with ray_library.our_errors("the directory's shard_map()", limit):
            said = asked.result(0)
        with unheld(self._lock):
            found = map_of(said, self._known)
            if self._known is None or found.version >= self._known.version:
                self._known = found
        return found

    def _wait(self, futures: list[Future[Any]], timeout_s: float) -> bool:
        """Wait for one of them; return whether it is done. Raises Closed."""
        done, _ = concurrent.futures.wait(
            [*futures, self._closed], timeout_s, return_when=FIRST_COMPLETED
        )
        if self._closed in done:
            raise Closed("this directory of a cluster is closed")
        return bool(done)

    def report_lost(self, name: str, incarnation: int) -> None:
        """See `Directory.report_lost`."""
        if not self._closed.done():
            with contextlib.suppress(Broken):
                ray_library.ask(self._actor, "report_lost", name, incarnation)

    def close(self) -> None:
        """See `Directory`."""
        with unheld(self._lock):
            if self._closed.done():
                return
            self._closed.set_result(None)
        if self._joined:
            ray_library.leave()
