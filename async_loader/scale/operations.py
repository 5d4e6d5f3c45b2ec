"""What an operator does with a cluster on Ray: up, status, drain, restart, down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from async_loader.errors import AsyncLoaderError, Broken, ConfigError, Timeout
from async_loader.lifecycle import Deadline
from async_loader.scale import ray_library
from async_loader.scale.cluster_keys import keys_for
from async_loader.scale.cluster_settings import ClusterSettings
from async_loader.scale.directory_actor import DIRECTORY, DirectoryActor
from async_loader.scale.shard_actor import ShardActor, actor_name
from async_loader.scale.shard_map import MOST_SHARDS
from async_loader.scale.shard_plan import Secrets, ShardPlan, encoded

ASK_S = 30.0
_ROOM_S = 30.0
_CALLS = 100_000
"""Long-polls that a directory holds at the same time: one of each client."""
Say = Callable[[str], None]


class Operator:
    """Works on one cluster; this process is connected to its Ray.

    Parameters
    ----------
    settings : ClusterSettings
    say : callable
        Called with lines of progress.
    """

    def __init__(self, settings: ClusterSettings, say: Say = lambda line: None) -> None:
        self._settings, self._say = settings, say

    # -- up --------------------------------------------------------------------------------------

    def up(self) -> dict[str, Any]:
        """Start the shards that are missing; return the status when all serve.

        Raises
        ------
        ConfigError
            No room, no network for these nodes, or more shards run than the settings say.
        Timeout, Broken
            A shard does not serve; the message says why.
        """
        settings = self._settings
        self._check_network()
        directory = self._start_directory()
        running = self.running()
        if len(running) > settings.shards:
            raise ConfigError(
                f"shards={settings.shards}, and {len(running)} run: remove one by `async-loader "
                f"cluster drain {running[-1]}`"
            )
        numbers = self._new_numbers(directory, running)
        if numbers:
            self._start(numbers)
            names = [f"shard-{number}" for number in numbers]
            ray_library.call(directory, "follow", names, timeout_s=ASK_S)
        self._wait_serving([*running, *(f"shard-{number}" for number in numbers)])
        return self.status()

    def _check_network(self) -> None:
        hosts = {one["NodeManagerAddress"] for one in ray_library.nodes()}
        listen = self._settings.network.listen
        if len(hosts) > 1 and listen != "node":
            raise ConfigError(
                f"network.listen: {listen} is for one machine, and this Ray has {len(hosts)}: use "
                "'node', with keys"
            )

    def _start_directory(self) -> ray_library.Actor:
        name = self._settings.name
        return ray_library.start_actor(
            DirectoryActor,
            actor_name(name, DIRECTORY),
            [name],
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,  # calls wait until it is back
            max_concurrency=_CALLS,
        )

    def running(self) -> list[str]:
        """Return the names of the shards that Ray knows, by number."""
        prefix = actor_name(self._settings.name, "shard-")
        names = [one.partition("/")[2] for one in ray_library.names(prefix)]
        return sorted(names, key=lambda name: int(name.removeprefix("shard-")))

    def _new_numbers(self, directory: ray_library.Actor, running: Sequence[str]) -> list[int]:
        known = ray_library.call(directory, "describe", timeout_s=ASK_S)
        taken = {int(name.removeprefix("shard-")) for name in running} | set(known["retired"])
        missing = self._settings.shards - len(running)
        free = [number for number in range(MOST_SHARDS) if number not in taken]
        if missing > len(free):
            raise ConfigError(
                f"{missing} shards are missing and {len(free)} numbers are left: those of removed "
                f"shards ({len(known['retired'])}) are not given again, as ids of their rows may "
                "be about: begin anew by `cluster down` and `cluster up`"
            )
        return free[:missing]

    def _start(self, numbers: Sequence[int]) -> None:
        settings, placement = self._settings, self._settings.placement
        plans = [self.plan(number) for number in numbers]  # errors come before anything starts
        self._say(f"placing {len(numbers)} shards ({placement.strategy})")
        group = ray_library.reserve(
            f"{settings.name}/{numbers[0]}-{numbers[-1]}",
            [placement.bundle()] * len(numbers),
            placement.strategy,
            placement.labels,
            _ROOM_S,
        )
        for i, plan in enumerate(plans):
            self._say(f"starting {plan.name}")
            ray_library.start_actor(
                ShardActor,
                actor_name(settings.name, plan.name),
                [plan],
                num_cpus=placement.cpus,
                max_restarts=settings.restarts,
                max_concurrency=100,
                scheduling_strategy=ray_library.in_bundle(group, i),
            )

    def plan(self, number: int) -> ShardPlan:
        """Return what a shard is started with. Makes its keys, where it has any."""
        settings, network = self._settings, self._settings.network
        secrets: Secrets | None = None
        if network.keys is not None:
            secrets = keys_for(Path(network.keys), f"shard-{number}", network.roles)
        return ShardPlan(
            cluster=settings.name,
            number=number,
            folder=settings.folder,
            listen=network.listen,
            allow_insecure=network.allow_insecure,
            feeder=encoded(settings.feeder),
            secrets=secrets,
            start_s=settings.start_s,
        )

    def _wait_serving(self, names: Iterable[str], above: int = -1) -> None:
        """Wait until shards serve, with incarnations above a number."""
        deadline = Deadline(self._settings.start_s)
        for name in names:
            actor, seen = self._actor(name), -1
            while True:
                left = deadline.left() or 0.0
                said = ray_library.call(actor, "changed", seen, left, timeout_s=left + ASK_S)
                seen = said["serial"]
                if said["state"] != "lost" and said["incarnation"] > above:
                    self._say(f"{name} serves at {said['address']}")
                    break
                if said["reason"]:
                    self._say(f"{name}: {said['reason']}")
                if deadline.expired:
                    raise Timeout(
                        f"{name} does not serve after {self._settings.start_s:g} s: "
                        f"{said['reason']}"
                    )

    def _actor(self, name: str) -> ray_library.Actor:
        actor = ray_library.find(actor_name(self._settings.name, name))
        if actor is None:
            raise ConfigError(
                f"there is no shard {name!r}, there are: {', '.join(self.running()) or 'none'}"
            )
        return actor

    def _directory(self) -> ray_library.Actor:
        directory = ray_library.find(actor_name(self._settings.name, DIRECTORY))
        if directory is None:
            raise ConfigError(
                f"cluster {self._settings.name!r} does not run: start it by `async-loader cluster "
                "up`"
            )
        return directory

    # -- status ----------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the cluster's status in plain values: see `status_view.py` for a view of it."""
        known = ray_library.call(self._directory(), "describe", timeout_s=ASK_S)
        by_name = {one["name"]: one for one in known["shards"]}
        asked = {name: self._ask_status(name) for name in self.running()}
        shards = []
        for name, answer in asked.items():
            one = {**known["details"].get(name, {}), **by_name.get(name, {}), **answer()}
            one.setdefault("name", name)
            one.setdefault("state", "lost")
            one["reason"] = one.get("reason") or known["reasons"].get(name, "")
            one.pop("serial", None)
            one.pop("retired", None)
            shards.append(one)
        return {
            "cluster": self._settings.name,
            "version": known["version"],
            "removed": known["retired"],
            "nodes": len(ray_library.nodes()),
            "shards": shards,
        }

    def _ask_status(self, name: str) -> Callable[[], dict[str, Any]]:
        """Ask a shard; return what gives its answer."""
        try:
            future = ray_library.future_of(self._actor(name), "status")
        except (AsyncLoaderError, ValueError) as error:
            why = str(error)
            return lambda: {"state": "lost", "feeder": None, "error": why}

        def answer() -> dict[str, Any]:
            try:
                with ray_library.our_errors(f"{name}'s status()", ASK_S):
                    found: dict[str, Any] = future.result(ASK_S)
                    return found
            except (AsyncLoaderError, TimeoutError) as error:
                return {"state": "lost", "feeder": None, "error": str(error) or "no answer"}

        return answer

    # -- less ------------------------------------------------------------------------------------

    def drain(self, name: str, timeout_s: float, *, discard: bool = False) -> dict[str, Any]:
        """Remove a shard: it takes no new writer, delivers and saves, ends, and leaves the map.

        Parameters
        ----------
        timeout_s : float
        discard : bool
            Also if rows that learners could still draw leave the cluster, and are in no checkpoint.

        Returns
        -------
        dict
            ``shard``, and ``rows``: those by table that have left the cluster with it, and are in
            ``saves`` if that is not ``None``.

        Raises
        ------
        ConfigError
            Rows would be lost, and ``discard`` is False.
        Timeout, Broken
        """
        actor, directory = self._actor(name), self._directory()
        checkpoint = self._settings.feeder.checkpoint
        if checkpoint.every_s is None and not discard:
            self._check_empty(name, ray_library.call(actor, "status", timeout_s=ASK_S))
        self._say(f"draining {name}")
        left = ray_library.call(actor, "drain", timeout_s, timeout_s=timeout_s + 2 * ASK_S)
        ray_library.call(directory, "forget", [name], timeout_s=ASK_S)
        ray_library.end_actor(actor)
        saves = checkpoint.path if checkpoint.every_s is not None else None
        return {"shard": name, "rows": _rows(left), "saves": saves and str(Path(saves) / name)}

    def _check_empty(self, name: str, status: dict[str, Any]) -> None:
        held = {table: rows for table, rows in _rows(status).items() if rows}
        if held:
            raise ConfigError(
                f"{name} holds {held} rows, which would be lost: let learners read them, configure "
                "feeder.checkpoint with every_s, or say --discard"
            )

    def restart(
        self, names: Sequence[str], timeout_s: float, *, discard: bool = False
    ) -> dict[str, Any]:
        """Restart shards one after the other, with the present settings; learners go on.

        Raises
        ------
        ConfigError
            Without checkpoints, and without ``discard``.
        Timeout, Broken
            A shard does not come back; those after it were not touched.
        """
        if self._settings.feeder.checkpoint.every_s is None and not discard:
            raise ConfigError(
                "without feeder.checkpoint.every_s a restart loses all rows of a shard: configure "
                "it, or say --discard"
            )
        for name in names or self.running():
            self._say(f"restarting {name}")
            plan = self.plan(int(name.removeprefix("shard-")))
            ended = ray_library.call(self._actor(name), "restart", plan, timeout_s, timeout_s=ASK_S)
            self._wait_serving([name], ended)
        return self.status()

    def down(self, timeout_s: float) -> list[dict[str, Any]]:
        """End all shards and the directory; return what each has held.

        Shards save once more where checkpoints are configured.

        Raises
        ------
        ConfigError
            The cluster does not run.
        """
        directory, ended = self._directory(), []
        actors = [(name, self._actor(name)) for name in self.running()]
        futures = [
            (name, actor, ray_library.future_of(actor, "drain", timeout_s))
            for name, actor in actors
        ]
        for name, actor, future in futures:
            limit = timeout_s + 2 * ASK_S
            try:
                with ray_library.our_errors(f"{name}'s drain()", limit):
                    ended.append({"shard": name, "rows": _rows(future.result(limit))})
            except (Broken, Timeout, TimeoutError) as error:
                ended.append({"shard": name, "rows": {}, "error": str(error) or "no answer"})
            ray_library.end_actor(actor)
        ray_library.end_actor(directory)
        for group in ray_library.groups(f"{self._settings.name}/"):
            ray_library.release(group)
        return ended


def _rows(status: dict[str, Any]) -> dict[str, int]:
    """Return the items of each table in the status of a shard."""
    feeder = status.get("feeder")
    tables = feeder["tables"] if feeder else {}
    return {name: int(one["size"]) for name, one in tables.items()}
