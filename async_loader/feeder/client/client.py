"""A client of a feeder, as a user holds it: tables, weights, status."""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Mapping
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from async_loader.errors import (
    AsyncLoaderError,
    Broken,
    CannotSend,
    Timeout,
)
from async_loader.feeder.client import weights
from async_loader.feeder.client.arguments import (
    newer_than_of,
    version_of,
    weights_name,
)
from async_loader.feeder.client.call_memory import CallMemory
from async_loader.feeder.client.calls import AnswerDeadline, Call
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.reader_channel import ReaderChannel
from async_loader.feeder.client.remote_table import IdleSources
from async_loader.feeder.client.rollouts import RemotePort, RolloutsClient
from async_loader.feeder.client.source import RemoteSource
from async_loader.feeder.client.stats import ClientStats
from async_loader.feeder.client.table import TableClient
from async_loader.feeder.client.weights import Published
from async_loader.feeder.client.writer_channel import WriterChannel
from async_loader.feeder.status import FeederStatus
from async_loader.feeder.wire import Drain, Status, StatusReply
from async_loader.lifecycle import ClosedAtExit, Deadline, seconds
from async_loader.name_hints import explain_wrong_attributes, explain_wrong_names
from async_loader.process_hooks import AFTER

if TYPE_CHECKING:
    from async_loader.feeder.embedded import Embedded

_COUNTED = sorted(ClientStats.COUNTERS - {"sessions"})


