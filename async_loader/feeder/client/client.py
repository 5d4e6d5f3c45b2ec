"""What users hold: a client of a feeder, and its tables. The work is done by connection, writers and sources."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from async_loader.errors import AsyncLoaderError, CannotSend, Closed, ConfigError, SchemaError
from async_loader.feeder import addresses
from async_loader.feeder.client import weights
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.outbox import Counts
from async_loader.feeder.client.reader_channel import ReaderChannel
from async_loader.feeder.client.reader_channel import ReaderPhase as ReaderPhase
from async_loader.feeder.client.sample_channel import SampleChannel
from async_loader.feeder.client.source import RemoteSource
from async_loader.feeder.client.stats import ClientStats
from async_loader.feeder.client.table import TableClient
from async_loader.feeder.client.weights import Published
from async_loader.feeder.client.writer import RemoteWriter
from async_loader.feeder.client.writer_channel import WriterChannel, WriterPhase
from async_loader.feeder.curve_keys import load_client_keys
from async_loader.feeder.status import FeederStatus
from async_loader.feeder.wire import Drain, Status, StatusReply
from async_loader.interrupts import SignalsDeferred
from async_loader.lifecycle import Deadline, seconds
from async_loader.names import explain_wrong_names

if TYPE_CHECKING:
    from async_loader.feeder.embedded import Embedded

OnDisconnect = Literal["wait", "raise"] | float
_EMBEDDED_DRAIN_S = 1.0
_NAME = 64
"""Characters of a client's name."""
_LINES = 64
"""Writers and readers that are counted one by one; of more, those that are closed are summed up."""


@explain_wrong_names
def connect(
    address: str | None = None,
    *,
    name: str = "",
    tables: Mapping[str, Any] | None = None,
    on_disconnect: OnDisconnect = "wait",
    timeout_s: float = 30.0,
    keys: str | os.PathLike[str] | None = None,
) -> Client:
    """A client of the feeder at ``address``, or of one of its own.

    Parameters
    ----------
    address : str, optional
        ``tcp://host:port`` or ``ipc:///path``, as the feeder prints it; by default the socket of ``async-loader serve``
        without ``--bind``. Or "embedded": a feeder is started, a child of this process at a private address, and ends with the
        client, or with this process, whatever happens to it. Others on this machine connect to the client's ``address``.
    name : str
        What the feeder's status calls this client.
    tables : mapping, optional
        Of an embedded feeder: for each name, how many steps it keeps, bytes as in ``"8GiB"``, or a mapping with the arguments
        of a `ReplayBuffer`, as in Python or as in the YAML file of ``async-loader serve``. By default
        ``{"replay": 1_000_000}``.
    on_disconnect : "wait" | "raise" | float
        What to do when the feeder is not heard of any more: connect again for as long as it takes, give up at once, or
        give up after this number of seconds. Until then writers fill their buffers and sources wait. An embedded feeder
        that has ended is Broken at once: nothing starts it again.
    timeout_s : float
        For connecting, and for everything that waits for an answer unless it says otherwise, in seconds.
    keys : path, optional
        The client's ``NAME.secret``, as ``async-loader keys`` made it, for a feeder that has keys.

    Raises
    ------
    Timeout
        There was no answer.
    ConfigError
        The address is not one; or the feeder and this client do not have keys that fit.
    Unsupported
        The feeder speaks another version.
    """
    limit, wait_s = seconds("timeout_s", timeout_s), _wait_s(on_disconnect)
    if not isinstance(name, str) or len(name) > _NAME or not name.isprintable():
        raise ConfigError(f"name={name!r}: it is text of at most {_NAME} printable characters")
    if address == "embedded":
        return _embedded(tables, name, on_disconnect, limit)
    if address is not None and (not isinstance(address, str) or "://" not in address):
        raise ConfigError(f"{address!r} is no address: give tcp://host:port, ipc:///path or 'embedded'")
    where = str(addresses.default()) if address is None else address
    if tables is not None:
        raise ConfigError(f"tables={tables!r}: the feeder at {where!r} has its own: leave them out, or connect to 'embedded'")
    own = None if keys is None else load_client_keys(os.fspath(keys))
    connection: Connection | None = None
    try:
        with SignalsDeferred():  # a thread whose start was cut is not known
            connection = Connection(where, wait_s, keys=own, name=name)
        connection.wait_open(Deadline(limit))
        return Client(connection, limit)
    except BaseException:
        if connection is not None:
            connection.stop(limit)
        raise


def _wait_s(on_disconnect: OnDisconnect) -> float | None:
    waits = {"wait": None, "raise": 0.0}
    if isinstance(on_disconnect, str):
        if on_disconnect not in waits:
            raise ConfigError(f"on_disconnect={on_disconnect!r}: 'wait', 'raise' or seconds")
        return waits[on_disconnect]
    return seconds("on_disconnect", on_disconnect)


