"""Ray, imported here and nowhere else, and its errors by our names.

Ray places, names, restarts and finds processes. No step and no batch goes through it.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeAlias

from async_loader.errors import Broken, ConfigError, MissingExtra, Timeout

NAMESPACE = "async_loader"
Actor: TypeAlias = Any
"""A handle of a named actor: Ray's types are not to be had without Ray."""
_joining = threading.Lock()
_joined: list[None] = []  # one for each call of `join` that `leave` is to follow
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


def join(address: str | None = None) -> bool:
    """Connect this process to a Ray cluster, unless it is connected.

    Returns whether `leave` is to be called: not where the user has connected it.

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
            if _joined:
                _joined.append(None)
            return bool(_joined)
        _joined.clear()
        where = _answering(address)
        _use_token(where)
        try:
            ray.init(
                address=where,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.WARNING,
                configure_logging=False,
            )
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise ConfigError(_no_ray(f"at {where} ({_first_line(error)})")) from None
        _joined.append(None)
    return True


def _answering(address: str | None) -> str:
    """Return the address of a Ray that answers: to find out that none does takes Ray minutes."""
    where = address or os.environ.get("RAY_ADDRESS", "auto")
    if where == "auto":
        try:
            folder = Path(os.environ.get("RAY_TMPDIR", "/tmp"))
            where = (folder / "ray" / "ray_current_cluster").read_text().strip()
        except OSError:
            raise ConfigError(_no_ray("on this machine")) from None
    host, colon, port = where.rpartition(":")
    if not colon or not port.isdigit():
        raise ConfigError(f"{where!r} is no address of Ray: give host:port, as `ray start` says it")
    if host.startswith("ray://"):
        raise ConfigError(
            f"{where!r}: connect to the nodes of Ray directly, from one of them, as in host:6379"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(_no_ray(f"at {where} ({error})")) from None
    return where


def _use_token(where: str) -> None:
    """Show the user's token to a Ray of this machine, which asks for it if there is one.

    By itself Ray shows it only where it has found the cluster itself.
    """
    if where.rpartition(":")[0].strip("[]") not in _own_addresses():
        return
    name = "ray._private.authentication.authentication_token_setup"
    with contextlib.suppress(ImportError, AttributeError):  # a Ray that has no tokens
        setup = importlib.import_module(name)
        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def _own_addresses() -> set[str]:
    with contextlib.suppress(OSError):
        return {"127.0.0.1", "::1", "localhost", *socket.gethostbyname_ex(socket.gethostname())[2]}
    return {"127.0.0.1", "::1", "localhost"}


def _no_ray(where: str) -> str:
    return (
        f"there is no Ray cluster {where}: start one by `ray start --head`, give its address, or "
        "let `async-loader cluster up` start one"
    )


def leave() -> None:
    """Disconnect this process from its Ray cluster, at the last of as many calls as of `join`."""
    ray = load_ray()
    with _joining:
        if _joined:
            _joined.pop()
            if not _joined:
                ray.shutdown()


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


# -- named actors --------------------------------------------------------------------------------


def clusters() -> list[str]:
    """Return the names of all clusters."""
    listed = load_ray().util.list_named_actors(all_namespaces=True)
    found = [one["name"] for one in listed if one["namespace"] == NAMESPACE]
    return sorted({name.partition("/")[0] for name in found})


def shard_actors(cluster: str) -> list[str]:
    """Return the names of the shards of a cluster that have an actor, by number."""
    listed = load_ray().util.list_named_actors(all_namespaces=True)
    found = [one["name"].partition("/") for one in listed if one["namespace"] == NAMESPACE]
    names = [name for of, _, name in found if of == cluster]
    return sorted(names, key=lambda name: int(name.removeprefix("shard-")))


def actor_of(cluster: str, shard: str) -> Actor:
    """Return the actor of a shard.

    Raises
    ------
    ConfigError
        The shard has no actor.
    """
    try:
        return load_ray().get_actor(f"{cluster}/{shard}", namespace=NAMESPACE)
    except ValueError:
        there = ", ".join(shard_actors(cluster)) or "none"
        raise ConfigError(
            f"cluster {cluster!r} has no shard {shard!r}, it has: {there}: start it by "
            "`async-loader cluster up`"
        ) from None


def was_restarted() -> bool:
    """Return whether the actor of this process was started again."""
    return bool(load_ray().get_runtime_context().was_current_actor_reconstructed)


def start_actor(kind: type, name: str, arguments: Sequence[object], **options: object) -> Actor:
    """Start a named, detached actor; or return the one of this name."""
    ray = load_ray()
    made = ray.remote(kind).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        **options,
    )
    with _quiet():  # Ray warns of what is meant here: the groups are removed by `cluster down`
        return made.remote(*arguments)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    log = logging.getLogger("ray")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def in_bundle(group: str, number: int) -> object:
    """Return where an actor goes: into a bundle of the placement group of this name."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(
        placement_group=load_ray().util.get_placement_group(group),
        placement_group_bundle_index=number,
    )


