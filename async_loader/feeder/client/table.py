"""A table of a feeder, as a user holds it: it checks arguments, `TableCalls` sends them."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from async_loader import batch_format as formats
from async_loader import tree
from async_loader.errors import CannotSend, ConfigError
from async_loader.feeder.client.arguments import (
    batch_size_of,
    goals_of,
    reader_wanted,
    save_number,
    save_path,
    view_of,
)
from async_loader.feeder.client.asked_by_id import AskedById
from async_loader.feeder.client.calls import AnswerDeadline
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.owner import Client
from async_loader.feeder.client.reader_batches import Transport
from async_loader.feeder.client.sample_readers import SampleReaders
from async_loader.feeder.client.source import RemoteSource
from async_loader.feeder.client.table_calls import TableCalls, stats_of
from async_loader.feeder.client.writer import RemoteWriter, VectorTarget
from async_loader.feeder.client.writer_rows import WriterOptions
from async_loader.feeder.plain_values import limiter_from
from async_loader.feeder.wire import Clear, Delete, Done, Load, Save, Saved, schema_of
from async_loader.lifecycle import LONGEST_S, Deadline, seconds_or_none
from async_loader.names import explain_wrong_attributes, explain_wrong_names
from async_loader.replay.arguments import floats_of, ids_of, one_axis, positive
from async_loader.replay.checkpoint.writing import SaveReport
from async_loader.replay.ragged import Ragged, checked_format, ragged
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.samplers import Sampler
from async_loader.replay.stats import TableStats
from async_loader.replay.vector_writer import VectorWriter as StreamsWriter
from async_loader.replay.views import View
from async_loader.schema import Schema, SchemaLike
from async_loader.source import Applied
from async_loader.table import AutoReset, Batch, BatchFormat, VectorEnv, VectorWriter

if TYPE_CHECKING:
    import torch


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
    readers : SampleReaders
        Of the client and this table.

    Attributes
    ----------
    name : str
    """

    def __init__(
        self, client: Client, connection: Connection, name: str, timeout_s: float,
        readers: SampleReaders,
    ) -> None:  # fmt: skip
        self._client, self._connection, self.name = client, connection, name
        self._timeout_s, self._calls = timeout_s, TableCalls(connection, name, timeout_s)
        self._readers = readers

    # -- what it is --------------------------------------------------------------------------------

    @property
    def capacity(self) -> int | None:
        """Steps that are kept; ``None`` while that depends on a schema that is unknown."""
        return self._calls.known().capacity

    @property
    def schema(self) -> Schema | None:
        """Schema of a step; ``None`` while it is unknown."""
        spec = self._calls.known().schema
        return None if spec is None else schema_of(spec)

    @property
    def nbytes(self) -> int | None:
        """Shared memory of the full table, in the feeder; ``None`` while the schema is unknown."""
        return self._calls.known().nbytes

    @property
    def limiter(self) -> RateLimiter | None:
        """How far sampling and inserting may run ahead of each other."""
        return limiter_from(self._calls.about().limiter)

    def __len__(self) -> int:
        """Return the number of items that can be drawn."""
        return int(self._calls.about().stats["size"])

    def stats(self) -> TableStats:
        """Return the table's counts at this moment. Raises Timeout, Closed, Broken, Unsupported."""
        return stats_of(self._calls.about())

    def __repr__(self) -> str:
        return f"<TableClient {self._calls.describe()}>"

    def __reduce__(self) -> Any:
        address = self._connection.address
        text = f"say connect({address!r}).table({self.name!r}) there"
        raise CannotSend(f"a client's table stays in its process: {text}")

    # -- steps in ----------------------------------------------------------------------------------

    def writer(
        self,
        stream: Hashable | None = None,
        *,
        schema: SchemaLike | None = None,
        batch_rows: int = WriterOptions.batch_rows,
        linger_ms: float = WriterOptions.linger_ms,
        buffer_bytes: int = WriterOptions.buffer_bytes,
        overflow: Literal["block", "drop_oldest"] = "block",
    ) -> RemoteWriter:
        """Return a new writer.

        It is opened in the background; its first call that waits raises the errors of that.

        Parameters
        ----------
        stream : hashable, optional
            Of steps that name none; by default a new one.
        schema : Schema, or what `Schema.of` takes, optional
            For a table that has none yet, rather than the schema of the first step.
        batch_rows : int
            Rows of a message that is sent at once.
        linger_ms : float
            After which a message with fewer rows is sent, counted from its first row; to a queue
            it is sent at once, unless another is under way.
        buffer_bytes : int
            Bytes of rows that are kept until they are acknowledged. For a queue a writer keeps no
            more rows than the queue takes, and one message.
        overflow : "block" | "drop_oldest"
            When there are more: let `append` wait, or drop the oldest message that was never sent.

        Raises
        ------
        ConfigError, SchemaError, Closed, Broken
        """
        options = WriterOptions(
            batch_rows=batch_rows, linger_ms=linger_ms, buffer_bytes=buffer_bytes,
            overflow=overflow, message_bytes=self._connection.limits.message_bytes,
        )  # fmt: skip
        return self._client._open_writer(RemoteWriter, self.name, stream, schema, options)

    @explain_wrong_names
    def vector_writer(
        self,
        envs: int | VectorEnv,
        *,
        autoreset: AutoReset | None = None,
        streams: Sequence[Hashable] | None = None,
        schema: SchemaLike | None = None,
    ) -> VectorWriter:
        """Return a writer for the steps of a vector of environments.

        See `ReplayBuffer.vector_writer`.

        Parameters
        ----------
        envs : int | gymnasium.vector.VectorEnv
        autoreset : "next_step" | "same_step" | "disabled" | AutoresetMode, optional
            As gymnasium's ``vector.AutoresetMode``; by default what the environments say. With a
            number of environments it is needed.
        streams : sequence of hashable, optional
            Names of the environments' streams; new ones by default.
        schema : Schema, or what `Schema.of` takes, optional
            For a table that has none yet, rather than the schema of the first steps.
        """
        options = WriterOptions(message_bytes=self._connection.limits.message_bytes)
        writer = self._client._open_writer(VectorTarget, self.name, None, schema, options)
        try:
            return StreamsWriter(writer, envs, autoreset, streams)
        except BaseException:
            writer.close()
            raise

    # -- batches out -------------------------------------------------------------------------------

    def sample(
        self,
        batch_size: int,
        *,
        view: View | None = None,
        timeout_s: float | None = None,
        batch_format: BatchFormat = "numpy",
        device: str | torch.device | None = None,
    ) -> Batch:
        """Draw ``batch_size`` items with the table's sampler, now.

        Parameters
        ----------
        view : Transitions | Sequences | Hindsight, optional
            By default the table's. The functions of `Hindsight` are called here.
        timeout_s : float, optional
            How long to wait for enough items, and for the limiter. ``None``: without a limiter too
            few items raise at once; with one, the ``timeout_s`` of `connect`.
        batch_format : "numpy" | "torch" | "tensordict"
        device : str | torch.device, optional
            Of tensors.

        Returns
        -------
        dict
            As `ReplayBuffer.sample`. Of a table that gives each item once, ``redelivered`` says
            which items a learner may have had before.

        Raises
        ------
        NotEnoughData, ConfigError, Timeout, Closed, Broken, Unsupported
        """
        wanted, size = checked_format(batch_format, device, view), batch_size_of(batch_size)
        limit = seconds_or_none("timeout_s", timeout_s)
        own_s = self._timeout_s if limit is None else limit
        wait_s = min(own_s, LONGEST_S)
        deadline = AnswerDeadline(
            self._connection, None if own_s > LONGEST_S else own_s, self._timeout_s
        )
        kind = size, view_of(view)
        source = self._readers.take(kind, lambda: self._source_of_calls(view))
        usable = False
        try:
            ready = source.call(size, -wait_s if limit is None else wait_s, deadline)
            made: Batch = formats.convert(ragged(tree.Fields(ready.batch), view), wanted, device)
            if ready.lease is not None:
                source.settle(ready.lease)
            usable = True
        except Exception:
            usable = source.in_step
            raise
        finally:
            self._readers.give_back(kind, source, usable)
        return made

    def _source_of_calls(self, view: View | None) -> RemoteSource:
        source = self._opened_source(view, None, 1, None, 0, 1, None, 0, "auto", None)
        source._owner = source._update = source._prioritize = None  # it is kept by the client
        return source

    @explain_wrong_names
    def source(
        self,
        *,
        view: View | None = None,
        sampler: Sampler | None = None,
        min_size: int = 1,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        max_lag: int | None = None,
        prefetch: int | None = None,
        transport: Transport = "auto",
        timeout_s: float | None = None,
    ) -> RemoteSource:
        """Return a source for ``AsyncDataLoader(source, batch_size)``.

        The loader makes one itself when it is given the table.

        Parameters
        ----------
        view : Transitions | Sequences | Hindsight, optional
            By default the table's. The functions of `Hindsight` are called here.
        sampler : Sampler, optional
            A sampler of the source's own, which the feeder makes from these settings.
        min_size : int
            Items that each batch waits for.
        seed : int, optional
        rank, world_size : int
        max_lag : int, optional
            As `ReplayBuffer.source`; the newest version is the one that was published to the
            feeder (of ``policy``, for the field ``policy_version``), or else the newest stored.
        prefetch : int, optional
            Batches on their way or waiting here; those of a queue hold their places in it. 64 at
            most, and over a socket no more than the feeder's ``in_flight_bytes``. By default 4 to
            32 by size, at most 8 with weights, and as many as a loader plans. With 0 a batch is
            drawn when `plan` waits for it.
        transport : "auto" | "shm" | "tcp"
            How batches come from a feeder on this machine: written into memory of this process, or
            through its sockets (ipc too). "auto" uses memory, or logs why not; "shm" raises then.
        timeout_s : float, optional
            For a batch, after which Timeout is raised; ``None``: as long as the loader waits.

        Raises
        ------
        ConfigError, Unsupported
        """
        return self._opened_source(
            view, sampler, min_size, seed, rank, world_size, max_lag, prefetch, transport, timeout_s
        )

    def _opened_source(
        self,
        view: View | None,
        sampler: Sampler | None,
        min_size: int,
        seed: int | None,
        rank: int,
        world_size: int,
        max_lag: int | None,
        prefetch: int | None,
        transport: Transport,
        timeout_s: float | None,
        masses: bool = False,
    ) -> RemoteSource:
        """See `source`. ``masses``: for a source of several feeders, which weighs by itself."""
        self._connection.check()
        if transport not in ("auto", "shm", "tcp"):
            raise ConfigError(f"transport={transport!r}: 'auto', 'shm' or 'tcp'")
        if prefetch is not None and (isinstance(prefetch, bool) or prefetch != 0):
            prefetch = positive("prefetch", prefetch)
        wanted = reader_wanted(
            self.name, view=view, sampler=sampler, min_size=min_size, seed=seed,
            rank=rank, world_size=world_size, max_lag=max_lag, timeout_s=timeout_s, masses=masses,
        )  # fmt: skip
        source = RemoteSource(
            self._connection, wanted, prefetch, transport, self._timeout_s, self._client,
            goals_of(view),
        )  # fmt: skip
        source._on_open, source._update = self._client._has_read, self.update
        source._prioritize = self._prioritize
        source.finishes = Ragged.of(view)
        return source

    # -- by id -------------------------------------------------------------------------------------

    @explain_wrong_names
    def get(self, index: Any, *, view: View | None = None) -> Batch:
        """Return rows by id, without those that are gone: ``index`` says which ones there are.

        Raises
        ------
        ConfigError, Timeout, Closed, Broken, Unsupported
        """
        return self._get(index, view, None)

    def _get(self, index: Any, view: View | None, timeout_s: float | Deadline | None) -> Batch:
        """As `get`. ``timeout_s``: for each message."""
        ids, wanted = ids_of(index), view_of(view)
        spec = self._calls.known(timeout_s).schema if len(ids) > 1 else None
        schema = None if spec is None else schema_of(spec)
        return ragged(self._calls.get(ids, wanted, schema, goals_of(view), timeout_s), view)

    @explain_wrong_names
    def update_priorities(
        self, index: Any, priority: Any, *, timeout_s: float | None = None
    ) -> Applied:
        """Set new priorities by id, as `ReplayBuffer.update_priorities`.

        Raises
        ------
        ConfigError, Unsupported, Timeout, Closed, Broken
        """
        return self._prioritize(index, priority, self._calls.deadline(timeout_s))

    def _prioritize(self, index: Any, priority: Any, deadline: Deadline) -> Applied:
        return self._ask_priorities(index, priority, deadline).answer(deadline)

    def _ask_priorities(self, index: Any, priority: Any, deadline: Deadline) -> AskedById:
        """As `update_priorities`, without waiting for the answer."""
        ids = ids_of(index)
        values = floats_of(self._calls.per_item(priority, len(ids), deadline), "priority")
        if len(ids) != len(values):
            raise ConfigError(f"{len(ids)} ids and {len(values)} priorities: one for each")
        return self._calls.ask_priorities(ids, values, deadline)

    def update(self, index: Any, /, *, timeout_s: float | None = None, **fields: Any) -> Applied:
        """Set new values of some fields, by id, as `ReplayBuffer.update`.

        Raises
        ------
        SchemaError, ConfigError, Unsupported, Timeout, Closed, Broken
        """
        deadline = self._calls.deadline(timeout_s)
        return self._ask_update(index, self.schema, fields).answer(deadline)

    def _ask_update(
        self, index: Any, schema: Schema | None, fields: Mapping[str, Any]
    ) -> AskedById:
        """As `update`, without waiting for the answer. ``schema``: the table's."""
        ids, values = one_axis(index, fields)
        return self._calls.ask_update(ids, schema, values)

    @explain_wrong_names
    def delete(self, index: Any, *, timeout_s: float | None = None) -> Applied:
        """Remove items by id, as `ReplayBuffer.delete`.

        Raises
        ------
        ConfigError, Timeout, Closed, Broken, Unsupported
        """
        deadline = self._calls.deadline(timeout_s)
        return self._ask_delete(index).answer(deadline)

    def _ask_delete(self, index: Any) -> AskedById:
        """As `delete`, without waiting for the answer."""
        return self._calls.ask_by_id(
            lambda count: Delete(table=self.name, count=count), ids_of(index), []
        )

    # -- the whole table ---------------------------------------------------------------------------

    def clear(self, *, timeout_s: float | None = None) -> None:
        """Remove all steps, as `ReplayBuffer.clear`.

        Raises Timeout, Closed, Broken, Unsupported.
        """
        self._calls.ask(Clear(table=self.name), Done, timeout_s)

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
        said = self._calls.ask(Save(table=self.name, path=there), Saved, timeout_s)
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
        there, which = save_path(path, self._client.owns_feeder), save_number(number)
        self._calls.ask(Load(table=self.name, path=there, number=which), Done, timeout_s)
        self._calls.last_about = None
