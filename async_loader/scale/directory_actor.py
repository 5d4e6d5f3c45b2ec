"""The actor that knows the shards: one for each cluster, started again by Ray when it dies.

# NOTE [who tells whom]
The directory follows each shard: a call to its actor that waits for a change, again and again. So a
directory that is started anew needs no file: Ray knows the names of the shards' actors, and they
say what they are. Nothing that runs waits for the directory meanwhile: clients go on with the map
that they have, and shards do not know it at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import asdict
from typing import Any

from async_loader.lifecycle import Deadline
from async_loader.scale import ray_library
from async_loader.scale.membership import Membership
from async_loader.scale.shard_actor import actor_name

DIRECTORY = "directory"
_FOLLOW_S = 60.0
_PAUSE_S = (0.2, 3.0)
"""Before an actor that cannot be reached is asked again: doubled from the first to the second."""
_VERIFY_S = 2.0
_REBUILD_S = 5.0
"""How long a directory that was started anew waits for the shards before it answers."""
LOST_S = 10.0
"""A shard is lost when its actor could not be reached for this time, or when a client could not
reach its feeder either."""


class DirectoryActor:
    """Knows the shards of one cluster. All methods may wait at the same time.

    Parameters
    ----------
    cluster : str
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._members = Membership(time.time_ns() // 1_000)
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._more, self._heard = asyncio.Event(), asyncio.Event()
        self._unheard: set[str] = set()
        self._begun = False
        self._verifying: set[str] = set()

    def _begin(self) -> None:
        """Follow the shards that Ray knows. At the first call, as it takes a running loop."""
        if not self._begun:
            self._begun = True
            prefix = actor_name(self._cluster, "shard-")
            names = [one.partition("/")[2] for one in ray_library.names(prefix)]
            self._unheard = set(names)
            self._follow_all(names)

    async def _rebuilt(self) -> None:
        """Wait until each shard has answered, or could not, or has had time: see `_REBUILD_S`."""
        self._begin()
        deadline = Deadline(_REBUILD_S)
        while self._unheard and not deadline.expired:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._heard.wait(), deadline.left())
        self._unheard.clear()

    def _has_heard(self, name: str) -> None:
        self._unheard.discard(name)
        self._heard.set()
        self._heard = asyncio.Event()

    def _follow_all(self, names: list[str]) -> None:
        for name in names:
            if name not in self._followed:
                self._followed[name] = asyncio.get_running_loop().create_task(self._follow(name))

    async def _follow(self, name: str) -> None:
        """Follow one shard until it is forgotten. See NOTE [who tells whom]."""
        seen, pause_s, silent = -1, _PAUSE_S[0], Deadline(LOST_S)
        while True:
            actor = ray_library.find(actor_name(self._cluster, name))
            try:
                if actor is None:
                    raise LookupError("Ray does not know its actor any more")
                while True:
                    said = await ray_library.ask(actor, "changed", seen, _FOLLOW_S)
                    seen, pause_s = said["serial"], _PAUSE_S[0]
                    silent = Deadline(LOST_S)
                    self._note(self._members.describe(said))
                    self._has_heard(name)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # of Ray, whatever it is: the actor is not to be reached
                seen = -1
                if silent.expired:  # its process may serve on for a while without it
                    self._note(self._members.lost(name, str(error).strip()[:300]))
                self._has_heard(name)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._more.wait(), pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S[1])

    def _note(self, changed: bool) -> None:
        if changed:
            self._news.set()
            self._news = asyncio.Event()

    # -- clients ---------------------------------------------------------------------------------

    async def shard_map(self, newer_than: int, timeout_s: float) -> dict[str, Any]:
        """Return the map in plain values; see `Directory.shard_map`."""
        await self._rebuilt()
        self._note(self._members.not_behind(newer_than))
        if self._members.version <= newer_than:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), timeout_s)
        return self._map()

    def _map(self) -> dict[str, Any]:
        shards = [asdict(one) for one in self._members.shards()]
        retired = sorted(self._members.retired)
        return {"version": self._members.version, "shards": shards, "retired": retired}

    async def report_lost(self, name: str, incarnation: int) -> None:
        """Check what a client says: ask the shard, and mark it lost if it does not answer."""
        self._begin()
        if self._members.incarnation(name) != incarnation or name in self._verifying:
            return
        self._verifying.add(name)
        try:
            actor = ray_library.find(actor_name(self._cluster, name))
            if actor is None:
                raise LookupError("Ray does not know its actor any more")
            said = await asyncio.wait_for(ray_library.ask(actor, "describe"), _VERIFY_S)
            self._note(self._members.describe(said))
        except Exception as error:  # of Ray, or no answer in time
            why = str(error).strip()[:300] or f"it did not answer within {_VERIFY_S:g} s"
            self._note(self._members.lost(name, why))
        finally:
            self._verifying.discard(name)

    # -- the operator ----------------------------------------------------------------------------

    async def follow(self, names: list[str]) -> None:
        """Follow shards that were started."""
        self._begin()
        self._follow_all(names)
        self._more.set()  # the pauses of those that are not to be reached are over
        self._more = asyncio.Event()

    async def forget(self, names: list[str]) -> None:
        """Remove shards for good; their numbers are not given again."""
        self._begin()
        for name in names:
            task = self._followed.pop(name, None)
            if task is not None:
                task.cancel()
        self._members.forget(names)
        self._note(True)
        retired = sorted(self._members.retired)
        for name in self._followed:
            actor = ray_library.find(actor_name(self._cluster, name))
            if actor is not None:
                ray_library.ask(actor, "remember", retired)

    async def describe(self) -> dict[str, Any]:
        """Return the map, and what is known beside it: for `cluster status`."""
        await self._rebuilt()
        members = self._members
        return {
            **self._map(),
            "followed": sorted(self._followed),
            "retired": sorted(members.retired),
            "reasons": dict(members.reasons),
            "details": {name: dict(said) for name, said in members.details.items()},
        }
