"""A table of a feeder, as a user holds it: every method is one message and its answer. Holds no row."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from async_loader import batch_format as formats
from async_loader.errors import AsyncLoaderError, CannotSend, Closed, ConfigError
from async_loader.feeder.client.batch_structure import BatchStructure, local_ids, remote_ids
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.reader_channel import ReaderChannel, Transport
from async_loader.feeder.client.sample_channel import SampleChannel
from async_loader.feeder.client.sockets import Plane
from async_loader.feeder.client.source import RemoteSource, ServerReplaced, batch_size_of, update, view_of
from async_loader.feeder.client.writer import RemoteWriter, VectorTarget
from async_loader.feeder.client.writer_channel import WriterChannel
from async_loader.feeder.plain_values import limiter_from, plain_of
from async_loader.feeder.wire import (
    MOST_AHEAD,
    About,
    AboutReply,
    BatchForm,
    Clear,
    Control,
    Delete,
    Get,
    Got,
    Load,
    Message,
    OpenReader,
    Prioritize,
    Save,
    Saved,
    Update,
    View,
    schema_of,
    specs_of,
)  # fmt: skip
from async_loader.feeder.wire import (
    Applied as WireApplied,
)
from async_loader.feeder.wire import (
    Batch as WireBatch,
)
from async_loader.interrupts import SignalsDeferred
from async_loader.lifecycle import LONGEST_S, Deadline, seconds_or_none
from async_loader.names import explain_wrong_attributes, explain_wrong_names
from async_loader.replay.arguments import floats_of, ids_of, positive, whole_seed
from async_loader.replay.checkpoint.writing import SaveReport
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.samplers import Sampler, priority_rules
from async_loader.replay.stats import TableStats
from async_loader.replay.stream_names import stream_name
from async_loader.replay.table import by_id
from async_loader.replay.table.step_packer import StepPacker
from async_loader.replay.table.storage import StorageLayout
from async_loader.replay.table.waiters import Waiting
from async_loader.replay.vector_writer import VectorWriter as StreamsWriter
from async_loader.replay.views import Transitions
from async_loader.schema import Schema, SchemaLike
from async_loader.source import Applied
from async_loader.table import AutoReset, Batch, BatchFormat, VectorEnv, VectorWriter

if TYPE_CHECKING:
    import torch

    from async_loader.feeder.client.client import Client

W = TypeVar("W", bound=RemoteWriter)
TRY_ONCE_S = 1e-3
"""What a timeout of 0 is in an OPEN_READER, which knows no time limit of 0."""
_KINDS_OF_SAMPLES = 16
"""Sizes and views of `TableClient.sample` that are kept open; those that were used last."""
_IDS = 1 << 20
"""Ids that one message names at most."""
_NO_SAVE = (1 << 63) - 1
"""The highest number that travels; no save has it."""
_REPR_S = 1.0
_GONE = np.array([-1], np.int64)
_COUNTS = ("size", "inserted", "sampled", "deleted", "streams", "interrupted")


@explain_wrong_attributes
class TableClient:
    """One table of a feeder: `async_loader.table.Table` over a connection. Made by `Client.table`.

    Threads: any. A ``timeout_s`` of ``None`` is that of `connect`.

    Parameters
    ----------
    client : Client
    connection : Connection
    name : str
    timeout_s : float

    Attributes
    ----------
    name : str
    """

    def __init__(self, client: Client, connection: Connection, name: str, timeout_s: float) -> None:
        self._client, self._connection, self.name = client, connection, name
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._lines: OrderedDict[tuple[int, View | None], SampleChannel] = OrderedDict()
        self._about: AboutReply | None = None  # of a table with a schema
        self._updating: ReaderChannel | None = None

    # -- what it is --------------------------------------------------------------------------------

    @property
    def capacity(self) -> int | None:
        """Steps that are kept; ``None`` while that depends on a schema that is unknown."""
        return self._known().capacity

    @property
    def schema(self) -> Schema | None:
        """What a step is; ``None`` while that is unknown."""
        spec = self._known().schema
        return None if spec is None else schema_of(spec)

    @property
    def nbytes(self) -> int | None:
        """Shared memory of the full table, in the feeder; ``None`` while the schema is unknown."""
        return self._known().nbytes

    @property
    def limiter(self) -> RateLimiter | None:
        """How far sampling and inserting may run ahead of each other."""
        said = self._ask_about().limiter
        return limiter_from(said)

    def __len__(self) -> int:
        """Items that can be drawn."""
        return int(self._ask_about().stats["size"])

    def stats(self) -> TableStats:
        """The table in numbers, at this moment. Raises Timeout, Closed, Broken, Unsupported."""
        said = self._ask_about()
        names = TableStats.__dataclass_fields__
        known = {name: value for name, value in said.stats.items() if name in names}
        known |= {"capacity": said.capacity, "nbytes": said.nbytes}
        texts = said.stats.get("waiting", ())
        since = said.stats.get("waited_s") or [0.0] * len(texts)  # a feeder that is older does not say it
        waiting = tuple(_waiting_of(text, waited_s) for text, waited_s in zip(texts, since, strict=True))
        return TableStats(**{**dict.fromkeys(_COUNTS, 0), **known, "waiting": waiting})

    def __repr__(self) -> str:
        try:
            deadline = Deadline(min(self._timeout_s, _REPR_S))
            said: AboutReply | None = self._ask_about(deadline)
            state = "open"
        except AsyncLoaderError as error:
            said, state = self._about, "closed" if isinstance(error, Closed) else f"({type(error).__name__}: {error})"
        known = "" if said is None else f" size={said.stats['size']} capacity={said.capacity} sampler={said.sampler}"
        return f"<TableClient {self.name!r} of {self._connection.address}{known} {state}>"

    def __reduce__(self) -> Any:
        address = self._connection.address
        raise CannotSend(f"a client's table stays in its process: say connect({address!r}).table({self.name!r}) there")

    def _known(self) -> AboutReply:
        """What does not change once there is a schema: asked for until then."""
        return self._about or self._ask_about()

    def _ask_about(self, deadline: Deadline | None = None) -> AboutReply:
        reply = self._call(About(table=self.name), deadline).body
        assert isinstance(reply, AboutReply)
        if reply.schema is not None:
            self._about = reply
        return reply

    # -- steps in ----------------------------------------------------------------------------------

    def writer(
        self,
        stream: Hashable | None = None,
        *,
        schema: SchemaLike | None = None,
        batch_rows: int = 256,
        linger_ms: float = 5.0,
        buffer_bytes: int = 64 << 20,
        overflow: Literal["block", "drop_oldest"] = "block",
    ) -> RemoteWriter:
        """A writer of its own. It is opened in the background; what keeps it from that is raised by its first call that waits.

        Parameters
        ----------
        stream : hashable, optional
            Of steps that name none; by default one of its own.
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
        options = (schema, batch_rows, linger_ms, buffer_bytes, overflow)
        return self._writer(RemoteWriter, stream, *options)

    @explain_wrong_names
    def vector_writer(
        self,
        envs: int | VectorEnv,
        *,
        autoreset: AutoReset | None = None,
        streams: Sequence[Hashable] | None = None,
    ) -> VectorWriter:
        """What adds the steps of a vector of environments, each a stream. As `ReplayBuffer.vector_writer`.

        Parameters
        ----------
        envs : int | gymnasium.vector.VectorEnv
        autoreset : "next_step" | "same_step" | "disabled" | gymnasium.vector.AutoresetMode, optional
        streams : sequence of hashable, optional
            Their names; new ones by default.
        """
        writer = self._writer(VectorTarget, None, None, 256, 5.0, 64 << 20, "block")
        try:
            return StreamsWriter(writer, envs, autoreset, streams)
        except BaseException:
            writer.close()
            raise

    def _writer(
        self, kind: type[W], stream: Hashable | None, schema: SchemaLike | None, batch_rows: int, linger_ms: float,
        buffer_bytes: int, overflow: str,
    ) -> W:  # fmt: skip
        if overflow not in ("block", "drop_oldest"):
            raise ConfigError(f"overflow={overflow!r}: 'block' or 'drop_oldest'")
        if not linger_ms >= 0:
            raise ConfigError(f"linger_ms={linger_ms}: it must be 0 or more")
        rows, size = positive("batch_rows", batch_rows), positive("buffer_bytes", buffer_bytes)
        known = None if schema is None else Schema.of(schema)
        drops = overflow == "drop_oldest"
        name = None if stream is None else stream_name(stream)
        with SignalsDeferred():  # a line that is not counted among the client's is never closed
            line = self._connection.add(
                lambda number: WriterChannel(number, self.name, known, rows, linger_ms / 1000, size, drops)
            )
            line.limit(self._connection.limits.message_bytes)
            self._client._has_written(line)
            writer = kind(self._connection, line, name, self._timeout_s, self._client)
            self._client._keep(writer)
        return writer

    # -- batches out -------------------------------------------------------------------------------

    def sample(
        self,
        batch_size: int,
        *,
        view: Transitions | None = None,
        timeout_s: float | None = None,
        batch_format: BatchFormat = "numpy",
        device: str | torch.device | None = None,
    ) -> Batch:
        """Draw ``batch_size`` items as the table's sampler chooses, now: one message there, and one back.

        Parameters
        ----------
        view : Transitions, optional
            By default the table's.
        timeout_s : float, optional
            How long to wait for enough items, and for the limiter. ``None``: without a limiter too few raise at once;
            with one, as long as `connect` was told.
        batch_format : "numpy" | "torch" | "tensordict"
        device : str | torch.device, optional
            Of tensors.

        Returns
        -------
        dict
            As `ReplayBuffer.sample`. Of a table that gives each item once, ``redelivered`` says which ones a learner may
            have had before.

        Raises
        ------
        NotEnoughData, ConfigError, Timeout, Closed, Broken, Unsupported
        """
        wanted = formats.checked(batch_format, device)
        batch_size = batch_size_of(batch_size)
        limit = seconds_or_none("timeout_s", timeout_s)
        own_s: float | None = self._timeout_s if limit is None else limit
        own_s = None if own_s is None or own_s > LONGEST_S else own_s
        seen = view_of(view)
        self._check_view(seen)
        line = self._line(batch_size, seen)
        batch = line.sample(self._connection, own_s, self._timeout_s, limit is not None)
        made: Batch = formats.convert(batch, wanted, device)
        return made

    def _check_view(self, view: View | None) -> None:
        if view is not None and view.reward != "reward":
            self._connection.check_version("a view of another reward")

    def _line(self, batch_size: int, view: View | None) -> SampleChannel:
        key = batch_size, view
        self._connection.check()
        with self._lock:
            line: SampleChannel | None = self._lines.get(key)
            if line is not None and not line.closed:
                self._lines.move_to_end(key)
                return line
            with SignalsDeferred():  # a line that no table has is never closed
                made: SampleChannel = self._connection.add(lambda number: SampleChannel(number, self.name, batch_size, view))
                self._lines[key] = made
                self._client._has_read(made)
            if len(self._lines) > _KINDS_OF_SAMPLES:
                _, gone = self._lines.popitem(last=False)
                gone.closed = True
            return made

    @explain_wrong_names
    def source(
        self,
        *,
        view: Transitions | None = None,
        sampler: Sampler | None = None,
        min_size: int = 1,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        prefetch: int | None = None,
        transport: Transport = "auto",
        timeout_s: float | None = None,
    ) -> RemoteSource:
        """For ``AsyncDataLoader(source, batch_size)``, which makes one by itself where it is given the table.

        Parameters
        ----------
        view : Transitions, optional
            By default the table's.
        sampler : Sampler, optional
            One of its own beside the table's, made in the feeder as this one says.
        min_size : int
            Items that each batch waits for.
        seed : int, optional
        rank, world_size : int
            Of this learner, among those that share the table.
        prefetch : int, optional
            Batches on their way or waiting here; a loader that plans further ahead raises it. A feeder sends 64 ahead at most,
            and over a socket not more than its ``in_flight_bytes``. By default 4 to 32, depending on their size, and 8 at
            most where they have weights. With 0 a batch is drawn when `plan` waits for it, with all the
            priorities that were updated until then.
        transport : "auto" | "shm" | "tcp"
            How batches come from a feeder on this machine: written by it into memory of this process, or through its
            sockets (ipc too). "auto" takes memory where the feeder does, and logs why if that fails; "shm" is an error there.
        timeout_s : float, optional
            After which a batch that cannot be drawn is a Timeout; ``None``: a source waits as long as its loader does.

        Raises
        ------
        ConfigError, Unsupported
        """
        self._connection.check()
        if transport not in ("auto", "shm", "tcp"):
            raise ConfigError(f"transport={transport!r}: 'auto', 'shm' or 'tcp'")
        if prefetch is not None and (isinstance(prefetch, bool) or prefetch != 0):
            prefetch = positive("prefetch", prefetch)
        least = positive("min_size", min_size)
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank={rank} of world_size={world_size}: ranks count from 0")
        seen, own = view_of(view), None if sampler is None else plain_of(sampler)
        self._check_view(seen)
        if least > 1:
            self._connection.check_version("min_size")
        if own is not None:
            self._connection.check_version("a sampler of the source's own")
        number = None if seed is None else whole_seed(seed)
        limit = seconds_or_none("timeout_s", timeout_s)
        limit = None if limit is None or limit > LONGEST_S else max(limit, TRY_ONCE_S)

        def wanted(batch_size: int, ahead: int) -> OpenReader:
            return OpenReader(
                table=self.name, batch_size=batch_size, view=seen, rank=rank, world_size=world_size, seed=number,
                timeout_s=limit, prefetch=ahead, together=MOST_AHEAD, min_size=least, sampler=own,
            )  # fmt: skip

        source = RemoteSource(self._connection, wanted, prefetch, transport, self._timeout_s, self._client)
        source._on_open, source._update = self._client._has_read, self.update
        self._client._keep(source)
        return source

    # -- by id -------------------------------------------------------------------------------------

    @explain_wrong_names
    def get(self, index: Any, *, view: Transitions | None = None) -> Batch:
        """Rows by id; ids that are gone are left out: ``index`` says which ones are there.

        Raises
        ------
        ConfigError, Timeout, Closed, Broken, Unsupported
        """
        ids, seen, server = ids_of(index), view_of(view), self._connection.servers
        ids = remote_ids(ids[local_ids(ids, server)], server)
        most = self._rows_of_a_message() if len(ids) > 1 else 1
        parts: list[list[npt.NDArray[Any]]] = []
        schema: Schema | None = None
        for at in range(0, max(1, len(ids)), most):
            some = np.ascontiguousarray(ids[at : at + most]) if len(ids) else _GONE
            body = Get(table=self.name, count=len(some), view=seen)
            reply = self._call(body, None, Plane.PULL, some)
            assert isinstance(reply.body, Got)
            schema = schema_of(reply.body.schema)
            parts.append(_columns(reply, schema))
        assert schema is not None
        columns = parts[0]
        if len(parts) > 1:
            columns = [np.concatenate(one) for one in zip(*parts, strict=True)]
        return BatchStructure(schema).batch(columns, server)

    def _rows_of_a_message(self) -> int:
        """That surely fit into an answer, whatever the view."""
        schema = self.schema
        if schema is None:
            return _IDS
        row = sum(one.nbytes * one.stack * (2 if one.next else 1) + 64 for one in schema.fields)
        return max(1, min(_IDS, self._connection.limits.message_bytes // (row + 64)))

    @explain_wrong_names
    def update_priorities(self, index: Any, priority: Any, *, timeout_s: float | None = None) -> Applied:
        """New priorities by id, as `ReplayBuffer.update_priorities`.

        Raises
        ------
        ConfigError, Unsupported, Timeout, Closed, Broken
        """
        limit = seconds_or_none("timeout_s", timeout_s)
        ids, values = ids_of(index), floats_of(priority, "priority")
        if len(ids) != len(values):
            raise ConfigError(f"{len(ids)} ids and {len(values)} priorities: one for each")
        if self._connection.version < 3:
            deadline = Deadline(self._timeout_s if limit is None else limit)
            return update(self._connection, self._updates(), ids, values, deadline)

        def body(count: int) -> Prioritize:
            return Prioritize(table=self.name, count=count)

        try:
            priority_rules.check_sent(values)
        except ConfigError:
            self._check_priorities(timeout_s)
            raise
        if not len(ids):
            self._check_priorities(timeout_s)
        return self._by_id(body, ids, [values], timeout_s)

    def _check_priorities(self, timeout_s: float | None) -> None:
        """Raise Unsupported where the table has none to update, in its words: it is asked to update one that is gone."""
        data = b"".join((_GONE.tobytes(), np.zeros(1).tobytes()))
        self._call(Prioritize(table=self.name, count=1), timeout_s, Plane.PULL, data)

    def _updates(self) -> ReaderChannel:
        """A reader that never asks for a batch: what PRIORITIES of version 2 go through."""
        with self._lock, SignalsDeferred():
            if self._updating is None:
                wanted = OpenReader(table=self.name, batch_size=1)
                self._updating = self._connection.add(lambda number: ReaderChannel(number, wanted, 0))
            return self._updating

    def update(self, index: Any, /, *, timeout_s: float | None = None, **fields: Any) -> Applied:
        """New values of some fields, by id, as `ReplayBuffer.update`.

        Raises
        ------
        SchemaError, ConfigError, Unsupported, Timeout, Closed, Broken
        """
        seconds_or_none("timeout_s", timeout_s)
        ids, schema = ids_of(index), self.schema
        if schema is None:
            return Applied(0, len(ids))
        columns = _columns_for(schema, fields, len(ids))

        def body(count: int) -> Update:
            shown = {name: column[:count] for name, column in columns.items()}
            return Update(table=self.name, count=count, specs=specs_of(shown))

        return self._by_id(body, ids, list(columns.values()), timeout_s)

    @explain_wrong_names
    def delete(self, index: Any, *, timeout_s: float | None = None) -> Applied:
        """Take items out, by id, as `ReplayBuffer.delete`.

        Raises
        ------
        ConfigError, Timeout, Closed, Broken, Unsupported
        """
        seconds_or_none("timeout_s", timeout_s)
        return self._by_id(lambda count: Delete(table=self.name, count=count), ids_of(index), [], timeout_s)

    def _by_id(
        self, body: Any, ids: npt.NDArray[np.int64], more: list[npt.NDArray[Any]], timeout_s: float | None
    ) -> Applied:  # fmt: skip
        """What became of them. Rows of a server that is no more are stale: another one has others of these ids."""
        limit = seconds_or_none("timeout_s", timeout_s)
        deadline = Deadline(self._timeout_s if limit is None else limit)
        server, total = self._connection.servers, len(ids)
        here = local_ids(ids, server)
        if not here.all():
            ids, more = ids[here], [one[here] for one in more]
        ids, applied = remote_ids(ids, server), 0
        row = 8 + sum(one.nbytes // max(1, len(one)) for one in more)
        most = max(1, min(_IDS, self._connection.limits.message_bytes // (row + 1) - 1024))
        for at in range(0, len(ids), most):
            some = [np.ascontiguousarray(one[at : at + most]) for one in (ids, *more)]
            data = b"".join(one.tobytes() for one in some)
            made = body(len(some[0]))
            try:
                reply = self._call(made, deadline, Plane.PULL, data, server).body
            except ServerReplaced:
                break
            assert isinstance(reply, WireApplied)
            applied += reply.applied
        return Applied(applied, total - applied)

    # -- the whole table ---------------------------------------------------------------------------

    def clear(self, *, timeout_s: float | None = None) -> None:
        """Take all steps out, as `ReplayBuffer.clear`. Raises Timeout, Closed, Broken, Unsupported."""
        self._call(Clear(table=self.name), timeout_s)

    def save(self, path: str | os.PathLike[str], *, timeout_s: float | None = None) -> SaveReport:
        """Save the table in the feeder, while others go on adding and sampling.

        Parameters
        ----------
        path : str or path
            Within the folder that the feeder's configuration has for checkpoints of this table. Of an embedded feeder any
            folder, as for a `ReplayBuffer`.

        Raises
        ------
        Unsupported
            The feeder has no folder for checkpoints.
        ConfigError
            The path leaves it.
        OSError, Timeout, Closed, Broken
        """
        said = self._call(Save(table=self.name, path=self._folder(path)), timeout_s).body
        assert isinstance(said, Saved)
        return SaveReport(
            kind=said.kind, number=said.number, nbytes=said.nbytes, duration_s=said.duration_s, pause_s=said.pause_s,
            rows=said.rows,
        )  # fmt: skip

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        number: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Put what was saved in place of what the table holds. Writers and readers of it go on.

        Parameters
        ----------
        path : str or path
            As for `save`.
        number : int, optional
            Of another save in that folder than the newest.

        Raises
        ------
        Unsupported, ConfigError, CorruptCheckpoint, OutOfMemory, OSError, Timeout, Closed, Broken
        """
        if number is not None:
            number = min(positive("number", number), _NO_SAVE)
        self._call(Load(table=self.name, path=self._folder(path), number=number), timeout_s)
        self._about = None

    def _folder(self, path: str | os.PathLike[str]) -> str:
        """As it travels: a feeder of this client's own is told of folders as this process names them."""
        text = os.fspath(path)
        if not isinstance(text, str) or len(text) > 1024:
            raise ConfigError(f"path={path!r}: a path in the feeder is text of at most 1024 characters")
        return os.path.abspath(text) if self._client.owns_feeder else text

    # -- asking ------------------------------------------------------------------------------------

    def _call(
        self,
        body: Control,
        timeout_s: float | Deadline | None,
        plane: Plane = Plane.CONTROL,
        data: Any = None,
        server: int | None = None,
    ) -> Message:
        """The answer. ``server``: of which one the rows are; raises Elsewhere where there is another by now."""
        connection, deadline = self._connection, timeout_s
        if not isinstance(deadline, Deadline):
            limit = seconds_or_none("timeout_s", timeout_s)
            deadline = Deadline(self._timeout_s if limit is None else limit)

        def ready() -> bool:
            if server is not None and connection.servers != server:
                raise ServerReplaced("these rows died with their server")
            return connection.is_open

        where = f"table {self.name!r}"
        return connection.call(body, deadline, plane=plane, data=data, ready=ready, where=where)


def _columns(reply: Message, schema: Schema) -> list[npt.NDArray[Any]]:
    body = reply.body
    assert isinstance(body, Got)
    if not body.rows:
        return [np.empty((0, *one.shape), one.dtype) for one in schema.fields]
    form = BatchForm.of(schema, body.rows)
    (lying,) = form.blocks(WireBatch(body.rows, [reply.data]))
    return [one.copy() for one in form.arrays(lying.block)]


def _columns_for(schema: Schema, fields: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Values of fields as the table stores them, by dotted name. Raises SchemaError, as `ReplayBuffer.update`."""
    step_packer = StepPacker(StorageLayout.of(schema, 1), 0)
    found = by_id.columns_of(step_packer, fields, rows)
    known = schema.fields
    return {known[i].name: np.ascontiguousarray(one, known[i].dtype) for i, one in found.items()}  # dtypes that travel


def _waiting_of(text: str, waited_s: float) -> Waiting:
    """What a feeder says in words: ``1 call to sample 256: why``."""
    who, _, rest = text.partition(" to ")
    what, _, reason = rest.partition(": ")
    return Waiting(what="insert" if what.startswith("insert") else "sample", who=who, reason=reason, waited_s=waited_s)
