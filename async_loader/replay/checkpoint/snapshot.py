"""Copies a table's rows and everything else while other threads write.

# NOTE [pre-copy]
As a running machine is moved (Clark et al., "Live migration of virtual machines", NSDI 2005): what
has changed is copied without the lock, then what has changed meanwhile, and so on; the last and
small rest is copied under the lock, with everything that is not in rows, and is the moment that the
save shows. Every change is made under the lock and marks its row there, and marks are taken off
under the lock. So a row that is torn while it is copied is marked after its mark was taken off, and
comes again in a later round; where a save holds a row more than once, the last one counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.array_types import Array, Bytes, Ids
from async_loader.replay.base.row_format import ROW_CHANGED
from async_loader.replay.checkpoint.manifest import schema_json
from async_loader.replay.checkpoint.settings import limiter_json, settings_json
from async_loader.replay.samplers.random_numbers import seeds_json
from async_loader.replay.stream_names import lasting_json
from async_loader.replay.table.storage import Storage
from async_loader.replay.table.table import Table
from async_loader.replay.table.table_state import TableState
from async_loader.replay.views import Sequences

# Each chunk asks for the GIL a few times, which takes up to 5 ms beside threads that want it: with
# less, saves of 200 MB beside four writers at full speed fall behind.
_CHUNK_BYTES = 16 << 20


class BlockData(NamedTuple):
    """The data of one block of the file. See manifest.Block."""

    kind: str
    about: dict[str, Any]
    data: Bytes


def row_parts(storage: Storage) -> list[Bytes]:
    """Return the bytes of rows: the packed ones, then each column, ``[rows, bytes of one]``."""
    layout = storage.layout
    block = storage.segment.bytes(0, layout.nbytes)
    places = [
        (0, layout.stride),
        *(place for place in layout.places if place[0] >= layout.rows * layout.stride),
    ]
    return [np.ndarray((layout.rows, width), np.uint8, block, offset) for offset, width in places]


def assigned_in(view: Sequences) -> str:
    """The name of the column of priorities that a view's sampler gave."""
    return f"assigned {settings_json(view)}"


def columns(table_state: TableState) -> dict[str, Array]:
    """Return what the table alone knows, with one entry per row."""
    table = table_state.table
    found = {"given": table.given, "times": table.times, "assigned": table.assigned}
    for view, one in table_state.sequence_samplers.items():
        found[assigned_in(view)] = one.assigned
    return {name: array for name, array in found.items() if len(array)}


class Snapshot:
    """Copies what changes in a table, for one save."""

    def __init__(self, table: Table) -> None:
        self._table, self._ring_next = table, 0
        self._parts = row_parts(table.storage)
        self._width = 8 + sum(part.shape[1] for part in self._parts)

    def every_row(self) -> range:
        """Return all rows that were ever used; none counts as changed from here on. Under the
        table's lock, as `changed_rows`.
        """
        self._table.dirty[:] = 0
        return range(self._table.items.top)

    def changed_rows(self) -> Ids:
        """Return the rows that have changed since they were copied last."""
        dirty = self._table.dirty
        rows: Ids = np.flatnonzero((dirty & ROW_CHANGED).view(np.bool_))
        dirty[:] = 0
        return rows

    def left(self) -> int:
        """Estimate the bytes of what has changed, while other threads write. Without the lock."""
        # numpy fails if the array changes while it counts
        left: int = self._width * int(np.count_nonzero(self._table.dirty & ROW_CHANGED))
        ring = self._table.ring
        return left if ring is None else left + ring.head - max(self._ring_next, ring.floor)

    def pieces(self, rows: Ids | range) -> Iterator[BlockData]:
        """Yield copies of these rows, and of the compressed values that came since."""
        each = max(1, _CHUNK_BYTES // self._width)
        for first in range(0, len(rows), each):
            some = rows[first : first + each]
            start = some.start if isinstance(some, range) else None
            yield BlockData("rows", {"count": len(some), "start": start}, self._copied(some))
        ring = self._table.ring
        if ring is None:
            return
        stop = ring.head
        while (begin := max(self._ring_next, ring.floor)) < stop:
            self._ring_next = min(stop, begin + _CHUNK_BYTES)
            yield BlockData("ring", {"start": begin}, ring.copy(begin, self._ring_next))

    def _copied(self, rows: Ids | range) -> Bytes:
        listed = not isinstance(rows, range)
        copy = np.empty(len(rows) * (self._width if listed else self._width - 8), np.uint8)
        end = 0
        if listed:
            end = 8 * len(rows)
            copy[:end].view(np.int64)[:] = rows
        for part in self._parts:
            start, end = end, end + len(rows) * part.shape[1]
            into = copy[start:end].reshape(len(rows), part.shape[1])
            if isinstance(rows, range):
                np.copyto(into, part[rows.start : rows.stop])
            else:
                np.take(part, rows, axis=0, out=into, mode="clip")  # "raise" would copy once more
        return copy


def fixed_settings(table_state: TableState) -> dict[str, Any]:
    """Return the settings of a table that never change, as JSON."""
    return {
        "capacity": table_state.capacity,
        "max_bytes": None if table_state.ready else table_state.max_bytes,
        "max_times_sampled": table_state.max_times_sampled,
        "sampler": settings_json(table_state.sampler),
        "remover": settings_json(table_state.remover),
        "view": settings_json(table_state.view),
    }


def changing_settings(table_state: TableState) -> dict[str, Any]:
    """Return those that may change while the table is used. Under the lock."""
    return {
        "limiter": limiter_json(table_state.limiter),
        "seeds": seeds_json(table_state.seeds),
    }


def table_json(table_state: TableState) -> dict[str, Any]:
    """Return the schema, the counters and the streams of a table. Under the lock."""
    table = table_state.table
    layout, state = table.storage.layout, table.state()
    streams = [[lasting_json(name), last] for name, last in state["streams"]]
    return state | {
        "schema": schema_json(layout.schema),
        "rows": layout.rows,
        "streams": streams,
    }


def sampler_states(table_state: TableState) -> dict[str, Any]:
    """Return the states of the samplers, by their roles. Under the lock.

    Raises
    ------
    ConfigError
        For one that is no JSON.
    """
    states: dict[str, Any] = {
        "sampler": table_state.sampler.state(),
        "sequences": [
            [settings_json(view), one.state()]
            for view, one in table_state.sequence_samplers.items()
        ],
    }
    if table_state.table.free is not None:
        states["remover"] = table_state.remover.state()
    for role, state in states.items():
        try:
            json.dumps(state)
        except (TypeError, ValueError):
            raise ConfigError(
                f"the state of the {role} is no JSON: return numbers, strings, lists and dicts"
            ) from None
    return states