@explain_wrong_attributes
class Client(ClosedAtExit):
    """A connection to a feeder. Made by `connect`.

    Threads: any. After a fork, the child makes its own.

    Parameters
    ----------
    connection : Connection
    timeout_s : float
    """

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection, self._timeout_s = connection, timeout_s
        self._embedded: Embedded | None = None  # was started for this client, and ends with it
        self._runs: dict[str, str] = {}  # by name: the run of the last weights received
        self._ended_runs: set[str] = set()  # names whose run another client has ended
        self._published: dict[str, int] = {}  # by name: the newest version of this client
        self._publishing = threading.Lock()
        # by table: `client.table(name).sample(n)` at each step opens no further reader
        self._sample_readers: dict[str, IdleSources[RemoteSource]] = {}
        self._rollout_ports: dict[str, RemotePort] = {}
        self._call_memory = CallMemory(self._connection)
        self._end = weakref.finalize(
            self, connection.stop, 2.0
        )  # also at exit; the IO thread does not know the client
        # after loaders; a `Process` runs no other finalizers at its end
        self._end_of_process = util.Finalize(self, connection.stop, (2.0,), exitpriority=AFTER)

    @property
    def address(self) -> str:
        """The feeder's address, for other clients on this machine."""
        return self._connection.address

    @property
    def owns_feeder(self) -> bool:
        """Whether the feeder was started for this client, and ends with it."""
        return self._embedded is not None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._end.alive

    def __repr__(self) -> str:
        state = "open" if self._connection.is_open else "lost"
        state = "closed" if self.closed else state
        own = ", which is its own" if self.owns_feeder else ""
        return f"<Client of the feeder at {self.address}{own}: {state}>"

    def __reduce__(self) -> Any:
        raise CannotSend(
            f"a client stays in its process: send its address, and say connect({self.address!r}) "
            "there"
        )

    def table(self, name: str) -> Any:
        """Return a table: a `TableClient`; or one with the methods of `Rollouts`, if it is one.

        The feeder is asked for it at its first use.
        """
        self._connection.check()
        welcome = self._connection.session.welcome
        if welcome is not None and name in welcome.rollouts:
            port = self._rollout_ports.get(name)
            if port is None:
                port = RemotePort(self._connection, name, self._timeout_s, self._call_memory)
                port = self._rollout_ports.setdefault(name, port)
            return RolloutsClient(self, self._connection, name, port)
        readers = self._sample_readers.setdefault(name, IdleSources())
        return TableClient(self, self._connection, name, self._timeout_s, readers)

    @explain_wrong_names
    def status(self, *, timeout_s: float | None = None) -> FeederStatus:
        """Return the feeder's status, as plain values. Raises Timeout, Closed, Broken."""
        reply = self._connection.call(Call(Status()), self._deadline(timeout_s))
        assert isinstance(reply.body, StatusReply)
        status: Any = reply.body.status
        found: FeederStatus = status
        return found

    @explain_wrong_names
    def drain(self, *, timeout_s: float | None = None) -> None:
        """Tell the feeder to take nothing new, deliver what it has, and end; return when it has.

        Raises as `status`.
        """
        self._drain(self._deadline(timeout_s))

    def _drain(self, deadline: Deadline) -> None:
        self._connection.call(Call(Drain()), deadline)

    @explain_wrong_names
    def publish(
        self, name: str, tensors: Mapping[str, Any], version: int, *, timeout_s: float | None = None
    ) -> bool:
        """Send weights to the feeder, where `latest` of any client finds them.

        Versions go up within a run. The first ``publish`` of a client under a name begins a run,
        with any version, and ends the one before: weights of a restarted training script count from
        its first version on. A client whose run was ended by another client's is warned once, and
        its weights are ignored.

        Parameters
        ----------
        tensors : mapping of str to array or torch tensor
            As a ``state_dict``; copied before this returns. Of dtypes that numpy has, or
            torch.bfloat16.
        version : int
            Above the last one of this client.

        Returns
        -------
        bool
            Whether these are the newest weights now. False: the version is not above the last, or
            the run is over. Of threads that publish one version under one name, one has True.

        Raises
        ------
        SchemaError, ConfigError, Timeout, Closed, Broken
        """
        name, number = weights_name(name), version_of(version, tensors)
        packed = weights.packed(name, tensors)
        return self._publish(name, packed, number, self._deadline(timeout_s))

    def _publish(self, name: str, packed: weights.Packed, version: int, deadline: Deadline) -> bool:
        """As `publish`, of weights that may go to several feeders."""
        connection = self._connection
        connection.check_fork()
        held = self._hold(True)
        try:
            with self._publishing:
                known = self._published.get(name, -1)
                said = weights.publish(connection, name, packed, version, deadline, known)
                if said.newest:
                    self._published[name] = max(known, version)
                    connection.old_rows.newest[name] = version
        finally:
            if held:  # tables of another policy, or the publish has failed: no version comes
                with contextlib.suppress(AsyncLoaderError):
                    self._hold(False)
        ended = not said.newest and said.run not in (None, connection.client)
        if ended and name not in self._ended_runs:
            self._ended_runs.add(name)
            text = (
                f"weights {name!r} are published by another client by now, those of this one are "
                "ignored: connect() again"
            )
            warnings.warn(f"{text} to begin another run", stacklevel=3)
        return said.newest

    def _hold(self, hold: bool) -> bool:
        """Tell tables of rollouts that what this client was given is used, and that a version of it
        follows; or that it does not. Return whether there was anything.
        """
        found = False
        for name in list(self._rollout_ports):
            table = self.table(name)
            found |= table._settle(hold=True) if hold else table._release_hold()
        return found

    @explain_wrong_names
    def latest(
        self,
        name: str,
        newer_than: int | Published | None = None,
        *,
        timeout_s: float = 0.0,
        as_torch: bool = False,
    ) -> Published | None:
        """The newest weights, if there are any newer than ``newer_than``.

        Parameters
        ----------
        newer_than : int or Published, optional
            What the caller has. Weights of another run count as newer. A number is a version of the
            run whose weights this client got last.
        timeout_s : float
            How long to wait for newer weights. (The answer of a feeder that lives may take longer,
            by the client's ``timeout_s`` at most.)
        as_torch : bool
            Return torch tensors, not numpy arrays; only they can be bfloat16, see `Published`.

        Returns
        -------
        Published | None
            ``None``: there are no newer weights.

        Raises
        ------
        ConfigError, Timeout, Closed, Broken
        """
        name, newer_than = weights_name(name), newer_than_of(newer_than)
        wait_s = seconds("timeout_s", timeout_s)
        deadline = AnswerDeadline(self._connection, wait_s, self._timeout_s)
        return self._latest(name, newer_than, wait_s, deadline, as_torch)

    def _latest(
        self,
        name: str,
        newer_than: int | Published | None,
        wait_s: float,
        deadline: Deadline,
        as_torch: bool,
    ) -> Published | None:
        """As `latest`, with an end of the whole call."""
        run = self._runs.get(name)
        if isinstance(newer_than, Published):
            run, newer_than = newer_than.run, newer_than.version
        known = bytes.fromhex(run) if run else None
        found = weights.latest(
            self._connection, name, newer_than, known, wait_s, deadline, as_torch
        )
        if found is not None:
            self._runs[name] = found.run
            self._connection.old_rows.newest[name] = found.version
        return found

    def lost(self, table: str) -> dict[int, int]:
        """Return how many acknowledged rows of this client's writers each server was lost with.

        By the number of the server: 0 is the first one.
        """
        lost = dict(self._connection.lost)
        return {server: rows for (name, server), rows in lost.items() if name == table}

    def stats(self) -> ClientStats:
        """Return what was sent, lost and received so far."""
        connection = self._connection
        heard = connection.session.heard_at
        counted: Any = {name: connection.counts[name] for name in _COUNTED}
        return ClientStats(
            **counted,
            bytes_kept=sum(one.outbox.nbytes for one in connection.channels(WriterChannel)),
            sessions=connection.session.opened,
            last_heard_s=None if heard is None else connection.clock() - heard,
            connected=connection.is_open,
        )

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and close all writers and sources, and end. May be called again.

        Raises
        ------
        Timeout, Broken, ...
            Some rows are not acknowledged. The client is closed all the same.
        """
        if not self._end.alive:
            return
        deadline, first = self._deadline(timeout_s), None
        self._connection.check_fork()
        try:
            for writer in self._connection.channels(WriterChannel):
                try:
                    if not writer.told:
                        writer.close(deadline)
                except AsyncLoaderError as error:
                    first = first or error
            readers = self._connection.channels(ReaderChannel)
            for reader in readers:
                reader.close(used=True)
            self._connection.wake()
            for port in self._rollout_ports.values():
                with contextlib.suppress(AsyncLoaderError):
                    port.flush(deadline)
            for reader in readers:
                if reader.leased:  # the feeder has to know which batches were used
                    with contextlib.suppress(Timeout):
                        reader.wait_closed(deadline, str)
        finally:
            self._connection.stop(max(2.0, deadline.left_or_inf()))
            self._call_memory.close()
            try:
                if self._embedded is not None:
                    self._embedded.close()
            except Broken as error:
                first = first or error
            self._end_of_process.cancel()
            self._end.detach()  # last: a close that was interrupted may be made again
        if first is not None:
            raise first

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(self._timeout_s if timeout_s is None else timeout_s)
