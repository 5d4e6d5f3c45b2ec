"""A table of a cluster, as a user holds it: its rows are those of all shards."""

from __future__ import annotations

import math
import os
import random
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import numpy as np
from msgspec import structs

from async_loader import tensors, tree
from async_loader.errors import Broken, CannotSend, ConfigError, Timeout
from async_loader.feeder.client.arguments import batch_size_of
from async_loader.feeder.client.batch_structure import BatchStructure
from async_loader.feeder.client.reader_batches import Transport
from async_loader.feeder.client.remote_table import IdleSources, RemoteTable
from async_loader.feeder.client.source import RemoteSource
from async_loader.feeder.client.table import TableClient, stats_of
from async_loader.feeder.wire import AboutReply, OpenReader
from async_loader.lifecycle import Deadline, Patience, seconds_or_none
from async_loader.name_hints import explain_wrong_attributes, explain_wrong_names
from async_loader.replay.arguments import ids_of
from async_loader.replay.checkpoint.writing import SaveReport
from async_loader.replay.table_methods import Change
from async_loader.replay.views import Ragged, View, checked_view, ragged
from async_loader.scale.connections import Connections, ShardConnection
from async_loader.scale.draws import Draws
from async_loader.scale.shards import MOST_SHARDS
from async_loader.scale.source import ClusterSource
from async_loader.scale.stats import ClusterTableStats, LostRows, summed
from async_loader.source import Applied
from async_loader.sources.mixture_member import split_by_source
from async_loader.sources.mixture_rows import add_source, numbers_of, own_ids
from async_loader.table import Batch
from async_loader.validation import path_of

R = TypeVar("R")
_AHEAD = 2
"""Batches of a queue that each shard sends ahead: what one learner has, others wait for."""


