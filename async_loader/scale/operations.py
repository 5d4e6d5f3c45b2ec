"""What an operator does with a cluster on Ray: up, status, drain, restart, down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from async_loader.errors import ConfigError, Timeout
from async_loader.feeder.curve_keys import SERVER, load_server_keys, make_keys
from async_loader.lifecycle import Deadline, readable
from async_loader.scale import ray_library
from async_loader.scale.cluster_settings import ClusterSettings
from async_loader.scale.ray_library import number_of
from async_loader.scale.shard_actor import ShardActor, ShardPlan
from async_loader.scale.shards import MOST_SHARDS

ASK_S = 30.0
_ROOM_S = 30.0
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

    def running(self) -> list[str]:
        """Return the names of the shards that Ray knows, by number."""
        return ray_library.clusters().get(self._settings.name, [])

    def _call(self, shard: str, method: str, *arguments: object, timeout_s: float = ASK_S) -> Any:
        name = self._settings.name
        return ray_library.call(name, shard, method, *arguments, timeout_s=timeout_s)

    def _call_all(
        self, method: str, *arguments: object, timeout_s: float = ASK_S
    ) -> dict[str, dict[str, Any]]:
        name = self._settings.name
        return ray_library.call_all(name, method, *arguments, timeout_s=timeout_s)

    def up(self) -> dict[str, Any]:
        """Start the shards that are missing; return the status when all serve.

        Raises
        ------
        ConfigError
            No room, no network for these nodes, or more shards run than the settings say.
        Timeout, Broken
            A shard does not serve; the message says why.
        """
        settings, running = self._settings, self.running()
        hosts = {one["NodeManagerAddress"] for one in ray_library.nodes()}
        if len(hosts) > 1 and settings.network.listen != "node":
            raise ConfigError(
                f"network.listen: {settings.network.listen} is for one machine, and this Ray has "
                f"{len(hosts)}: use 'node', with keys"
            )
        missing = settings.shards - len(running)
        if missing < 0:
            raise ConfigError(
                f"shards={settings.shards}, and {len(running)} run: remove one by `async-loader "
                f"cluster drain {running[-1]}`"
            )
        removed = _removed(self._call_all("describe"))
        taken = {number_of(name) for name in running} | removed
        free = [number for number in range(MOST_SHARDS) if number not in taken]
        if missing > len(free):
            raise ConfigError(
                f"{missing} shards are missing and {len(free)} numbers are left: those of removed "
                f"shards ({len(removed)}) are not given again, as ids of their rows may be about: "
                "begin anew by `cluster down` and `cluster up`"
            )
        if missing:
            ray_library.wait_for_room(missing, settings.placement.resources(), _ROOM_S)
        for number in free[:missing]:
            self._start(self.plan(number, removed))
        self._wait_serving(self.running())
        return self.status()

    def plan(self, number: int, removed: Iterable[int] = ()) -> ShardPlan:
        """Return what a shard is started with. Makes the cluster's keys, where it has any."""
        network, secrets = self._settings.network, dict[str, bytes]()
        if network.keys is not None:
            secrets = keys_for(Path(network.keys), network.roles)
        return ShardPlan(
            settings=self._settings, number=number, secrets=secrets, removed=frozenset(removed)
        )

    def _start(self, plan: ShardPlan) -> None:
        placement = self._settings.placement
        self._say(f"starting {plan.name}")
        ray_library.start_actor(
            ShardActor,
            f"{self._settings.name}/{plan.name}",
            plan,
            num_cpus=placement.cpus,
            memory=placement.memory,
            label_selector=placement.labels or None,
            max_restarts=self._settings.restarts,
            max_concurrency=100,
            scheduling_strategy={"spread": "SPREAD", "pack": "DEFAULT"}[placement.strategy],
        )

    def _wait_serving(self, names: Iterable[str]) -> None:
        deadline = Deadline(self._settings.start_s)
        for name in names:
            said = self._call(name, "describe", timeout_s=deadline.left_or_inf())
            self._say(f"{name} serves at {said['address']}")

    def status(self) -> dict[str, Any]:
        """Return the cluster's status in plain values."""
        answers = self._call_all("status")
        return {
            "cluster": self._settings.name,
            "removed": sorted(_removed(answers)),
            "nodes": len(ray_library.nodes()),
            "shards": [
                {"name": name, "state": "lost", "feeder": None, **one, "lost_rows": _lost(one)}
                for name, one in answers.items()
            ],
        }

    def drain(self, name: str, timeout_s: float, *, discard: bool = False) -> dict[str, Any]:
        """Remove a shard: it takes no new writer, delivers and saves, ends, and is forgotten.

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
        checkpoint = self._settings.feeder.checkpoint
        saves = None if checkpoint.every_s is None else str(Path(checkpoint.path or "") / name)
        if saves is None and not discard:
            rows = _rows(self._call(name, "status"))
            if held := {table: count for table, count in rows.items() if count}:
                raise ConfigError(
                    f"{name} holds {held} rows, which would be lost: let learners read them, "
                    "configure feeder.checkpoint with every_s, or say --discard"
                )
        left = self._end(name, timeout_s)
        self._call_all("remember", [number_of(name)])
        return {"shard": name, "rows": _rows(left), "saves": saves}

    def _end(self, name: str, timeout_s: float) -> dict[str, Any]:
        """End a shard's actor in order; return the last status of its feeder."""
        self._say(f"draining {name}")
        left: dict[str, Any] = self._call(name, "drain", timeout_s, timeout_s=timeout_s + 2 * ASK_S)
        ray_library.end_actor(self._settings.name, name)
        deadline = Deadline(ASK_S)
        while name in self.running():
            if deadline.expired:
                raise Timeout(f"Ray has not ended the actor of {name} after {ASK_S:g} s")
            readable([], 0.05)
        return left

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
        removed = _removed(self._call_all("describe"))
        for name in names or self.running():
            plan = self.plan(number_of(name), removed)
            self._end(name, timeout_s)
            self._start(plan)
            self._wait_serving([name])
        return self.status()

    def down(self, timeout_s: float) -> list[dict[str, Any]]:
        """End all shards; return what each has held.

        Shards save once more where checkpoints are configured.

        Raises
        ------
        ConfigError
            The cluster does not run.
        """
        name = self._settings.name
        answers = self._call_all("drain", timeout_s, timeout_s=timeout_s + 2 * ASK_S)
        if not answers:
            raise ConfigError(
                f"cluster {name!r} does not run: start it by `async-loader cluster up`"
            )
        for shard in answers:
            ray_library.end_actor(name, shard)
        return [
            {"shard": shard, "rows": _rows(one), "error": one.get("error")}
            for shard, one in answers.items()
        ]


