"""Priorities, updates and deletions of rows by their ids, each in its own shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from async_loader.feeder.client.table import TableClient
from async_loader.replay.arguments import ids_of
from async_loader.scale.connections import Connections
from async_loader.scale.shard_map import MOST_SHARDS
from async_loader.source import Applied
from async_loader.sources.mixture_index import split_by_source
from async_loader.sources.mixture_rows import Ids, numbers_of, own_ids
from async_loader.table import Batch

Timeout = float | None


class UpdatesById:
    """Passes rows to the shards that have them. Threads: any.

    Rows of shards that are lost, or are no part of the cluster any more, count as stale at once.

    Parameters
    ----------
    connections : Connections
    table : str
    """

    def __init__(self, connections: Connections, table: str) -> None:
        self._connections, self._table = connections, table

    def update_priorities(self, index: Any, priority: Any, timeout_s: Timeout) -> Applied:
        """See `Table.update_priorities`."""
        return self._each(
            index,
            {"priority": priority},
            lambda table, ids, values: table.update_priorities(
                ids, values["priority"], timeout_s=timeout_s
            ),
        )

    def update(self, index: Any, fields: Mapping[str, Any], timeout_s: Timeout) -> Applied:
        """See `Table.update`."""
        return self._each(
            index,
            fields,
            lambda table, ids, values: table.update(ids, timeout_s=timeout_s, **values),
        )

    def delete(self, index: Any, timeout_s: Timeout) -> Applied:
        """See `Table.delete`."""
        return self._each(
            index, {}, lambda table, ids, values: table.delete(ids, timeout_s=timeout_s)
        )

    def _each(
        self,
        index: Any,
        values: Mapping[str, Any],
        call: Callable[[TableClient, Ids, dict[str, Any]], Applied],
    ) -> Applied:
        applied, total = 0, int(np.size(index))
        for number, ids, picked in split_by_source(index, MOST_SHARDS, values):
            table = self._table_of(number)
            if table is not None:
                done = call(table, ids, dict(zip(values, picked, strict=True)))
                applied += done.applied
        return Applied(applied, total - applied)

    def _table_of(self, number: int) -> TableClient | None:
        shard = self._connections.find(number)
        return shard.client.table(self._table) if shard is not None and shard.is_open else None

    def get(
        self, index: Any, read: Callable[[TableClient, Ids], Batch]
    ) -> Iterator[tuple[Ids, int, Batch]]:
        """Read rows of each shard that has any: yield their places in ``index`` that are there,
        the number of the shard, and the batch.
        """
        ids = ids_of(index)
        numbers = numbers_of(ids)
        for number in np.unique(numbers[ids >= 0]).tolist():
            places = np.flatnonzero((numbers == number) & (ids >= 0))
            own = own_ids(ids[places])
            table = self._table_of(number)
            if table is None:
                continue
            batch = read(table, own)
            yield places[np.isin(own, batch["index"])], number, batch
