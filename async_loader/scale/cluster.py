"""`Cluster`: clients of many feeders as of one."""

from __future__ import annotations

import os
from collections.abc import Sequence

from async_loader.names import explain_wrong_names
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
            The folder of this client's role, with ``shard-0.secret``, ``shard-1.secret``...
        name, timeout_s
            As in `static`.

        Raises
        ------
        MissingExtra
            Ray is not installed.
        ConfigError, Timeout, Broken, Unsupported
        """
        from async_loader.scale.ray_shards import RayShards

        finder = RayShards(address, cluster)
        return ClusterClient(finder, keys=keys, name=name, timeout_s=timeout_s)
