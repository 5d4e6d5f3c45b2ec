"""`Cluster`: clients of many feeders as of one."""

from __future__ import annotations

import os
from collections.abc import Sequence

from async_loader.names import explain_wrong_names
from async_loader.scale.client import ClusterClient
from async_loader.scale.directory import StaticDirectory


class Cluster:
    """Makes clients of a cluster of feeders."""

    @classmethod
    @explain_wrong_names
    def static(
        cls,
        addresses: Sequence[str],
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
        directory = StaticDirectory(addresses, keys=keys)
        return ClusterClient(directory, name=name, timeout_s=timeout_s)