@explain_wrong_attributes
class ClusterTable(RemoteTable[ClusterSource]):
    """One table of a cluster: `async_loader.table.Table` over all shards. Made by
    `ClusterClient.table`.

    All shards have a table of this name with the same settings. Ids have the number of their shard
    in the bits from 56 on. Threads: any. A ``timeout_s`` of ``None`` is that of the client. Calls
    raise Timeout, Closed, Broken and Unsupported beside what they raise for a table of this
    process.

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
        self._turn = random.randrange(MOST_SHARDS)  # of the next writer
        self._idle: IdleSources[ClusterSource] = IdleSources()
        self._sources: weakref.WeakSet[ClusterSource] = weakref.WeakSet()

    # -- what it is --------------------------------------------------------------------------------

    def stats(self) -> ClusterTableStats:
        """Return the counts of all shards at this moment, and what was lost with shards.

        Raises Timeout, Closed, Broken, Unsupported: if no shard answers.
        """
        found = {name: stats_of(said) for name, said in self._abouts().items()}
        silent = [one.name for one in self._connections.all if one.name not in found]
        lost = [
            LostRows(shard=one.name, incarnation=server, rows=rows)
            for one in self._connections.all
            for server, rows in sorted(one.client.lost(self.name).items())
        ]
        return summed(found, silent, lost)

    def __repr__(self) -> str:
        return f"<ClusterTable {self.name!r} of {len(self._connections.all)} shards>"

    def __reduce__(self) -> Any:
        raise CannotSend("a client's table stays in its process: connect to the cluster there")

    # -- steps in ----------------------------------------------------------------------------------

    def _place(self) -> TableClient:
        """Return the table of a shard on this host, else of the next one in turn.

        It is asked for once for each writer, whose streams stay there.
        """
        reached = self._connections.reached
        here = [one for one in reached if one.shard.is_here] or reached or self._connections.all
        if not here:
            raise self._connections.nothing(f"a writer of table {self.name!r}")
        self._turn += 1
        return here[self._turn % len(here)].table(self.name)

    # -- batches out -------------------------------------------------------------------------------

    def _sample(self, batch_size: int, view: View | None, timeout_s: float | None) -> Batch:
        size, limit = batch_size_of(batch_size), seconds_or_none("timeout_s", timeout_s)
        kind = size, checked_view(view)
        source = self._idle.take(kind, lambda: self.source(view=view, prefetch=0))
        try:
            source.begin_afresh(immediate=limit is None)
            patience = Patience(deadline=self._deadline(limit))
            plan: Any = source.plan(size, patience)
            while plan.lease is not None and not source.hand_out(plan.lease):
                plan = source.plan(size, patience)
            if plan.lease is not None:
                source.settle(plan.lease)
        finally:
            self._idle.give_back(kind, source)
        return ragged(plan.batch, view)

    def _source(
        self, wanted: OpenReader, view: View | None, prefetch: int | None, transport: Transport
    ) -> ClusterSource:
        abouts = self._abouts()
        said = {name: wanted.sampler or one.settings for name, one in abouts.items()}
        settings, leased = next(iter(said.values())), any(one.leased for one in abouts.values())
        for name, one in said.items():
            if one != settings:
                raise ConfigError(
                    f"{name} samples by {one}, and another shard by {settings}: give all the same"
                )

        draws = Draws(settings, wanted.world_size, leased)
        if draws.in_turn and wanted.min_size > 1:
            raise ConfigError(
                f"min_size={wanted.min_size:,}: the shards of this table give their items in turn, "
                "as they come: leave it out"
            )
        sizes = [stats_of(one).capacity or math.inf for one in abouts.values()]
        if len(sizes) == len(self._connections.all) and wanted.min_size > sum(sizes):
            raise ConfigError(
                f"min_size={wanted.min_size:,}, and the {len(sizes)} shards keep {sum(sizes):,} "
                "steps: ask for fewer, or raise the capacity"
            )
        if draws.in_turn and prefetch is None:
            prefetch = _AHEAD

        def open_source(shard: ShardConnection) -> RemoteSource:
            of_shard = structs.replace(
                wanted,
                seed=None if wanted.seed is None else _seed_of(wanted.seed, shard.number),
                min_size=1,
                timeout_s=None,
                masses=not draws.in_turn,
            )
            return shard.table(self.name)._source(of_shard, view, prefetch, transport)

        entropy: Any = np.random.SeedSequence().entropy if wanted.seed is None else wanted.seed
        words = entropy, wanted.rank, wanted.world_size
        source = ClusterSource(
            self, self._connections, open_source, draws, words, wanted.min_size, wanted.timeout_s
        )
        source.finishes = Ragged.of(view)
        self._sources.add(source)
        return source

    # -- by id -------------------------------------------------------------------------------------

    @explain_wrong_names
    def get(self, index: Any, *, view: View | None = None) -> Batch:
        """Return rows by id, without those that are gone or whose shard is lost.

        ``index`` of the batch says which ones there are.
        """
        ids = ids_of(index)
        numbers = numbers_of(ids)

        def read(one: ShardConnection, limit: Deadline) -> tuple[Any, BatchStructure, list[Any]]:
            places = np.flatnonzero(numbers == one.number)
            own = own_ids(ids[places])
            structure, batch = one.table(self.name)._get(own, view, limit)
            there = places[np.isin(own, batch["index"])]
            arrays = list(tree.leaves(batch, structure.shown.structure))
            for place in structure.ids:
                add_source(arrays[place], one.number)
            return there, structure, arrays

        parts = list(self._of_shards(set(numbers.tolist()), read, None).values())
        if not parts:
            for one in self._connections.reached:
                return one.table(self.name).get(ids[:0], view=view)
            raise self._connections.nothing("get")
        most = max(parts, key=lambda one: len(one[2]))  # a shard may have no schema yet
        parts = [one for one in parts if len(one[0])] or [most]
        order = np.argsort(np.concatenate([places for places, _, _ in parts]), kind="stable")
        columns = zip(*(arrays for _, _, arrays in parts), strict=True)
        merged = [np.concatenate(one)[order] for one in columns]
        return ragged(tree.rebuild_batch(parts[0][1].shown.structure, merged), view)

    def _apply(
        self,
        change: Change,
        index: Any,
        values: Mapping[str, Any],
        timeout_s: float | Deadline | None,
    ) -> Applied:
        """See `TableMethods`: each row in its own shard; those of lost shards count as stale."""
        parts = {
            number: (ids, dict(zip(values, picked, strict=True)))
            for number, ids, picked in split_by_source(index, MOST_SHARDS, values)
        }

        def call(one: ShardConnection, limit: Deadline) -> Applied:
            return one.table(self.name)._apply(change, *parts[one.number], limit)

        found = self._of_shards(parts.keys(), call, timeout_s)
        applied = sum(one.applied for one in found.values())
        return Applied(applied, tensors.to_ids(index).size - applied)

    def _of_shards(
        self,
        numbers: Collection[int],
        call: Callable[[ShardConnection, Deadline], R],
        timeout_s: float | Deadline | None,
    ) -> dict[str, R]:
        """Ask these shards, those that can be reached. Raises what one that lives has raised."""
        shards = [one for one in self._connections.reached if one.number in numbers]
        found, failed = self._connections.ask(shards, call, self._deadline(timeout_s))
        for one in shards:
            error = failed.get(one.name)
            lost = one.removed or not one.answers
            if error is not None and not (lost and isinstance(error, (Timeout, Broken))):
                raise error
        return found

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
        rules: dict[str, Callable[[Any], Any]] = {
            "number": max, "nbytes": sum, "duration_s": sum, "pause_s": max,
            "rows": sum,
        }  # fmt: skip
        return SaveReport(
            **{name: rule([getattr(one, name) for one in reports]) for name, rule in rules.items()}
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
        for one in list(self._sources):
            one.close()

    def _about(self, timeout_s: float | Deadline | None = None) -> AboutReply:
        """Return what a shard says of its table: the first that knows its schema, if one does."""
        return min(self._abouts().values(), key=lambda one: one.schema is None)

    def _abouts(self) -> dict[str, AboutReply]:
        """Ask all shards that can be reached."""
        numbers = {one.number for one in self._connections.all}
        found = self._of_shards(
            numbers, lambda one, limit: one.table(self.name)._about(limit), None
        )
        if not found:
            raise self._connections.nothing(f"table {self.name!r}")
        return found


def _seed_of(seed: int, number: int) -> int:
    """Return the seed of one shard."""
    words = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)
    return int(words[0]) >> 1
