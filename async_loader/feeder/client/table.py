"""A table of a feeder, as a user holds it: each call is a message and its answer."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Hashable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.errors import AsyncLoaderError, CannotSend, ConfigError, SchemaError
from async_loader.feeder.client.arguments import (
    batch_size_of,
    save_path,
    without_codecs,
)
from async_loader.feeder.client.batch_structure import (
    BatchStructure,
    local_ids,
    remote_ids,
    structure_of,
)
from async_loader.feeder.client.calls import AnswerDeadline, Call
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.reader_batches import Transport
from async_loader.feeder.client.remote_table import IdleSources, RemoteTable, Timeout
from async_loader.feeder.client.source import RemoteSource
from async_loader.feeder.client.writer import RemoteWriter
from async_loader.feeder.client.writer_channel import WriterChannel
from async_loader.feeder.client.writer_rows import WriterOptions
from async_loader.feeder.plain_values import plain_view
from async_loader.feeder.wire import (
    About,
    AboutReply,
    BatchForm,
    ById,
    Clear,
    Delete,
    Get,
    Load,
    Message,
    OpenReader,
    Plane,
    Prioritize,
    Save,
    Update,
    schema_of,
    specs_of,
)
from async_loader.feeder.wire import Batch as WireBatch
from async_loader.lifecycle import LONGEST_S, seconds_or_none
from async_loader.name_hints import explain_wrong_attributes, explain_wrong_names
from async_loader.replay.arguments import (
    array_of,
    ids_of,
    named,
    one_axis,
    positive,
    reals_of,
    storable,
)
from async_loader.replay.checkpoint.writing import SaveReport
from async_loader.replay.hindsight_view import Hindsight
from async_loader.replay.stats import TableStats
from async_loader.replay.stream_names import fresh_stream, stream_name
from async_loader.replay.table.waiters import Waiting
from async_loader.replay.table_methods import Change
from async_loader.replay.views import Ragged, View, checked_view, ragged
from async_loader.schema import Schema, SchemaLike
from async_loader.source import Applied
from async_loader.table import Batch

W = TypeVar("W", bound=RemoteWriter)
_IDS = 1 << 20
"""Ids of one call at most."""
_BESIDE = 64 << 10
"""Bytes of a message beside its data."""
_CHANGES: dict[Change, type[ById]] = {
    "update_priorities": Prioritize,
    "update": Update,
    "delete": Delete,
}


class Client(Protocol):
    """What a table asks of its client; `client.Client` has it."""

    @property
    def owns_feeder(self) -> bool: ...


class ServerReplaced(AsyncLoaderError):
    """The rows were those of an earlier server."""


@explain_wrong_attributes
class TableClient(RemoteTable[RemoteSource]):
    """One table of a feeder: `async_loader.table.Table` over a connection. Made by `Client.table`.

    Threads: any. A ``timeout_s`` of ``None`` is that of `connect`. Calls raise Timeout, Closed,
    Broken and Unsupported beside what they raise for a table of this process.

    Parameters
    ----------
    client : Client
    connection : Connection
    name : str
    timeout_s : float
    readers : IdleSources
        Of the client and this table.

    Attributes
    ----------
    name : str
    """

    def __init__(
        self, client: Client, connection: Connection, name: str, timeout_s: float,
        readers: IdleSources[RemoteSource],
    ) -> None:  # fmt: skip
        self._client, self._connection, self.name = client, connection, name
        self._timeout_s, self._readers = timeout_s, readers

    def _place(self) -> TableClient:
        return self

    def _open_writer(
        self, kind: type[W], stream: Hashable | None, schema: SchemaLike | None, **options: Any
    ) -> W:
        """Return a new writer. ``options``: of `WriterOptions`."""
        connection = self._connection
        made = WriterOptions(message_bytes=connection.limits.message_bytes, **options)
        known = None if schema is None else without_codecs(storable(Schema.of(schema)))
        name = fresh_stream() if stream is None else stream_name(stream)
        channel: WriterChannel = connection.add(
            lambda number: WriterChannel(connection, number, self.name, name, known, made)
        )
        return kind(connection, channel, self._timeout_s, self._client)

    def _ask(
        self,
        body: Any,
        timeout_s: Timeout = None,
        data: bytes | None = None,
        server: int | None = None,
    ) -> Message:
        """Return the answer. ``server``: raise ServerReplaced unless it is the present one."""
        connection = self._connection
        most = connection.limits.message_bytes - _BESIDE
        if data is not None and (len(data) > most or body.count > _IDS):
            raise ConfigError(
                f"{body.TYPE.name.lower()} of {body.count:,} ids takes {len(data):,} bytes, a call "
                f"takes {_IDS:,} ids and {most:,} bytes: give fewer at a time"
            )

        def ready(_: Call) -> bool:
            if server is not None and connection.servers != server:
                raise ServerReplaced("these rows are of an earlier server")
            return connection.is_open

        plane = Plane.CONTROL if data is None else Plane.PULL
        call = Call(body, plane, data=data, ready=ready)
        return connection.call(call, self._deadline(timeout_s))

    # -- what it is --------------------------------------------------------------------------------

    def _about(self, timeout_s: Timeout = None) -> AboutReply:
        reply = self._ask(About(table=self.name), timeout_s).body
        assert isinstance(reply, AboutReply)
        return reply

    def stats(self) -> TableStats:
        """Return the table's counts at this moment."""
        return stats_of(self._about())

    def __repr__(self) -> str:
        return f"<TableClient {self.name!r} of {self._connection.address}>"

    def __reduce__(self) -> Any:
        address = self._connection.address
        text = f"say connect({address!r}).table({self.name!r}) there"
        raise CannotSend(f"a client's table stays in its process: {text}")

    # -- batches out -------------------------------------------------------------------------------

    def _sample(self, batch_size: int, view: View | None, timeout_s: float | None) -> Batch:
        size, limit = batch_size_of(batch_size), seconds_or_none("timeout_s", timeout_s)
        own_s = self._timeout_s if limit is None else limit
        wait_s = min(own_s, LONGEST_S)
        deadline = AnswerDeadline(
            self._connection, None if own_s > LONGEST_S else own_s, self._timeout_s
        )
        kind = size, checked_view(view)

        def make() -> RemoteSource:
            made = self.source(view=view, prefetch=0)
            made._table = None  # it is kept by the client
            return made

        source = self._readers.take(kind, make)
        try:
            ready = source.call(size, -wait_s if limit is None else wait_s, deadline)
            batch: Batch = ragged(tree.Fields(ready.batch), view)
            if ready.lease is not None:
                source.settle(ready.lease)
        finally:
            if source.in_step:
                self._readers.give_back(kind, source)
            else:
                source.drop()
        return batch

    def _source(
        self, wanted: OpenReader, view: View | None, prefetch: int | None, transport: Transport
    ) -> RemoteSource:
        self._connection.check()
        if transport not in ("auto", "shm", "tcp"):
            raise ConfigError(f"transport={transport!r}: 'auto', 'shm' or 'tcp'")
        if prefetch is not None and (isinstance(prefetch, bool) or prefetch != 0):
            prefetch = positive("prefetch", prefetch)
        source = RemoteSource(
            self._connection, wanted, prefetch, transport, self._timeout_s, self, goals_of(view)
        )
        source.finishes = Ragged.of(view)
        return source

    # -- by id -------------------------------------------------------------------------------------

    @explain_wrong_names
    def get(self, index: Any, *, view: View | None = None) -> Batch:
        """Return rows by id, without those that are gone: ``index`` says which ones there are."""
        return ragged(self._get(index, view, None)[1], view)

    def _get(
        self, index: Any, view: View | None, timeout_s: Timeout
    ) -> tuple[BatchStructure, dict[str, Any]]:
        """As `get`, with padding."""
        ids, wanted, server = ids_of(index), plain_view(view), self._connection.servers
        ids = remote_ids(ids[local_ids(ids, server)], server)
        body = Get(table=self.name, count=len(ids), view=wanted)
        try:
            reply: Any = self._ask(body, timeout_s, ids.tobytes(), server)
        except ServerReplaced:  # it has none of them
            return self._get(ids[:0], view, timeout_s)
        schema, eta, rows = schema_of(reply.body.schema), reply.body.eta, reply.body.rows
        columns = [np.empty((0, *one.shape), one.dtype) for one in schema.fields]
        if rows:
            form = BatchForm.of(schema, rows)
            (found,) = form.blocks(WireBatch(rows, [reply.data]))
            columns = form.layout.views(found.block.copy())
        if len(schema.fields) == 1:  # the index alone: the table has no schema yet
            structure = structure_of(schema)
        else:
            structure = structure_of(schema, eta is not None, goals_of(view))
        return structure, structure.batch(columns, server)

    def _apply(
        self, change: Change, index: Any, values: Mapping[str, Any], timeout_s: Timeout
    ) -> Applied:
        """See `TableMethods`.

        Ids that an earlier server gave count as stale: the present one has other rows by these ids.
        """
        deadline, server = self._deadline(timeout_s), self._connection.servers
        if change == "update":
            ids, values = one_axis(index, values)
        else:
            ids = ids_of(index)
        columns: dict[str, npt.NDArray[Any]] = {}
        for name, value in named(values):
            array = array_of(value, name) if change == "update" else reals_of(value, name)
            column = np.ascontiguousarray(array)
            columns[name] = column if len(column) == len(ids) else column.reshape(-1)
            if len(columns[name]) != len(ids):
                rows, number = len(columns[name]), len(ids)
                if change == "update":
                    text = f"field {name!r} has {rows} rows for {number} ids: one for each"
                    raise SchemaError(text)
                raise ConfigError(f"{number} ids and {rows} priorities: one for each")
        here = local_ids(ids, server)
        arrays = [remote_ids(ids[here], server), *(one[here] for one in columns.values())]
        specs = specs_of(dict(zip(columns, arrays[1:], strict=True)))
        body = _CHANGES[change](table=self.name, count=len(arrays[0]), specs=specs)
        applied = 0
        if len(arrays[0]) or not len(ids):  # without ids too: values are checked there
            with contextlib.suppress(ServerReplaced):  # these are rows of an earlier server
                data = b"".join(one.tobytes() for one in arrays)
                reply: Any = self._ask(body, deadline, data, server).body
                applied = reply.applied
        return Applied(applied, len(ids) - applied)

    # -- the whole table ---------------------------------------------------------------------------

    def clear(self, *, timeout_s: float | None = None) -> None:
        """Remove all steps, as `ReplayBuffer.clear`."""
        self._ask(Clear(table=self.name), timeout_s)

    def save(self, path: str | os.PathLike[str], *, timeout_s: float | None = None) -> SaveReport:
        """Save the table in the feeder, while others go on adding and sampling.

        Parameters
        ----------
        path : str or path
            Within the folder that the feeder's configuration has for checkpoints of this table. Of
            an embedded feeder any folder, as for a `ReplayBuffer`.

        Raises
        ------
        Unsupported
            The feeder has no folder for checkpoints.
        ConfigError
            The path leaves that folder.
        OSError, Timeout, Closed, Broken
        """
        there = save_path(path, self._client.owns_feeder)
        said = self._ask(Save(table=self.name, path=there), timeout_s).body
        names = SaveReport.__dataclass_fields__
        return SaveReport(**{name: getattr(said, name) for name in names})

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        number: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Replace the table's rows by a save. Its writers and readers go on.

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
        there = save_path(path, self._client.owns_feeder)
        which = None if number is None else positive("number", number)
        self._ask(Load(table=self.name, path=there, number=which), timeout_s)


def goals_of(view: View | None) -> Hindsight | None:
    """Return a view whose functions are called here, if it is one."""
    return view if isinstance(view, Hindsight) else None


def stats_of(said: AboutReply) -> TableStats:
    """Return the counts of a table as its feeder sent them."""
    waiting = []
    for text, waited_s in said.stats["waiting"]:  # as "1 call to sample 256: why"
        who, kind, reason = re.split(r" to (insert|sample)[^:]*: ", text, maxsplit=1)
        waiting.append(Waiting(what=kind, who=who, reason=reason, waited_s=waited_s))
    return TableStats(**{**said.stats, "waiting": tuple(waiting)})
