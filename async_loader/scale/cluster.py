"""`Cluster`: clients of many feeders as of one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from async_loader.errors import ConfigError
from async_loader.name_hints import explain_wrong_names
from async_loader.scale import ray_library
from async_loader.scale.client import ClusterClient
from async_loader.scale.shards import Shard, StaticShards


class Cluster:
    """Makes clients of a cluster of feeders."""

    @classmethod
    @explain_wrong_names
    def static(
        cls,
        addresses: Sequence[str | Shard],
        *,
        keys: str | os.PathLike[str] | None = None,
        name: str = "",
        timeout_s: float = 30.0,
    ) -> ClusterClient:
        """Return a client of the feeders at these addresses.

        Parameters
        ----------
        addresses : sequence of str
            As `async_loader.connect` takes them, one for each shard, in the same order in all
            clients.
        keys : path, optional
            The client's ``NAME.secret``, or a folder with ``shard-0.secret``, ``shard-1.secret``...
        name : str
            Of this client in the shards' status.
        timeout_s : float
            Seconds for connecting, and for every call that waits, unless it has its own.

        Raises
        ------
        ConfigError, Timeout, Unsupported
            As `async_loader.connect`.
        """
        return ClusterClient(StaticShards(addresses), keys=keys, name=name, timeout_s=timeout_s)

    @classmethod
    @explain_wrong_names
    def connect(
        cls,
        address: str | None = None,
        *,
        cluster: str = "default",
        keys: str | os.PathLike[str] | None = None,
        name: str = "",
        timeout_s: float = 30.0,
    ) -> ClusterClient:
        """Return a client of the shards that ``async-loader cluster up`` has started on Ray.

        It asks Ray for the shards' actors, and these where they listen; steps and batches do not
        go through Ray.

        Parameters
        ----------
        address : str, optional
            Of Ray, if this process is not connected to it; by default ``RAY_ADDRESS``, or the
            cluster that runs on this machine.
        cluster : str
            The ``name`` in the cluster's settings.
        keys : path, optional
            The file of this client's role, such as ``learner.secret``.
        name, timeout_s
            As in `static`.

        Raises
        ------
        MissingExtra
            Ray is not installed.
        ConfigError, Timeout, Broken, Unsupported
        """
        finder = RayShards(address, cluster)
        return ClusterClient(finder, keys=keys, name=name, timeout_s=timeout_s)


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
        self._shards: dict[int, Shard] = {}
        self._removed: set[int] = set()
        ray_library.join(address)
        there = ray_library.clusters()
        if cluster not in there:
            raise ConfigError(
                f"there is no cluster {cluster!r} in this Ray (there are: "
                f"{', '.join(there) or 'none'}): start it by `async-loader cluster up --config "
                "FILE`"
            )

    def find(self) -> tuple[Sequence[Shard], AbstractSet[int]]:
        """See `Finder`."""
        said = ray_library.call_all(self._cluster, "describe", timeout_s=_ANSWER_S)
        for name, one in said.items():
            if "error" not in one:
                self._removed |= set(one["removed"])
                self._shards[one["number"]] = Shard(
                    name=name, number=one["number"], address=one["address"], host=one["host"]
                )
        there = sorted(self._shards.keys() - self._removed)
        return [self._shards[number] for number in there], self._removed
