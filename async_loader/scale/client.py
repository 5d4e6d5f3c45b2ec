"""A client of all shards of a cluster: tables, weights, status."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from async_loader.errors import AsyncLoaderError, CannotSend, Closed, ConfigError, Timeout
from async_loader.feeder.client import weights
from async_loader.feeder.client.arguments import newer_than_of, version_of, weights_name
from async_loader.feeder.client.client import Client
from async_loader.feeder.client.stats import ClientStats
from async_loader.feeder.client.weights import Published
from async_loader.lifecycle import ClosedAtExit, Deadline, seconds
from async_loader.name_hints import explain_wrong_attributes, explain_wrong_names
from async_loader.scale.connections import Connections, ShardConnection, ShardDeadline
from async_loader.scale.shards import Finder, keys_in
from async_loader.scale.stats import ClusterStatus
from async_loader.scale.table import ClusterTable

R = TypeVar("R")


@explain_wrong_attributes
class ClusterClient(ClosedAtExit):
    """A connection to all shards of a cluster. Made by `Cluster`.

    Shards that cannot be reached are left out until they can be; one at least has to answer at
    the beginning. Threads: any. After a fork, the child makes its own.

    Parameters
    ----------
    finder : Finder
        Knows the shards.
    keys : path, optional
        The client's secret file, or a folder with one for each shard.
    name : str
        Of this client in the shards' status.
    timeout_s : float
        Seconds for connecting, and for every call that waits, unless it has its own.

    Raises
    ------
    ConfigError, Timeout, Unsupported
        As `async_loader.connect`.
    """

    def __init__(
        self,
        finder: Finder,
        *,
        keys: str | os.PathLike[str] | None = None,
        name: str = "",
        timeout_s: float = 30.0,
    ) -> None:
        self._timeout_s = seconds("timeout_s", timeout_s)
        self._connections = Connections(finder, keys_in(keys), name, self._timeout_s)
        self._tables: dict[str, ClusterTable] = {}
        self._publishing = threading.Lock()  # else shards may get two versions in two orders
        self._runs: dict[str, str] = {}  # by name: the run of the last weights returned
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def shards(self) -> tuple[str, ...]:
        """Names of the shards, by number."""
        return tuple(one.name for one in self._connections.all)

    def shard(self, name: str) -> Client:
        """Return the client of one shard. Raises ConfigError for an unknown name."""
        for one in self._connections.all:
            if one.name == name:
                return one.client
        raise ConfigError(f"there is no shard {name!r}: there are {', '.join(self.shards)}")

    def table(self, name: str) -> ClusterTable:
        """Return a table; the shards are asked for it at its first use."""
        self._check()
        if name not in self._tables:
            made = ClusterTable(self._connections, name, self._timeout_s)
            return self._tables.setdefault(name, made)
        return self._tables[name]

    @explain_wrong_names
    def publish(
        self, name: str, tensors: Mapping[str, Any], version: int, *, timeout_s: float | None = None
    ) -> bool:
        """Send weights to all shards that can be reached, where `latest` finds them.

        See `Client.publish`. A shard that is started anew has them from the next call on.

        Returns
        -------
        bool
            Whether these are the newest weights in all of them.

        Raises
        ------
        SchemaError, ConfigError, Timeout, Closed, Broken
        """
        self._check()
        name, number = weights_name(name), version_of(version, tensors)
        packed = weights.packed(name, tensors)
        with self._publishing:
            found, failed = self._ask(
                lambda one, limit: one.client._publish(name, packed, number, limit), timeout_s
            )
        for error in failed.values():
            if not found or not isinstance(error, (Timeout, Closed)):
                raise error
        if not found:
            raise self._connections.nothing("publish")
        return all(found.values())

    @explain_wrong_names
    def latest(
        self,
        name: str,
        newer_than: int | Published | None = None,
        *,
        timeout_s: float = 0.0,
        as_torch: bool = False,
    ) -> Published | None:
        """Return the newest weights of the nearest shard that answers: on this host, or the first.

        See `Client.latest`. The others are not asked: `publish` sends weights to all.

        Raises
        ------
        ConfigError, Timeout, Closed, Broken
        """
        self._check()
        name, known = weights_name(name), newer_than_of(newer_than)
        wait_s, run = seconds("timeout_s", timeout_s), self._runs.get(name)
        if isinstance(known, int) and run is not None:  # of the run that was had last, of any shard
            known = Published(known, {}, run)
        for one in sorted(self._connections.reached, key=lambda one: not one.shard.is_here):
            limit = ShardDeadline(one, Deadline(wait_s + self._timeout_s))
            try:
                found = one.client._latest(name, known, wait_s, limit, as_torch)
            except Timeout:
                continue
            if found is not None:
                self._runs[name] = found.run
            return found
        raise self._connections.nothing("latest")

    @explain_wrong_names
    def status(self, *, timeout_s: float | None = None) -> ClusterStatus:
        """Return the status of all shards, as plain values. Raises Closed.

        All are asked at once: one that does not answer in time has none, and costs the others
        nothing.
        """
        self._check()
        found, _ = self._ask(
            lambda one, limit: one.client.status(timeout_s=limit.left_or_inf()), timeout_s
        )
        return {
            "shards": {
                one.name: {
                    "number": one.number,
                    "address": one.shard.address,
                    "host": one.shard.host,
                    "connected": one.is_open,
                    "status": found.get(one.name),
                }
                for one in self._connections.all
            }
        }

    def stats(self) -> dict[str, ClientStats]:
        """Return what was sent, lost and received so far, by shard."""
        return {one.name: one.client.stats() for one in self._connections.all}

    @explain_wrong_names
    def drain(self, *, timeout_s: float | None = None) -> None:
        """Tell all shards to take nothing new, deliver what they have, and end; wait for all.

        All are told at once. Raises Timeout, Closed, Broken: of the first that failed.
        """
        self._check()
        _, failed = self._ask(lambda one, limit: one.client._drain(limit), timeout_s)
        for error in failed.values():
            raise error

    def _ask(
        self, call: Callable[[ShardConnection, Deadline], R], timeout_s: float | None
    ) -> tuple[dict[str, R], dict[str, AsyncLoaderError]]:
        """Call all shards that can be reached: see `Connections.ask`."""
        deadline = Deadline(self._timeout_s if timeout_s is None else timeout_s)
        return self._connections.ask(self._connections.reached, call, deadline)

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and close all writers and sources, and end. May be called again.

        Raises
        ------
        Timeout, Broken, ...
            Some rows are not acknowledged. The client is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        for table in self._tables.values():
            table.close()
        self._connections.close(self._timeout_s if timeout_s is None else timeout_s)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        there, reached = len(self._connections.all), len(self._connections.reached)
        return f"<ClusterClient of {there} shards, {reached} of them connected: {state}>"

    def __reduce__(self) -> Any:
        raise CannotSend("a client stays in its process: connect to the cluster there")

    def _check(self) -> None:
        if self._closed:
            raise Closed("this client of a cluster is closed")
