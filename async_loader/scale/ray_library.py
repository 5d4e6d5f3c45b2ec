"""Ray, imported here and nowhere else, and its errors by our names.

Ray places, names, restarts and finds processes. No step and no batch goes through it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from pathlib import Path
from typing import Any

from async_loader.errors import AsyncLoaderError, Broken, ConfigError, MissingExtra, Timeout
from async_loader.lifecycle import Deadline, readable

NAMESPACE = "async_loader"
_joining = threading.Lock()
_CONNECT_S = 5.0


def load_ray() -> Any:
    """Import Ray.

    Raises
    ------
    MissingExtra
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(
            f"a cluster on Ray needs ray ({error}): pip install 'async_loader[ray]'. A fixed list "
            "of feeders does without: Cluster.static(addresses)"
        ) from error
    return ray


def join(address: str | None = None) -> None:
    """Connect this process to a Ray cluster, for as long as it runs, unless it is connected.

    Parameters
    ----------
    address : str, optional
        By default ``RAY_ADDRESS``, or the cluster that runs on this machine.

    Raises
    ------
    MissingExtra
    ConfigError
        If there is no such cluster.
    """
    ray = load_ray()
    with _joining:
        if ray.is_initialized():
            return
        where = address or os.environ.get("RAY_ADDRESS", "auto")
        try:
            _check_answers(where)
            ray.init(
                address=where,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.WARNING,
                configure_logging=False,
            )
        except (OSError, RuntimeError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"there is no Ray cluster at {where} ({_first_line(error)}): start one by `ray "
                "start --head`, or give the address of one as host:port"
            ) from None


def _check_answers(where: str) -> None:
    """Raise OSError or ValueError: to find out that no Ray answers takes Ray minutes."""
    if where == "auto":
        known = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
        if not known.exists():
            raise OSError("none runs on this machine")
        where = known.read_text().strip()
    host, _, port = where.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()


def nodes() -> list[dict[str, Any]]:
    """Return the living nodes, as Ray describes them."""
    found: list[dict[str, Any]] = [one for one in load_ray().nodes() if one["Alive"]]
    return found


def node_address() -> str:
    """Return the address of this process's node."""
    found: str = load_ray().util.get_node_ip_address()
    return found


def node_id() -> str:
    """Return the id of this process's node."""
    found: str = load_ray().get_runtime_context().get_node_id()
    return found


def wait_for_room(shards: int, each: dict[str, float], timeout_s: float) -> None:
    """Return when Ray has this much free for each of some shards.

    Raises
    ------
    ConfigError
        It has not, after ``timeout_s``.
    """
    ray, deadline = load_ray(), Deadline(timeout_s)
    while True:
        free = ray.available_resources()
        if all(shards * amount <= free.get(name, 0.0) for name, amount in each.items()):
            return
        if deadline.expired:
            raise ConfigError(
                f"{shards} shards of {each} each have no room after {timeout_s:g} s: Ray has "
                f"{len(nodes())} nodes with {free.get('CPU', 0):g} free CPUs in all: add nodes, or "
                "lower placement.cpus or shards"
            )
        readable([], 0.2)


# -- named actors --------------------------------------------------------------------------------


def clusters() -> dict[str, list[str]]:
    """Return the names of the shards that have an actor, by number, of each cluster."""
    found: dict[str, list[str]] = {}
    for one in load_ray().util.list_named_actors(all_namespaces=True):
        cluster, _, shard = one["name"].partition("/")
        if one["namespace"] == NAMESPACE:
            found.setdefault(cluster, []).append(shard)
    return {name: sorted(shards, key=number_of) for name, shards in sorted(found.items())}


def number_of(shard: str) -> int:
    """Return the number in the name of a shard."""
    return int(shard.removeprefix("shard-"))


def was_restarted() -> bool:
    """Return whether the actor of this process was started again."""
    return bool(load_ray().get_runtime_context().was_current_actor_reconstructed)


def start_actor(kind: type, name: str, argument: object, **options: object) -> None:
    """Start a named, detached actor, unless there is one of this name."""
    made = load_ray().remote(kind)
    made.options(
        name=name, namespace=NAMESPACE, lifetime="detached", get_if_exists=True, **options
    ).remote(argument)


def end_actor(cluster: str, shard: str) -> None:
    """End the actor of a shard for good."""
    load_ray().kill(_actor_of(cluster, shard), no_restart=True)


def call(cluster: str, shard: str, method: str, *arguments: object, timeout_s: float) -> Any:
    """Call a method of a shard's actor and wait for its result.

    Raises
    ------
    ConfigError
        The shard has no actor.
    Timeout
    Broken
        The actor has died, or restarts.
    AsyncLoaderError
        What the method raised.
    """
    asked = ask(cluster, shard, method, *arguments)
    return _result(asked, f"{shard}'s {method}()", timeout_s)


def call_all(
    cluster: str, method: str, *arguments: object, timeout_s: float
) -> dict[str, dict[str, Any]]:
    """Call all shards at once; return their answers, or an ``error``, by name."""
    asked: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    deadline = Deadline(timeout_s)
    shards = clusters().get(cluster, [])
    for shard in shards:
        try:
            asked[shard] = ask(cluster, shard, method, *arguments)
        except AsyncLoaderError as error:  # it has ended meanwhile
            found[shard] = {"error": str(error)}
    for shard, one in asked.items():
        try:
            found[shard] = _result(one, f"{shard}'s {method}()", deadline.left_or_inf())
        except AsyncLoaderError as error:
            found[shard] = {"error": str(error)}
    return {shard: found[shard] for shard in shards}


def ask(cluster: str, shard: str, method: str, *arguments: object) -> Any:
    """Call a method, and return a reference to its result."""
    actor = _actor_of(cluster, shard)
    try:
        return getattr(actor, method).remote(*arguments)
    except Exception as error:  # Ray raises bare ones where it is not connected any more
        raise Broken(f"{method}(): {_first_line(error)}") from None


def _actor_of(cluster: str, shard: str) -> Any:
    try:
        return load_ray().get_actor(f"{cluster}/{shard}", namespace=NAMESPACE)
    except ValueError:
        there = ", ".join(clusters().get(cluster, [])) or "none"
        raise ConfigError(
            f"cluster {cluster!r} has no shard {shard!r}, it has: {there}: start it by "
            "`async-loader cluster up`"
        ) from None


def _result(asked: Any, what: str, timeout_s: float) -> Any:
    """Wait for a result; raise Ray's errors by our names."""
    ray = load_ray()
    try:
        return ray.get(asked, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        raise Timeout(f"{what}: no answer within {timeout_s:g} s") from None
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, Exception):
            raise cause from None
        raise Broken(f"{what}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
