"""A table of a cluster, as a user holds it: its rows are those of all shards."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from async_loader import batch_format as formats
from async_loader import tree
from async_loader.errors import CannotSend, Closed, ConfigError, Unsupported
from async_loader.feeder.client.arguments import batch_size_of
from async_loader.feeder.client.reader_batches import Transport
from async_loader.feeder.client.source import RemoteSource
from async_loader.feeder.client.table_calls import stats_of
from async_loader.feeder.client.writer import RemoteWriter
from async_loader.feeder.client.writer_rows import WriterOptions
from async_loader.feeder.plain_values import limiter_from
from async_loader.feeder.wire import AboutReply, schema_of
from async_loader.lifecycle import Deadline, Patience, seconds_or_none
from async_loader.names import explain_wrong_attributes, explain_wrong_names
from async_loader.replay.arguments import ids_of, positive, whole_seed
from async_loader.replay.checkpoint.writing import SaveReport
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.samplers import Sampler
from async_loader.replay.views import View
from async_loader.scale.by_id import RowsById
from async_loader.scale.connections import Connections, ShardConnection
from async_loader.scale.fan_out import ask_all
from async_loader.scale.placement import Placement
from async_loader.scale.shard_rows import TOTALS_S
from async_loader.scale.source import ClusterSource, SourceOptions
from async_loader.scale.stats import ClusterTableStats, LostRows, summed
from async_loader.schema import Schema, SchemaLike
from async_loader.source import Applied
from async_loader.sources.mixture_rows import add_source
from async_loader.table import AutoReset, Batch, BatchFormat, VectorEnv, VectorWriter
from async_loader.validation import path_of

if TYPE_CHECKING:
    import torch

_SAMPLERS = 8
"""Sources of `sample` that are kept open, each for one batch size and view."""
_Kind = tuple[int, View | None]


@explain_wrong_attributes
class ClusterTable:
    """One table of a cluster: `async_loader.table.Table` over all shards. Made by
    `ClusterClient.table`.

    All shards have a table of this name with the same settings. Ids have the number of their shard
    in the bits from 56 on. Threads: any. A ``timeout_s`` of ``None`` is that of the client.

    Parameters
    ----------
    connections : Connections
    name : str
    timeout_s : float

    Attributes
    ----------
    name : str
    """

    def __init__(self, connections: Connections, name: str, timeout_s: float) -> None:
        self._connections, self.name, self._timeout_s = connections, name, timeout_s
        self._rows = RowsById(connections, name, timeout_s)
        self._placement = Placement(connections, name)
        self._lock = threading.Lock()
        self._idle: dict[_Kind, ClusterSource] = {}  # of `sample`
        self._sources: weakref.WeakSet[ClusterSource] = weakref.WeakSet()
        self._closed = False

    # -- what it is --------------------------------------------------------------------------------

    @property
    def capacity(self) -> int | None:
        """Steps that all shards keep; ``None`` while that depends on a schema that is unknown."""
        return self.stats().capacity

    @property
    def schema(self) -> Schema | None:
        """Schema of a step, of the first shard that knows it; ``None`` while none does."""
        said = (one.schema for one in self._all().values())
        return next((schema_of(one) for one in said if one is not None), None)

    @property
    def nbytes(self) -> int | None:
        """Shared memory of the full tables; ``None`` while the schema is unknown."""
        return self.stats().nbytes

    @property
    def limiter(self) -> RateLimiter | None:
        """How far sampling and inserting may run ahead of each other, by each shard.

        Each shard limits by itself. Batches take from each in proportion to what it holds, so that
        the ratio holds in the sum.
        """
        return limiter_from(next(iter(self._all().values())).limiter)

    def __len__(self) -> int:
        """Return the number of items that can be drawn, in the shards that answer."""
        return self.stats().size

    def stats(self) -> ClusterTableStats:
        """Return the counts of all shards at this moment, and what was lost with shards.

        Raises Timeout, Closed, Broken, Unsupported: if no shard answers.
        """
        found = {name: stats_of(said) for name, said in self._all().items()}
        silent = [one.name for one in self._connections.all if one.name not in found]
        lost = [
            LostRows(shard=one.name, incarnation=server, rows=rows)
            for one in self._connections.everything()
            for server, rows in sorted(one.client.lost(self.name).items())
        ]
        return summed(found, silent, lost)

    def __repr__(self) -> str:
        return f"<ClusterTable {self.name!r} of {len(self._connections.all)} shards>"

    def __reduce__(self) -> Any:
        raise CannotSend("a client's table stays in its process: connect to the cluster there")

    # -- steps in ----------------------------------------------------------------------------------

    @explain_wrong_names
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
        """Return a new writer, bound to one shard: on this host, or the one with the least load.

        All its streams stay there. When the shard is lost it keeps what is not acknowledged, and
        goes on with the process that takes the shard's place. See `TableClient.writer`.

        Raises
        ------
        ConfigError, Timeout, Closed, Broken
        """
        shard = self._placement.choose(Deadline(self._timeout_s))
        return shard.table(self.name).writer(
            stream,
            schema=schema,
            batch_rows=batch_rows,
            linger_ms=linger_ms,
            buffer_bytes=buffer_bytes,
            overflow=overflow,
        )

    @explain_wrong_names
    def vector_writer(
        self,
        envs: int | VectorEnv,
        *,
        autoreset: AutoReset | None = None,
        streams: Sequence[Hashable] | None = None,
        schema: SchemaLike | None = None,
    ) -> VectorWriter:
        """Return a writer for the steps of a vector of environments, bound to one shard.

        See `ReplayBuffer.vector_writer`.
        """
        shard = self._placement.choose(Deadline(self._timeout_s))
        return shard.table(self.name).vector_writer(
            envs, autoreset=autoreset, streams=streams, schema=schema
        )

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
        """Draw ``batch_size`` items of all shards, now. See `source`, which draws ahead.

        Parameters
        ----------
        timeout_s : float, optional
            How long to wait for enough items. ``None``: an empty table without a limiter raises at
            once.

        Raises
        ------
        NotEnoughData, ConfigError, Timeout, Closed, Broken, Unsupported
        """
        wanted = formats.checked(batch_format, device)
        size, limit = batch_size_of(batch_size), seconds_or_none("timeout_s", timeout_s)
        kind: _Kind = (size, view)
        with self._lock:
            found = self._idle.pop(kind, None)  # no other call uses it
        source = found or self.source(view=view, prefetch=0)
        try:
            batch = self._sampled(source, size, limit)
        finally:
            with self._lock:
                other = self._idle.pop(kind, None)
                self._idle[kind] = source
                if other is None and len(self._idle) > _SAMPLERS:
                    other = self._idle.pop(next(iter(self._idle)))
            if other is not None:
                other.close()
        made: Batch = formats.convert(batch, wanted, device)
        return made

    def _sampled(self, source: ClusterSource, size: int, limit: float | None) -> Batch:
        source.begin_afresh(immediate=limit is None)
        patience = Patience(deadline=Deadline(self._timeout_s if limit is None else limit))
        plan: Any = source.plan(size, patience)
        while plan.lease is not None and not source.hand_out(plan.lease):
            plan = source.plan(size, patience)
        if plan.lease is not None:
            source.settle(plan.lease)
        batch: Batch = plan.batch
        return batch

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
    ) -> ClusterSource:
        """Return a source for ``AsyncDataLoader(source, batch_size)``: batches of all shards.

        The loader makes one itself when it is given the table. See `ClusterSource`, and
        `TableClient.source`.

        Parameters
        ----------
        min_size : int
            Items of all shards together that each batch waits for.
        seed : int, optional
            The same seed, rank and shards whose tables do not change give the same batches.
        rank, world_size : int
            Of data-parallel learners: each draws a stream of its own from all shards. Of a queue
            each item goes to one of them.
        prefetch : int, optional
            Chunks that each shard may draw ahead; a chunk is a batch or less.
        timeout_s : float, optional
            For a batch, after which Timeout is raised; ``None``: as long as the loader waits.

        Raises
        ------
        ConfigError, Unsupported, Timeout
        """
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank={rank} of world_size={world_size}: ranks count from 0")
        about = self._about()
        said = repr(sampler) if sampler is not None else about.sampler
        entropy = whole_seed(seed) if seed is not None else np.random.SeedSequence().entropy
        assert isinstance(entropy, int)
        options = SourceOptions(
            words=(entropy, rank, world_size),
            learners=world_size,
            min_size=positive("min_size", min_size),
            timeout_s=seconds_or_none("timeout_s", timeout_s),
            weighted=said.startswith("Prioritized("),
            queue=said.startswith("Fifo("),
        )

        if prefetch:
            positive("prefetch", prefetch)

        def open_source(shard: ShardConnection, ahead: int, queue: bool) -> RemoteSource:
            own = None if seed is None else _seed_of(seed, shard.number)
            made = shard.table(self.name)._opened_source(
                view, sampler, 1, own, rank, world_size, max_lag, prefetch, transport, None,
                masses=not queue,
            )  # fmt: skip
            made.watch_totals(TOTALS_S, ahead)
            return made

        source = ClusterSource(self._connections, open_source, self._rows, options)
        with self._lock:
            self._check_open()
            self._sources.add(source)
        return source

    def _about(self) -> AboutReply:
        """Return what the first shard says of its table."""
        return next(iter(self._all().values()))

    # -- by id -------------------------------------------------------------------------------------

    @explain_wrong_names
    def get(self, index: Any, *, view: View | None = None) -> Batch:
        """Return rows by id, without those that are gone or whose shard is lost.

        ``index`` of the batch says which ones there are.
        """
        parts = self._rows.get(index, view)
        for _, number, batch in parts:
            names = ("index", "step_index") if "is_first" in batch else ("index",)
            for name in names:
                if name in batch:
                    add_source(batch[name], number)
        if not parts:
            for one in self._connections.reached:
                return one.table(self.name).get(ids_of(index)[:0], view=view)
            raise self._connections.nothing("get")
        order = np.argsort(np.concatenate([one.places for one in parts]), kind="stable")
        structure = tree.structure_of(parts[0].batch)
        columns = zip(*(tree.leaves(one.batch, structure) for one in parts), strict=True)
        merged = [np.concatenate(one)[order] for one in columns]
        made: Batch = tree.rebuild_batch(structure, merged)
        return made

    @explain_wrong_names
    def update_priorities(
        self, index: Any, priority: Any, *, timeout_s: float | None = None
    ) -> Applied:
        """Set new priorities by id, each in its own shard; those of lost shards count as stale.

        Raises
        ------
        ConfigError, Unsupported, Timeout, Closed, Broken
        """
        return self._rows.update_priorities(index, priority, timeout_s)

    def update(self, index: Any, /, *, timeout_s: float | None = None, **fields: Any) -> Applied:
        """Set new values of some fields, by id, each in its own shard.

        Raises
        ------
        SchemaError, ConfigError, Unsupported, Timeout, Closed, Broken
        """
        return self._rows.update(index, fields, timeout_s)

    @explain_wrong_names
    def delete(self, index: Any, *, timeout_s: float | None = None) -> Applied:
        """Remove items by id, each from its own shard.

        Raises
        ------
        ConfigError, Timeout, Closed, Broken, Unsupported
        """
        return self._rows.delete(index, timeout_s)

    # -- the whole table ---------------------------------------------------------------------------

    def clear(self, *, timeout_s: float | None = None) -> None:
        """Remove all steps of all shards.

        Raises Timeout, Closed, Broken, Unsupported: if one of them could not be asked.
        """
        for one in self._connections.all:
            one.table(self.name).clear(timeout_s=timeout_s)

    def save(self, path: str | os.PathLike[str], *, timeout_s: float | None = None) -> SaveReport:
        """Save the table of each shard in a folder of its own, ``path/SHARD``.

        See `TableClient.save`. Shards are saved one after the other, while others go on adding and
        sampling. The report has the sums, and the longest pause.
        """
        root = path_of("path", path)
        reports = [
            one.table(self.name).save(os.path.join(root, one.name), timeout_s=timeout_s)
            for one in self._connections.all
        ]
        return SaveReport(
            kind="full" if any(one.kind == "full" for one in reports) else "incremental",
            number=max(one.number for one in reports),
            nbytes=sum(one.nbytes for one in reports),
            duration_s=sum(one.duration_s for one in reports),
            pause_s=max(one.pause_s for one in reports),
            rows=sum(one.rows for one in reports),
        )

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        number: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Replace the steps of each shard by those of its save, in ``path/SHARD``."""
        root = path_of("path", path)
        for one in self._connections.all:
            one.table(self.name).load(
                os.path.join(root, one.name), number=number, timeout_s=timeout_s
            )

    def close(self) -> None:
        """Close the sources of this table. Calls of `sample` that wait raise Closed."""
        with self._lock:
            self._closed = True
            sources = list(self._sources)
        for one in sources:
            one.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this table of a cluster is closed")

    def _all(self) -> dict[str, AboutReply]:
        """Ask all shards that can be reached; raise what the last one raised if none answers."""
        answers = ask_all(
            self._connections,
            self._connections.reached,
            lambda one, limit: one.table(self.name)._calls.about(limit),
            Deadline(self._timeout_s),
        )
        for error in answers.failed.values():
            if not answers.found or isinstance(error, (ConfigError, Unsupported)):
                raise error
        if not answers.found:
            raise self._connections.nothing(f"table {self.name!r}")
        order = [one.name for one in self._connections.all if one.name in answers.found]
        return {name: answers.found[name] for name in order}


def _seed_of(seed: int, number: int) -> int:
    """Return the seed of one shard."""
    words = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)
    return int(words[0]) >> 1
