"""The actor of a shard, as Ray runs it: one on the shard's node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from async_loader.errors import AsyncLoaderError
from async_loader.feeder import connect
from async_loader.feeder.status import FeederStatus
from async_loader.scale import ray_library
from async_loader.scale.shard_plan import ShardPlan
from async_loader.scale.shard_supervisor import ShardSupervisor

T = TypeVar("T")
_ASK_S = 10.0


def actor_name(cluster: str, shard: str) -> str:
    """Return the name by which Ray knows the actor of a shard."""
    return f"{cluster}/{shard}"


class ShardActor:
    """Supervises the process of one shard. All methods may wait at the same time.

    Parameters
    ----------
    plan : ShardPlan
    """

    def __init__(self, plan: ShardPlan) -> None:
        self._serial = 0
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._node = ray_library.node_id()
        self._retired: set[int] = set()
        self._supervisor = ShardSupervisor(plan, ray_library.node_address(), self._changed)

    def _changed(self) -> None:
        """Wake the calls of `changed`. On the supervisor's thread."""
        self._serial += 1
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def changed(self, seen: int, timeout_s: float) -> dict[str, Any]:
        """Return what the shard is, when it is not what it was at ``seen``, or after the time."""
        self._loop = asyncio.get_running_loop()
        news = self._news
        if self._serial == seen:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), timeout_s)
        return self._describe()

    def _describe(self) -> dict[str, Any]:
        return {
            "serial": self._serial,
            "node": self._node,
            "retired": sorted(self._retired),
            **self._supervisor.describe(),
        }

    async def describe(self) -> dict[str, Any]:
        """Return what the shard is now."""
        return self._describe()

    async def remember(self, retired: list[int]) -> None:
        """Keep numbers of shards that are not to be given again, for the directory."""
        self._retired |= set(retired)

    async def status(self) -> dict[str, Any]:
        """Return what the shard is, its losses, and the ``status`` of its feeder or why not."""
        described = self._describe()
        status = await self._thread(lambda: self._ask(described))
        return {**described, "losses": list(self._supervisor.losses.entries), **status}

    def _ask(self, described: dict[str, Any]) -> dict[str, Any]:
        if described["pid"] is None:
            return {"feeder": None, "error": described["reason"]}
        plan = self._supervisor.plan
        keys = None if plan.secrets is None else plan.place() / "keys"
        try:
            with connect(
                described["address"],
                name="async-loader cluster",
                on_disconnect="raise",
                timeout_s=_ASK_S,
                keys=None if keys is None else keys / "operator.secret",
            ) as client:
                status: FeederStatus = client.status()
        except AsyncLoaderError as error:
            return {"feeder": None, "error": str(error)}
        return {"feeder": status, "error": None}

    async def drain(self, timeout_s: float) -> dict[str, Any]:
        """End the shard for good, when what it holds is delivered or saved; return what is left."""
        before = await self.status()
        await self._thread(lambda: self._supervisor.drain(timeout_s))
        return before

    async def restart(self, plan: ShardPlan, timeout_s: float) -> int:
        """Begin to restart the process with a plan; return the incarnation that ends."""
        before: int = self._supervisor.describe()["incarnation"]
        self._supervisor.restart(plan, timeout_s)
        return before

    async def _thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, call)
