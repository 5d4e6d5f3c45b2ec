"""A client of all shards of a cluster: tables, weights, status."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from async_loader.errors import AsyncLoaderError, CannotSend, Closed, ConfigError, Timeout
from async_loader.feeder.client import weights
from async_loader.feeder.client.answer_deadline import AnswerDeadline
from async_loader.feeder.client.arguments import newer_than_of, version_of, weights_name
from async_loader.feeder.client.client import Client
from async_loader.feeder.client.publish_turns import PublishTurns
from async_loader.feeder.client.stats import ClientStats
from async_loader.feeder.client.weights import Missing, Published
from async_loader.held_locks import held_lock, unheld
from async_loader.lifecycle import Deadline, seconds
from async_loader.names import explain_wrong_attributes, explain_wrong_names
from async_loader.scale.at_once import called_at_once
from async_loader.scale.connections import Connections
from async_loader.scale.directory import Directory
from async_loader.scale.shard_connection import ShardConnection
from async_loader.scale.shard_deadline import ShardDeadline
from async_loader.scale.shard_statuses import statuses_of
from async_loader.scale.stats import ClusterStatus
from async_loader.scale.table import ClusterTable


@explain_wrong_attributes
class ClusterClient:
    """A connection to all shards of a cluster. Made by `Cluster`.

    Shards that cannot be reached are left out until they can be; one at least has to answer at
    the beginning. Threads: any. After a fork, the child makes its own.

    Parameters
    ----------
    directory : Directory
        Closed with the client.
    name : str
        Of this client in the shards' status.
    timeout_s : float
        Seconds for connecting, and for every call that waits, unless it has its own.

    Raises
    ------
    ConfigError, Timeout, Unsupported
        As `async_loader.connect`.
    """

    def __init__(self, directory: Directory, *, name: str = "", timeout_s: float = 30.0) -> None:
        self._timeout_s = seconds("timeout_s", timeout_s)
        self._connections = Connections(directory, name, self._timeout_s)
        self._lock = held_lock()
        self._tables: dict[str, ClusterTable] = {}
        self._turns = PublishTurns()  # else shards may get two versions in two orders
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
        with unheld(self._lock):
            return self._tables.setdefault(
                name, ClusterTable(self._connections, name, self._timeout_s)
            )

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
        deadline = self._deadline(timeout_s)
        packed, reached = weights.packed(name, tensors), self._reached()
        if not reached:
            raise self._nothing("publish")

        def publish(shard: ShardConnection, limit: Deadline) -> bool:
            return shard.client._publish(name, packed, number, limit)

        for one in reached:
            one.connection.check_fork()
        with self._turns.turn(name, deadline):
            calls = called_at_once(self._connections, reached, publish, deadline)
        newest = [call.result for call in calls if call.error is None]
        failed = [call.error for call in calls if call.error is not None]
        for error in failed:
            if not newest or not isinstance(error, (Timeout, Closed)):
                raise error
        return all(newest)

    @explain_wrong_names
    def latest(
        self,
        name: str,
        newer_than: int | Published | None = None,
        *,
        timeout_s: float = 0.0,
        as_torch: bool = False,
    ) -> Published | None:
        """Return the newest weights of the nearest shard: on this host, else the first one.

        See `Client.latest`. Where that shard has none at all the others are asked, and while none
        has any, all are waited for.

        Raises
        ------
        ConfigError, Timeout, Closed, Broken
        """
        self._check()
        name, newer_than = weights_name(name), newer_than_of(newer_than)
        wait_s = seconds("timeout_s", timeout_s)
        near = sorted(self._reached(), key=lambda one: (not one.is_here, one.number))
        if not near:
            raise self._nothing("latest")
        waiting, deadline = Deadline(wait_s), Deadline(wait_s + self._timeout_s)

        known = self._known(name, newer_than)

        def asked(shard: ShardConnection, limit: Deadline, left: float) -> Published | Missing:
            return shard.client._latest(name, known, left, limit, as_torch)

        def awaited(shard: ShardConnection, limit: Deadline) -> Published | None:
            found = asked(shard, limit, waiting.left_or_inf())
            return None if isinstance(found, Missing) else found

        empty: list[ShardConnection] = []
        for one in near:  # none is waited for while another may have them
            last = one is near[-1] and not empty
            own = AnswerDeadline(one.connection, wait_s, self._timeout_s)
            limit = own if last else ShardDeadline(one, deadline)
            try:
                found = asked(one, limit, 0.0)
                if found is Missing.NOT_NEWER:
                    return self._had(name, awaited(one, limit) if wait_s else None)
            except Timeout:
                if last:
                    raise
                continue
            if not isinstance(found, Missing):
                return self._had(name, found)
            empty.append(one)
        if not wait_s:
            return None
        calls = called_at_once(self._connections, empty, awaited, deadline, first=True)
        results = [one.result for one in calls if one.result is not None]
        errors = [one.error for one in calls if one.error is not None]
        if not results and len(errors) == len(calls):
            raise errors[0]
        return self._had(name, next(iter(results), None))

    def _known(self, name: str, newer_than: int | Published | None) -> int | Published | None:
        """Return what is asked of a shard: a number is of the run that was had last, of any."""
        run = self._runs.get(name)
        if newer_than is None or run is None or isinstance(newer_than, Published):
            return newer_than
        return Published(newer_than, {}, run)

    def _had(self, name: str, found: Published | None) -> Published | None:
        """Note the run of weights that are returned."""
        if found is not None:
            self._runs[name] = found.run
        return found

    @explain_wrong_names
    def status(self, *, timeout_s: float | None = None) -> ClusterStatus:
        """Return the status of all shards, as plain values. Raises Closed.

        All are asked at once: one that does not answer in time has none, and costs the others
        nothing.
        """
        self._check()
        deadline = self._deadline(timeout_s)
        version, there = self._connections.version, self._connections.all
        return {"version": version, "shards": statuses_of(there, deadline)}

    def stats(self) -> dict[str, ClientStats]:
        """Return what was sent, lost and received so far, by shard."""
        return {one.name: one.client.stats() for one in self._connections.everything()}

    @explain_wrong_names
    def drain(self, *, timeout_s: float | None = None) -> None:
        """Tell all shards to take nothing new, deliver what they have, and end; wait for all.

        All are told at once. Raises Timeout, Closed, Broken: of the first that failed.
        """
        self._check()
        calls = called_at_once(
            self._connections,
            self._reached(),
            lambda shard, limit: shard.client._drain(limit),
            self._deadline(timeout_s),
        )
        for call in calls:
            if call.error is not None:
                raise call.error

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
        there = self._connections.all
        reached = sum(one.is_open for one in there)
        return f"<ClusterClient of {len(there)} shards, {reached} of them connected: {state}>"

    def __reduce__(self) -> Any:
        raise CannotSend("a client stays in its process: connect to the cluster there")

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except AsyncLoaderError as late:
            if error is None:
                raise
            if not isinstance(error, type(late)):
                warnings.warn(f"{late} (while another error ended the client)", stacklevel=2)

    def _check(self) -> None:
        if self._closed:
            raise Closed("this client of a cluster is closed")

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(self._timeout_s if timeout_s is None else timeout_s)

    def _reached(self) -> list[ShardConnection]:
        return [one for one in self._connections.all if one.is_open]

    def _nothing(self, what: str) -> Timeout:
        names = ", ".join(self.shards)
        return Timeout(f"{what}: none of {names} can be reached: the call may be made again")
