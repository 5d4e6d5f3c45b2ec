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

from async_loader.errors import AsyncLoaderError, Closed, ConfigError
from async_loader.feeder.client import weights
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.outbox import Counts
from async_loader.feeder.client.reader_line import Phase as ReaderPhase
from async_loader.feeder.client.reader_line import ReaderLine, Transport
from async_loader.feeder.client.source import RemoteSource, update, view_of
from async_loader.feeder.client.stats import ClientStats
from async_loader.feeder.client.weights import Published
from async_loader.feeder.client.writer import RemoteWriter
from async_loader.feeder.client.writer_line import Phase, WriterLine
from async_loader.feeder.keys import load_client_keys
from async_loader.feeder.wire import MOST_AHEAD, Drain, OpenReader, Status, StatusReply
from async_loader.interrupts import HeldBack
from async_loader.lifecycle import LONGEST_S, Deadline, seconds, seconds_or_none
from async_loader.replay.arguments import positive
from async_loader.replay.views import Transitions
from async_loader.schema import Schema
from async_loader.source import Applied

if TYPE_CHECKING:
    from async_loader.feeder.embedded import Embedded

OnDisconnect = Literal["wait", "raise"] | float
_EMBEDDED_DRAIN_S = 1.0
_LINES = 64
"""Writers and readers that are counted one by one; of more, those that are closed are summed up."""
_TRY_ONCE_S = 1e-3
"""What a timeout of 0 is on the wire, which knows no time limit of 0."""


def connect(
    address: str,
    *,
    tables: Mapping[str, Any] | None = None,
    on_disconnect: OnDisconnect = "wait",
    timeout_s: float = 30.0,
    keys: str | os.PathLike[str] | None = None,
) -> Client:
    """A client of the feeder at ``address``, or of one of its own.

    Parameters
    ----------
    address : str
        ``tcp://host:port`` or ``ipc:///path``, as the feeder prints it; or "embedded": a feeder is started, a child of this
        process at a private address, and ends with the client, or with this process, whatever happens to it. Others on
        this machine connect to the client's ``address``.
    tables : mapping, optional
        Of an embedded feeder: for each name, how many steps it keeps, bytes as in ``"8GiB"``, or a mapping of settings as
        in the YAML file of ``async-loader serve``. By default ``{"replay": 1_000_000}``.
    on_disconnect : "wait" | "raise" | float
        What to do when the feeder is not heard of any more: connect again for as long as it takes, give up at once, or
        after so many seconds. Until then writers fill their buffers and sources wait. An embedded feeder that has ended is
        Broken at once: nobody starts it again.
    timeout_s : float
        For connecting, and for everything that waits for an answer unless it says otherwise, in seconds.
    keys : path, optional
        The client's ``NAME.secret``, as ``async-loader keys`` made it, for a feeder that has keys.

    Raises
    ------
    Timeout
        Nobody answered.
    ConfigError
        The address is none; or the feeder and this client do not have keys that fit.
    Unsupported
        The feeder speaks another version.
    """
    if address == "embedded":
        return _embedded(tables, on_disconnect, timeout_s)
    if tables is not None:
        raise ConfigError(f"tables={tables!r}: the feeder at {address!r} has its own: leave them out, or connect to 'embedded'")
    if not isinstance(address, str) or "://" not in address:
        raise ConfigError(f"{address!r} is no address: give tcp://host:port, ipc:///path or 'embedded'")
    limit = seconds("timeout_s", timeout_s)
    waits = {"wait": None, "raise": 0.0}
    if isinstance(on_disconnect, str) and on_disconnect not in waits:
        raise ConfigError(f"on_disconnect={on_disconnect!r}: 'wait', 'raise' or seconds")
    wait_s = waits[on_disconnect] if isinstance(on_disconnect, str) else seconds("on_disconnect", on_disconnect)
    own = None if keys is None else load_client_keys(os.fspath(keys))
    connection: Connection | None = None
    try:
        with HeldBack():  # a thread whose start was cut is not known
            connection = Connection(address, wait_s, keys=own)
        connection.wait_open(Deadline(limit))
        return Client(connection, limit)
    except BaseException:
        if connection is not None:
            connection.stop(limit)
        raise


def _embedded(tables: Mapping[str, Any] | None, on_disconnect: OnDisconnect, timeout_s: float) -> Client:
    from async_loader.feeder.embedded import Embedded
    from async_loader.feeder.settings import ServerSettings

    wanted = {"replay": 1_000_000} if tables is None else tables
    settings = ServerSettings.from_plain(dict(wanted))
    # What waits for a table at the end would go where nobody can read it.
    feeder = Embedded(msgspec.structs.replace(settings, drain_s=_EMBEDDED_DRAIN_S))
    try:
        client = connect(feeder.address, on_disconnect=on_disconnect, timeout_s=timeout_s)
    except BaseException:
        feeder.close()
        raise
    client.embedded = feeder
    client._connection.follow(os.pidfd_open(feeder.pid), feeder.fate)  # nobody starts it anew, so nobody waits for it
    return client


