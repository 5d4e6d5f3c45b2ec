"""Priorities, updates and deletions of rows by their ids, each in its own shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from async_loader import tensors
from async_loader.errors import AsyncLoaderError, Broken, Timeout
from async_loader.feeder.client.asked_by_id import AskedById
from async_loader.feeder.client.table import TableClient
from async_loader.feeder.wire import schema_of
from async_loader.lifecycle import Deadline, seconds_or_none
from async_loader.replay.arguments import ids_of
from async_loader.scale.connections import Connections
from async_loader.scale.shard_connection import ShardConnection
from async_loader.scale.shard_deadline import ShardDeadline
from async_loader.scale.shard_map import MOST_SHARDS
from async_loader.scale.table_abouts import abouts_of
from async_loader.schema import Schema
from async_loader.source import Applied
from async_loader.sources.mixture_index import split_by_source
from async_loader.sources.mixture_rows import Ids, numbers_of, own_ids
from async_loader.table import Batch


class UpdatesById:
    """Passes rows to the shards that have them. Threads: any.

    Rows of shards that are lost, also during the call, or are no part of the cluster any more,
    count as stale.

    Parameters
    ----------
    connections : Connections
    table : str
    timeout_s : float
        For calls without a timeout of their own.
    """

    def __init__(self, connections: Connections, table: str, timeout_s: float) -> None:
        self._connections, self._table, self._timeout_s = connections, table, timeout_s
        self._schemas: dict[str, tuple[bytes, Schema]] = {}  # by shard: and who has said it

    def update_priorities(self, index: Any, priority: Any, timeout_s: float | None) -> Applied:
        """See `Table.update_priorities`."""
        deadline = self._deadline(timeout_s)
        return self._each(
            index,
            {"priority": priority},
            lambda shard, ids, values, limit: self._of(shard)._ask_priorities(
                ids, values["priority"], limit
            ),
            deadline,
        )

    def update(self, index: Any, fields: Mapping[str, Any], timeout_s: float | None) -> Applied:
        """See `Table.update`."""
        deadline = self._deadline(timeout_s)
        self._learn_schemas(index, deadline)
        return self._each(
            index,
            fields,
            lambda shard, ids, values, _: self._of(shard)._ask_update(
                ids, self._schema_of(shard), values
            ),
            deadline,
        )

    def delete(self, index: Any, timeout_s: float | None) -> Applied:
        """See `Table.delete`."""
        deadline = self._deadline(timeout_s)
        return self._each(
            index, {}, lambda shard, ids, *_: self._of(shard)._ask_delete(ids), deadline
        )

    def _deadline(self, timeout_s: float | None) -> Deadline:
        limit = seconds_or_none("timeout_s", timeout_s)
        return Deadline(self._timeout_s if limit is None else limit)

    def _each(
        self,
        index: Any,
        values: Mapping[str, Any],
        ask: Callable[[ShardConnection, Ids, dict[str, Any], Deadline], AskedById],
        deadline: Deadline,
    ) -> Applied:
        """Ask all shards at once, then wait for all: none delays what goes to the others."""
        applied, total = 0, int(np.size(index))
        asked: list[tuple[ShardConnection, AskedById, ShardDeadline]] = []
        failed: AsyncLoaderError | None = None
        try:
            for number, ids, picked in split_by_source(index, MOST_SHARDS, values):
                shard = self._shard_of(number)
                if shard is None:
                    continue
                limit = ShardDeadline(shard, deadline)
                own = dict(zip(values, picked, strict=True))
                try:
                    asked.append((shard, ask(shard, ids, own, limit), limit))
                except (Timeout, Broken):
                    if not (limit.silent or shard.removed):
                        raise
            for shard, call, limit in asked:
                try:
                    call.answer(limit)
                except AsyncLoaderError as error:
                    if not (limit.silent or shard.removed):
                        failed = failed or error
                applied += call.so_far.applied
        finally:  # also after Ctrl-C
            for _, call, _ in asked:
                call.forget()
        if failed is not None:
            raise failed
        return Applied(applied, total - applied)

    def _learn_schemas(self, index: Any, deadline: Deadline) -> None:
        """Ask the shards of these rows for the schema, all that have not said it at once."""
        ids = tensors.to_ids(index)
        numbers = np.unique(numbers_of(ids[ids >= 0])).tolist()
        shards = [one for one in map(self._shard_of, numbers) if one is not None]
        new = [one for one in shards if self._schema_of(one) is None]
        found, failed = abouts_of(new, self._table, deadline)
        for one in new:
            said = found.get(one.name)
            if said is not None and said.schema is not None:
                self._schemas[one.name] = one.connection.incarnation, schema_of(said.schema)
            elif one.name in failed and deadline.expired:
                raise failed[one.name]

    def _schema_of(self, shard: ShardConnection) -> Schema | None:
        """Return what the shard's present process has said."""
        incarnation, schema = self._schemas.get(shard.name, (b"", None))
        return schema if incarnation == shard.connection.incarnation else None

    def _shard_of(self, number: int) -> ShardConnection | None:
        shard = self._connections.find(number)
        return shard if shard is not None and shard.is_open else None

    def _of(self, shard: ShardConnection) -> TableClient:
        return shard.client.table(self._table)

    def get(
        self, index: Any, read: Callable[[TableClient, Ids, Deadline], Batch]
    ) -> Iterator[tuple[Ids, int, Batch]]:
        """Read rows of each shard that has any: yield their places in ``index`` that are there,
        the number of the shard, and the batch.
        """
        ids, deadline = ids_of(index), Deadline(self._timeout_s)
        numbers = numbers_of(ids)
        for number in np.unique(numbers[ids >= 0]).tolist():
            places = np.flatnonzero((numbers == number) & (ids >= 0))
            own = own_ids(ids[places])
            shard = self._shard_of(number)
            if shard is None:
                continue
            limit = ShardDeadline(shard, deadline)
            try:
                batch = read(self._of(shard), own, limit)
            except (Timeout, Broken):
                if limit.silent or shard.removed:
                    continue
                raise
            yield places[np.isin(own, batch["index"])], number, batch