def _embedded(tables: Mapping[str, Any] | None, name: str, on_disconnect: OnDisconnect, timeout_s: float) -> Client:
    from async_loader.feeder.embedded import Embedded
    from async_loader.feeder.settings import ServerSettings

    wanted = {"replay": 1_000_000} if tables is None else tables
    if not isinstance(wanted, Mapping):
        raise ConfigError(f"tables={wanted!r}: give a dict of names and sizes, as in tables={{'replay': 1_000_000}}")
    settings = ServerSettings.from_plain(dict(wanted))
    # What waits for a table at the end would go where nobody can read it.
    feeder = Embedded(msgspec.structs.replace(settings, drain_s=_EMBEDDED_DRAIN_S))
    try:
        client = connect(feeder.address, name=name, on_disconnect=on_disconnect, timeout_s=timeout_s)
    except BaseException:
        feeder.close()
        raise
    client._embedded = feeder
    client._connection.follow(os.pidfd_open(feeder.pid), feeder.fate)  # nobody starts it anew, so nobody waits for it
    return client


class Client:
    """A connection to a feeder. Made by `connect`.

    Threads: any. After a fork, the child makes its own.

    Parameters
    ----------
    connection : Connection
    timeout_s : float
    """

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection, self._timeout_s = connection, timeout_s
        self._lock = threading.Lock()
        self._embedded: Embedded | None = None  # that was started for this client, and ends with it
        self._writers: weakref.WeakSet[RemoteWriter] = weakref.WeakSet()
        self._sources: weakref.WeakSet[RemoteSource] = weakref.WeakSet()
        self._runs: dict[str, str] = {}  # by name: of the weights that came last
        self._ended_runs: set[str] = set()  # names under which another client has begun a run since
        self._written: list[tuple[WriterChannel, Counts]] = []
        self._read: list[ReaderChannel | SampleChannel] = []
        self._past: Counter[str] = Counter()  # what lines did that are over
        self._end = weakref.finalize(self, connection.stop, 2.0)  # also at exit; the IO thread does not know the client

    @property
    def address(self) -> str:
        """The feeder's, for other clients on this machine."""
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
        state = "closed" if self.closed else self._connection.session.phase.value
        own = ", which is its own" if self.owns_feeder else ""
        return f"<Client of the feeder at {self.address}{own}: {state}>"

    def __reduce__(self) -> Any:
        raise CannotSend(f"a client stays in its process: send its address, and say connect({self.address!r}) there")

    def table(self, name: str) -> TableClient:
        """A table, which is not asked for before it is used."""
        self._connection.check()
        return TableClient(self, self._connection, name, self._timeout_s)

    @explain_wrong_names
    def status(self, *, timeout_s: float | None = None) -> FeederStatus:
        """What the feeder says of itself, as plain values. Raises Timeout, Closed, Broken."""
        reply = self._connection.call(Status(), self._deadline(timeout_s))
        assert isinstance(reply.body, StatusReply)
        status: Any = reply.body.status
        found: FeederStatus = status
        return found

    @explain_wrong_names
    def drain(self, *, timeout_s: float | None = None) -> None:
        """Tell the feeder to take nothing new, deliver what it has, and end; returns when it has. Raises as `status`."""
        self._connection.call(Drain(), self._deadline(timeout_s))

    @explain_wrong_names
    def publish(self, name: str, tensors: Mapping[str, Any], version: int, *, timeout_s: float | None = None) -> bool:
        """Hand weights to the feeder, for every `latest`.

        Versions go up within a run. The first ``publish`` of a client under a name begins a run, whatever the version, and ends
        the one before: weights of a training script that is started again count from its first version on. A client whose run
        was ended by another one's is told so, with a warning once, and its weights are ignored.

        Parameters
        ----------
        tensors : mapping of str to array or torch tensor
            As a ``state_dict``; copied before this returns. Of dtypes that numpy has, or torch.bfloat16.
        version : int
            Above that of this client's last one.

        Returns
        -------
        bool
            Whether these are the newest weights now. False: the version is not above the last, or the run is over.

        Raises
        ------
        SchemaError, ConfigError, Timeout, Closed, Broken
        """
        if isinstance(version, bool) or not hasattr(version, "__index__") or not 0 <= version < 1 << 64:
            raise ConfigError(f"version={version!r}: versions are numbers from 0 that go up")
        if not isinstance(tensors, Mapping):
            kind = type(tensors).__name__
            raise SchemaError(f"tensors is a {kind}: give a dict of arrays or tensors, as state_dict() or {{'w': array}}")
        if name in self._ended_runs:
            return False
        said = weights.publish(self._connection, name, tensors, int(version), self._deadline(timeout_s))
        if not said.newest and said.run not in (None, self._connection.client):
            self._ended_runs.add(name)
            text = f"weights {name!r} are published by another client by now, those of this one are ignored: connect() again"
            warnings.warn(f"{text} to begin another run", stacklevel=2)
        return said.newest

    @explain_wrong_names
    def latest(
        self, name: str, newer_than: int | Published | None = None, *, timeout_s: float = 0.0, as_torch: bool = False
    ) -> Published | None:
        """The newest weights, if there are any newer than ``newer_than``.

        Parameters
        ----------
        newer_than : int or Published, optional
            What the caller has. Weights of another run are newer, whatever their version. A number is a version of the run
            that this client got weights of last.
        timeout_s : float
            How long to wait until there are. (The answer itself may take as long as the client's ``timeout_s`` on top.)
        as_torch : bool
            Torch tensors rather than numpy arrays. Tensors of bfloat16 come as such only then; see `Published`.

        Returns
        -------
        Published | None
            ``None``: there is nothing newer.

        Raises
        ------
        Timeout, Closed, Broken
        """
        wait_s = seconds("timeout_s", timeout_s)
        deadline = Deadline(wait_s + self._timeout_s)
        run = self._runs.get(name)
        if isinstance(newer_than, Published):
            run, newer_than = newer_than.run, newer_than.version
        known = bytes.fromhex(run) if run else None
        found = weights.latest(self._connection, name, newer_than, known, wait_s, deadline, as_torch)
        if found is not None:
            self._runs[name] = found.run
        return found

    def stats(self) -> ClientStats:
        """What was sent, lost and received so far."""
        connection = self._connection
        heard = connection.session.heard_at
        with self._lock:
            total = self._past.copy()
            for written in self._written:
                total.update(_written_by(*written))
            for read in self._read:
                total.update(batches=read.batches, batches_redelivered=read.redelivered)
            kept = sum(line.outbox.nbytes for line, _ in self._written)
        return ClientStats(
            **{name: total[name] for name in (*Counts.__slots__, "rows_added", "batches", "batches_redelivered")},
            bytes_kept=kept,
            sessions=connection.session.opened,
            last_heard_s=None if heard is None else connection.clock() - heard,
            connected=connection.is_open,
        )

    def _has_written(self, line: WriterChannel) -> None:
        """Count what it does, and no more than that of those that are over."""
        with self._lock:
            self._written.append((line, line.outbox.counts))
            if len(self._written) > _LINES:
                over = [one for one in self._written if one[0].phase is WriterPhase.CLOSED]
                self._written = [one for one in self._written if one not in over]
                for one in over:
                    self._past.update(_written_by(*one))

    def _has_read(self, line: ReaderChannel | SampleChannel) -> None:
        """As `_has_written`."""
        with self._lock:
            self._read.append(line)
            if len(self._read) > _LINES:
                over = [one for one in self._read if one.phase is ReaderPhase.CLOSED]
                self._read = [one for one in self._read if one not in over]
                for one in over:
                    self._past.update(batches=one.batches, batches_redelivered=one.redelivered)

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and close what is still open, and end. Twice does no harm.

        Raises
        ------
        Timeout, Broken, ...
            Not everything that was written is known to be in its table. The client is closed all the same.
        """
        if not self._end.alive:
            return
        deadline, first = self._deadline(timeout_s), None
        self._connection.check_fork()
        closing: list[RemoteWriter | RemoteSource] = [*self._writers, *self._dropped(), *self._sources]
        try:
            for one in closing:
                try:
                    one.close(deadline.left())
                except Closed:
                    continue
                except AsyncLoaderError as error:
                    first = first or error if isinstance(one, RemoteWriter) else first
        finally:  # also after Ctrl-C
            self._connection.stop(max(2.0, deadline.left() or 0.0))
            if self._embedded is not None:
                self._embedded.close()
            self._end.detach()  # last: a call that was interrupted may be made again
        if first is not None:
            raise first

    def _dropped(self) -> list[RemoteWriter]:
        """Writers that nobody has any more, and nobody closed: what they hold is to arrive all the same."""
        kept, over = {writer._line for writer in self._writers}, (WriterPhase.CLOSED, WriterPhase.FAILED)
        lines = [line for line, _ in self._written if line not in kept and line.phase not in over]
        return [RemoteWriter(self._connection, line, None, self._timeout_s, self) for line in lines]

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except AsyncLoaderError as late:
            if error is None:
                raise
            if not isinstance(error, type(late)):  # else it would say twice what went wrong
                warnings.warn(f"{late} (while another error ended the client)", stacklevel=2)

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(self._timeout_s if timeout_s is None else timeout_s)

    def _keep(self, one: RemoteWriter | RemoteSource) -> None:
        with self._lock:
            (self._writers if isinstance(one, RemoteWriter) else self._sources).add(one)  # type: ignore[arg-type]


def _written_by(line: WriterChannel, counts: Counts) -> dict[str, int]:
    """What a writer did so far."""
    part = line.part
    begun = part.count - part.finals if part is not None else 0
    return {**{name: getattr(counts, name) for name in Counts.__slots__}, "rows_added": line.rows_in + begun}