def _removed(answers: Mapping[str, Mapping[str, Any]]) -> set[int]:
    return {number for one in answers.values() for number in one.get("removed", ())}


def _rows(status: Mapping[str, Any]) -> dict[str, int]:
    """Return the items of each table in the status of a shard."""
    feeder = status.get("feeder")
    tables = feeder["tables"] if feeder else {}
    return {name: int(one["size"]) for name, one in tables.items()}


def _lost(status: Mapping[str, Any]) -> dict[str, int]:
    """Return the rows of each table that were lost with processes of a shard."""
    feeder = status.get("feeder")
    tables = feeder["checkpoints"] if feeder else {}
    lost = {name: int(one["lost_rows_in_sum"]) for name, one in tables.items()}
    return {name: rows for name, rows in lost.items() if rows}


def keys_for(folder: Path, roles: Sequence[str]) -> dict[str, bytes]:
    """Make a cluster's keys, unless they are there; return what goes to the nodes of its shards.

    Raises
    ------
    ConfigError
        If a folder can be entered by others, or has keys of other roles.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    server = folder / f"{SERVER}.secret"
    if not server.exists():
        make_keys(folder, roles)
    have = set(load_server_keys(folder).clients.values())
    if have != set(roles):
        raise ConfigError(
            f"{folder} has keys of {sorted(have)}, and network.roles are {sorted(roles)}: name "
            "another folder in network.keys, or these roles"
        )
    files = server, *(folder / "clients").iterdir()
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
