"""What an operator does with a cluster on Ray: up, status, drain, restart, down."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from async_loader.errors import AsyncLoaderError, ConfigError, Timeout
from async_loader.feeder.addresses import private_folder
from async_loader.feeder.curve_keys import SERVER, load_server_keys, make_keys
from async_loader.lifecycle import Deadline, readable
from async_loader.scale import ray_library
from async_loader.scale.cluster_settings import ClusterSettings
from async_loader.scale.ray_library import actor_of, shard_actors
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

    def _actor(self, shard: str) -> ray_library.Actor:
        return actor_of(self._settings.name, shard)

    def running(self) -> list[str]:
        """Return the names of the shards that Ray knows, by number."""
        return shard_actors(self._settings.name)

    def _ask(
        self, method: str, *arguments: object, timeout_s: float = ASK_S
    ) -> dict[str, dict[str, Any]]:
        """Call all shards at once; return their answers, or an ``error``, by name."""
        futures, found = {}, {}
        for name in self.running():
            try:
                futures[name] = ray_library.future_of(self._actor(name), method, *arguments)
            except AsyncLoaderError as error:
                found[name] = {"error": str(error)}
        deadline = Deadline(timeout_s)
        for name, future in futures.items():
            try:
                with ray_library.our_errors(f"{name}'s {method}()", timeout_s):
                    found[name] = future.result(deadline.left())
            except (AsyncLoaderError, TimeoutError) as error:
                found[name] = {"error": str(error) or "no answer"}
        return {name: found[name] for name in sorted(found, key=_number)}

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
        running = self.running()
        if len(running) > settings.shards:
            raise ConfigError(
                f"shards={settings.shards}, and {len(running)} run: remove one by `async-loader "
                f"cluster drain {running[-1]}`"
            )
        removed = _removed(self._ask("describe"))
        taken = {_number(name) for name in running} | removed
        free = [number for number in range(MOST_SHARDS) if number not in taken]
        missing = settings.shards - len(running)
        if missing > len(free):
            raise ConfigError(
                f"{missing} shards are missing and {len(free)} numbers are left: those of removed "
                f"shards ({len(removed)}) are not given again, as ids of their rows may be about: "
                "begin anew by `cluster down` and `cluster up`"
            )
        self._start([self.plan(number, removed) for number in free[:missing]])
        self._wait_serving(self.running())
        return self.status()

    def _check_network(self) -> None:
        hosts = {one["NodeManagerAddress"] for one in ray_library.nodes()}
        listen = self._settings.network.listen
        if len(hosts) > 1 and listen != "node":
            raise ConfigError(
                f"network.listen: {listen} is for one machine, and this Ray has {len(hosts)}: use "
                "'node', with keys"
            )

    def plan(self, number: int, removed: Iterable[int] = ()) -> ShardPlan:
        """Return what a shard is started with. Makes its keys, where it has any."""
        network, secrets = self._settings.network, dict[str, bytes]()
        if network.keys is not None:
            secrets = keys_for(Path(network.keys), f"shard-{number}", network.roles)
        encoded = msgspec.msgpack.encode(self._settings)
        return ShardPlan(
            encoded=encoded, number=number, secrets=secrets, removed=frozenset(removed)
        )

    def _start(self, plans: Sequence[ShardPlan]) -> None:
        """Start actors: each in the place that was reserved for its number before, or a new one."""
        name, placement = self._settings.name, self._settings.placement
        new = [str(plan.number) for plan in plans if self._place_of(plan.number) is None]
        if new:
            self._say(f"placing {len(new)} shards ({placement.strategy})")
            ray_library.reserve(
                f"{name}/{','.join(new)}",
                [placement.bundle()] * len(new),
                placement.strategy,
                placement.labels,
                _ROOM_S,
            )
        for plan in plans:
            self._say(f"starting {plan.name}")
            ray_library.start_actor(
                ShardActor,
                f"{name}/{plan.name}",
                [plan],
                num_cpus=placement.cpus,
                max_restarts=self._settings.restarts,
                max_concurrency=100,
                scheduling_strategy=self._place_of(plan.number),
            )

    def _place_of(self, number: int) -> object | None:
        """Return the bundle that was reserved for a shard; ``None`` if none was."""
        for group in ray_library.groups(f"{self._settings.name}/"):
            numbers = group.partition("/")[2].split(",")
            if str(number) in numbers:
                return ray_library.in_bundle(group, numbers.index(str(number)))
        return None

    def _wait_serving(self, names: Iterable[str]) -> None:
        deadline = Deadline(self._settings.start_s)
        for name in names:
            left = deadline.left() or 0.0
            said = ray_library.call(self._actor(name), "describe", timeout_s=left)
            self._say(f"{name} serves at {said['address']}")

    # -- status ----------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the cluster's status in plain values."""
        answers = self._ask("status")
        return {
            "cluster": self._settings.name,
            "removed": sorted(_removed(answers)),
            "nodes": len(ray_library.nodes()),
            "shards": [
                {"name": name, "state": "lost", "feeder": None, **one, "lost_rows": _lost(one)}
                for name, one in answers.items()
            ],
        }

    # -- less ------------------------------------------------------------------------------------

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
        actor, checkpoint = self._actor(name), self._settings.feeder.checkpoint
        if checkpoint.every_s is None and not discard:
            status = ray_library.call(actor, "status", timeout_s=ASK_S)
            if held := {table: rows for table, rows in _rows(status).items() if rows}:
                raise ConfigError(
                    f"{name} holds {held} rows, which would be lost: let learners read them, "
                    "configure feeder.checkpoint with every_s, or say --discard"
                )
        left = self._end(name, timeout_s)
        self._ask("remember", [_number(name)])
        saves = checkpoint.path if checkpoint.every_s is not None else None
        return {"shard": name, "rows": _rows(left), "saves": saves and str(Path(saves) / name)}

    def _end(self, name: str, timeout_s: float) -> dict[str, Any]:
        """End a shard's actor in order; return the last status of its feeder."""
        self._say(f"draining {name}")
        actor = self._actor(name)
        left: dict[str, Any] = ray_library.call(
            actor, "drain", timeout_s, timeout_s=timeout_s + 2 * ASK_S
        )
        ray_library.end_actor(actor)
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
        removed = _removed(self._ask("describe"))
        for name in names or self.running():
            plan = self.plan(_number(name), removed)
            self._end(name, timeout_s)
            self._start([plan])
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
        if not self.running():
            raise ConfigError(
                f"cluster {name!r} does not run: start it by `async-loader cluster up`"
            )
        answers = self._ask("drain", timeout_s, timeout_s=timeout_s + 2 * ASK_S)
        for shard in answers:
            ray_library.end_actor(self._actor(shard))
        for group in ray_library.groups(f"{name}/"):
            ray_library.release(group)
        return [
            {"shard": shard, "rows": _rows(one), "error": one.get("error")}
            for shard, one in answers.items()
        ]


