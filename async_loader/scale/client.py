"""A client of all shards of a cluster."""

from __future__ import annotations

from async_loader.scale.directory import Directory


class ClusterClient:
    """A connection to all shards of a cluster. Made by `Cluster`.

    Threads: any. After a fork, the child makes its own.

    Parameters
    ----------
    directory : Directory
        Closed with the client.
    name : str
        Of this client in the shards' status.
    timeout_s : float
        Seconds for connecting, and for every call that waits, unless it has its own.
    """

    def __init__(self, directory: Directory, *, name: str = "", timeout_s: float = 30.0) -> None:
        self._directory, self._name, self._timeout_s = directory, name, timeout_s