def end_actor(actor: Actor) -> None:
    """End an actor for good."""
    load_ray().kill(actor, no_restart=True)


def call(actor: Actor, method: str, *arguments: object, timeout_s: float) -> Any:
    """Call a method and wait for its result.

    Raises
    ------
    Timeout
    Broken
        The actor has died, or restarts.
    AsyncLoaderError
        What the method raised.
    """
    with our_errors(f"{method}()", timeout_s):
        return load_ray().get(ask(actor, method, *arguments), timeout=timeout_s)


def ask(actor: Actor, method: str, *arguments: object) -> Any:
    """Call a method, and return a reference to its result, which can be awaited.

    Raises
    ------
    Broken
        This process is not connected to the actor's Ray any more.
    """
    try:
        return getattr(actor, method).remote(*arguments)
    except Exception as error:  # Ray raises bare ones here
        raise Broken(f"{method}(): {_first_line(error)}") from None


def future_of(actor: Actor, method: str, *arguments: object) -> Future[Any]:
    """Call a method, and return a future of its result."""
    found: Future[Any] = ask(actor, method, *arguments).future()
    return found


@contextlib.contextmanager
def our_errors(what: str, timeout_s: float) -> Iterator[None]:
    """Raise Ray's errors by our names."""
    errors = load_ray().exceptions
    try:
        yield
    except errors.GetTimeoutError:
        raise Timeout(f"{what}: no answer within {timeout_s:g} s") from None
    except errors.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, Exception):
            raise cause from None
        raise Broken(f"{what}: {_first_line(error)}") from None
    except errors.RayError as error:
        raise Broken(f"{what}: {_first_line(error)}") from None


# -- places --------------------------------------------------------------------------------------


def reserve(
    name: str,
    bundles: Sequence[Mapping[str, float]],
    strategy: str,
    labels: Mapping[str, str],
    timeout_s: float,
) -> None:
    """Make a placement group with these bundles; return when all of them have a node.

    Raises
    ------
    ConfigError
        There is no room for them. Nothing is reserved then.
    """
    ray = load_ray()
    selectors = [dict(labels)] * len(bundles) if labels else None
    group = ray.util.placement_group(
        [dict(one) for one in bundles],
        strategy=strategy.upper(),
        name=name,
        lifetime="detached",
        bundle_label_selector=selectors,
    )
    if not group.wait(timeout_s):
        ray.util.remove_placement_group(group)
        have = ray.cluster_resources()
        on = f" on nodes labelled {dict(labels)}" if labels else ""
        raise ConfigError(
            f"{len(bundles)} shards of {dict(bundles[0])} each, {strategy}{on}, have no room after "
            f"{timeout_s:g} s: Ray has {len(nodes())} nodes with {have.get('CPU', 0):g} CPUs in "
            "all, some of them in use: add nodes, or lower placement.cpus or shards"
        )


def groups(prefix: str) -> list[str]:
    """Return the names of the placement groups that begin with ``prefix``."""
    table = load_ray().util.placement_group_table()
    found = [one["name"] for one in table.values() if one["state"] != "REMOVED"]
    return sorted(name for name in found if name.startswith(prefix))


def release(name: str) -> None:
    """Remove a placement group."""
    ray = load_ray()
    with contextlib.suppress(ValueError):
        ray.util.remove_placement_group(ray.util.get_placement_group(name))


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