def _number(shard: str) -> int:
    return int(shard.removeprefix("shard-"))


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


SERVERS = "servers"
_OPERATOR = "operator.secret"


def keys_for(folder: Path, shard: str, roles: Sequence[str]) -> dict[str, bytes]:
    """Make the keys of a shard, unless they are there; return what goes to its node.

    Raises
    ------
    ConfigError
        If a folder can be entered by others, or has keys of other roles.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    servers = private_folder(private_folder(folder) / SERVERS)
    home = servers / shard
    if not home.exists():
        _make(folder, servers, shard, roles)
    have = set(load_server_keys(home).clients.values())
    if have != set(roles):
        raise ConfigError(
            f"{home} has keys of {sorted(have)}, and network.roles are {sorted(roles)}: name "
            "another folder in network.keys, or these roles"
        )
    files = {
        f"{SERVER}.secret": (home / f"{SERVER}.secret").read_bytes(),
        _OPERATOR: (folder / "operator" / f"{shard}.secret").read_bytes(),
    }
    files.update(
        {f"clients/{path.name}": path.read_bytes() for path in (home / "clients").iterdir()}
    )
    return files


def _make(folder: Path, servers: Path, shard: str, roles: Sequence[str]) -> None:
    """Make the keys in a folder of another name, and rename it last: a kill leaves no half."""
    temporary = servers / f"{shard}.new"
    shutil.rmtree(temporary, ignore_errors=True)
    make_keys(private_folder(temporary), roles)
    for role in roles:
        os.replace(temporary / f"{role}.secret", private_folder(folder / role) / f"{shard}.secret")
    temporary.rename(servers / shard)