class Client:
    """A connection to a feeder. Made by `connect`. Any thread; after a fork, the child makes its own.

    Parameters
    ----------
    connection : Connection
    timeout_s : float

    Attributes
    ----------
    embedded : Embedded | None
        The feeder that was started for this client, and ends with it.
    """

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection, self._timeout_s = connection, timeout_s
        self._lock = threading.Lock()
        self.embedded: Embedded | None = None
        self._writers: weakref.WeakSet[RemoteWriter] = weakref.WeakSet()
        self._sources: weakref.WeakSet[RemoteSource] = weakref.WeakSet()
        self._runs: dict[str, str] = {}  # by name: of the weights that came last
        self._ended_runs: set[str] = set()  # names under which another client has begun a run since
        self._written: list[tuple[WriterLine, Counts]] = []
        self._read: list[ReaderLine] = []
        self._past: Counter[str] = Counter()  # what lines did that are over
        self._end = weakref.finalize(self, connection.stop, 2.0)  # also at exit; the IO thread does not know the client

    @property
    def address(self) -> str:
        return self._connection.address

    def table(self, name: str) -> TableClient:
        """A table, which is not asked for before it is used."""
        self._connection.check()
        return TableClient(self, self._connection, name, self._timeout_s)

    def status(self, timeout_s: float | None = None) -> dict[str, Any]:
        """What the feeder says of itself, as plain values. Raises Timeout, Closed, Broken."""
        reply = self._connection.call(Status(), self._deadline(timeout_s))
        assert isinstance(reply.body, StatusReply)
        return reply.body.status

    def drain(self, timeout_s: float | None = None) -> None:
        """Tell the feeder to take nothing new, deliver what it has, and end; returns when it has. Raises as `status`."""
        self._connection.call(Drain(), self._deadline(timeout_s))

    def publish(self, name: str, tensors: Mapping[str, Any], version: int, timeout_s: float | None = None) -> bool:
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
        if name in self._ended_runs:
            return False
        said = weights.publish(self._connection, name, tensors, int(version), self._deadline(timeout_s))
        if not said.newest and said.run not in (None, self._connection.client):
            self._ended_runs.add(name)
            text = f"weights {name!r} are published by another client by now, those of this one are ignored: connect() again"
            warnings.warn(f"{text} to begin another run", stacklevel=2)
        return said.newest

    def latest(
        self, name: str, newer_than: int | Published | None = None, timeout_s: float = 0.0, *, as_torch: bool = False
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

    def _has_written(self, line: WriterLine) -> None:
        """Count what it does, and no more than that of those that are over."""
        with self._lock:
            self._written.append((line, line.outbox.counts))
            if len(self._written) > _LINES:
                over = [one for one in self._written if one[0].phase is Phase.CLOSED]
                self._written = [one for one in self._written if one not in over]
                for one in over:
                    self._past.update(_written_by(*one))

    def _has_read(self, line: ReaderLine) -> None:
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
            if self.embedded is not None:
                self.embedded.close()
            self._end.detach()  # last: a call that was interrupted may be made again
        if first is not None:
            raise first

    def _dropped(self) -> list[RemoteWriter]:
        """Writers that nobody has any more, and nobody closed: what they hold is to arrive all the same."""
        kept, over = {writer._line for writer in self._writers}, (Phase.CLOSED, Phase.FAILED)
        lines = [line for line, _ in self._written if line not in kept and line.phase not in over]
        return [RemoteWriter(self._connection, line, 0, self._timeout_s, self) for line in lines]

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


class TableClient:
    """One table of a feeder. Made by `Client.table`. Any thread."""

    def __init__(self, client: Client, connection: Connection, name: str, timeout_s: float) -> None:
        self._client, self._connection, self.name, self._timeout_s = client, connection, name, timeout_s
        self._lock = threading.Lock()
        self._updates: ReaderLine | None = None

    def writer(
        self, *, stream: int = 0, schema: Any = None, batch_rows: int = 256, linger_ms: float = 5.0,
        buffer_bytes: int = 64 << 20, overflow: Literal["block", "drop_oldest"] = "block",
    ) -> RemoteWriter:  # fmt: skip
        """A writer of its own. It is opened in the background; what keeps it from that is raised by its first call that waits.

        Parameters
        ----------
        stream : int
            Of steps that name none.
        schema : Schema, or what `Schema.of` takes, optional
            For a table that has none yet, rather than that of the first step.
        batch_rows : int
            Of a message that is sent at once.
        linger_ms : float
            After which a message with fewer is sent, counted from its first row.
        buffer_bytes : int
            That are kept at most until they are acknowledged.
        overflow : "block" | "drop_oldest"
            When they are more: let `append` wait, or give up the oldest message that was not sent yet.

        Raises
        ------
        ConfigError, Closed, Broken
        """
        if overflow not in ("block", "drop_oldest"):
            raise ConfigError(f"overflow={overflow!r}: 'block' or 'drop_oldest'")
        if linger_ms < 0:
            raise ConfigError(f"linger_ms={linger_ms}: it must be 0 or more")
        rows, size = positive("batch_rows", batch_rows), positive("buffer_bytes", buffer_bytes)
        known = None if schema is None else Schema.of(schema)
        with HeldBack():  # a line that is not counted among the client's is never closed
            line = self._connection.add(
                lambda number: WriterLine(number, self.name, known, rows, linger_ms / 1000, size, overflow == "drop_oldest")
            )
            line.limit(self._connection.limits.message_bytes)
            self._client._has_written(line)
            writer = RemoteWriter(self._connection, line, stream, self._timeout_s, self._client)
            self._client._keep(writer)
        return writer

    def source(
        self, *, view: Transitions | None = None, rank: int = 0, world_size: int = 1, seed: int | None = None,
        prefetch: int | None = None, transport: Transport = "auto", timeout_s: float | None = None,
    ) -> RemoteSource:  # fmt: skip
        """For ``AsyncDataLoader(source, batch_size=...)``.

        Parameters
        ----------
        view : Transitions, optional
        rank, world_size : int
            Of this learner, among those that share the table.
        seed : int, optional
        prefetch : int, optional
            Batches on their way or waiting here; a loader that plans further ahead raises it. A feeder sends 64 ahead at most,
            and over a socket not more than its ``in_flight_bytes``. By default 4 to 32, depending on their size, and 8 at
            most where they have weights. With 0 a batch is drawn when `plan` waits for it, with all the
            priorities that were updated until then.
        transport : "auto" | "shm" | "tcp"
            How batches come from a feeder on this machine: written by it into memory of this process, or through its
            sockets (ipc too). "auto" takes memory where the feeder does, and logs why if that fails; "shm" is an error there.
        timeout_s : float, optional
            After which a batch that cannot be drawn is a Timeout.

        Raises
        ------
        ConfigError
        """
        self._connection.check()
        if transport not in ("auto", "shm", "tcp"):
            raise ConfigError(f"transport={transport!r}: 'auto', 'shm' or 'tcp'")
        if prefetch is not None and (isinstance(prefetch, bool) or prefetch != 0):
            prefetch = positive("prefetch", prefetch)
        seen = view_of(view)
        limit = seconds_or_none("timeout_s", timeout_s)
        limit = None if limit is None or limit > LONGEST_S else max(limit, _TRY_ONCE_S)

        def wanted(batch_size: int, ahead: int) -> OpenReader:
            return OpenReader(
                table=self.name, batch_size=batch_size, view=seen, rank=rank, world_size=world_size, seed=seed,
                timeout_s=limit, prefetch=ahead, together=MOST_AHEAD,
            )  # fmt: skip

        source = RemoteSource(self._connection, wanted, prefetch, transport, self._timeout_s, self._client)
        source.on_open = self._client._has_read
        self._client._keep(source)
        return source

    def update_priorities(self, ids: Any, priority: Any, timeout_s: float | None = None) -> Applied:
        """New priorities by id, as `ReplayBuffer.update_priorities`.

        Raises
        ------
        ConfigError, Unsupported, Timeout, Closed, Broken
        """
        self._connection.check()
        with self._lock, HeldBack():
            if self._updates is None:  # a reader that never asks for a batch
                wanted = OpenReader(table=self.name, batch_size=1)
                self._updates = self._connection.add(lambda number: ReaderLine(number, wanted, 0))
        deadline = Deadline(self._timeout_s if timeout_s is None else timeout_s)
        return update(self._connection, self._updates, ids, priority, deadline)


def _written_by(line: WriterLine, counts: Counts) -> dict[str, int]:
    """What a writer did so far."""
    part = line.part
    begun = part.count - part.finals if part is not None else 0
    return {**{name: getattr(counts, name) for name in Counts.__slots__}, "rows_added": line.rows_in + begun}
