"""Reads, updates and deletions of rows by their ids, each in its own shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from async_loader.errors import Broken, Timeout
from async_loader.feeder.client.table import TableClient
from async_loader.feeder.wire import schema_of
from async_loader.lifecycle import Deadline, seconds_or_none
from async_loader.replay.arguments import ids_of
from async_loader.replay.views import View
from async_loader.scale.connections import Connections, ShardConnection
from async_loader.scale.shards import MOST_SHARDS
from async_loader.source import Applied
from async_loader.sources.mixture_member import split_by_source
from async_loader.sources.mixture_rows import Ids, numbers_of, own_ids
from async_loader.table import Batch

R = TypeVar("R")


class ReadRows(NamedTuple):
    """Rows of one shard, and where they are in the index that was asked for."""

    places: npt.NDArray[np.intp]
    number: int
    batch: Batch


class RowsById:
    """Passes calls to the shards that have the rows. Threads: any.

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

    def update_priorities(self, index: Any, priority: Any, timeout_s: float | None) -> Applied:
        """See `Table.update_priorities`."""

        def call(table: TableClient, ids: Ids, values: list[Any], limit: Deadline) -> Applied:
            return table._ask_priorities(ids, values[0], limit).answer(limit)

        return self._applied(index, {"priority": priority}, call, timeout_s)

    def update(self, index: Any, fields: Mapping[str, Any], timeout_s: float | None) -> Applied:
        """See `Table.update`."""

        def call(table: TableClient, ids: Ids, values: list[Any], limit: Deadline) -> Applied:
            spec, own = table._calls.known(limit).schema, dict(zip(fields, values, strict=True))
            schema = None if spec is None else schema_of(spec)
            return table._ask_update(ids, schema, own).answer(limit)

        return self._applied(index, fields, call, timeout_s)

    def delete(self, index: Any, timeout_s: float | None) -> Applied:
        """See `Table.delete`."""

        def call(table: TableClient, ids: Ids, values: list[Any], limit: Deadline) -> Applied:
            return table._ask_delete(ids).answer(limit)

        return self._applied(index, {}, call, timeout_s)

    def _applied(
        self,
        index: Any,
        values: Mapping[str, Any],
        call: Callable[[TableClient, Ids, list[Any], Deadline], Applied],
        timeout_s: float | None,
    ) -> Applied:
        parts = {
            number: (ids, picked)
            for number, ids, picked in split_by_source(index, MOST_SHARDS, values)
        }
        answers = self._ask(
            parts.keys(),
            lambda one, limit: call(one.table(self._table), *parts[one.number], limit),
            timeout_s,
        )
        applied = sum(one.applied for one in answers.values())
        return Applied(applied, int(np.size(index)) - applied)

    def get(self, index: Any, view: View | None) -> list[ReadRows]:
        """Return the rows that are there, shard after shard."""
        ids = ids_of(index)
        numbers = np.where(ids < 0, -1, numbers_of(ids))

        def call(one: ShardConnection, limit: Deadline) -> ReadRows:
            places = np.flatnonzero(numbers == one.number)
            own = own_ids(ids[places])
            batch = one.table(self._table)._get(own, view, limit)
            return ReadRows(places[np.isin(own, batch["index"])], one.number, batch)

        return list(self._ask(set(numbers.tolist()), call, None).values())

    def _ask(
        self,
        numbers: Any,
        call: Callable[[ShardConnection, Deadline], R],
        timeout_s: float | None,
    ) -> dict[str, R]:
        """Ask these shards, those that can be reached. Raises what one that lives has raised."""
        limit = seconds_or_none("timeout_s", timeout_s)
        shards = [one for one in self._connections.reached if one.number in numbers]
        deadline = Deadline(self._timeout_s if limit is None else limit)
        answers, failed = self._connections.ask(shards, call, deadline)
        for one in shards:
            error = failed.get(one.name)
            lost = one.removed or not one.answers
            if error is not None and not (lost and isinstance(error, (Timeout, Broken))):
                raise error
        return answers
