"""One stored field of many steps of a table, by their ids."""

from __future__ import annotations

from typing import Any

from async_loader.replay import ReplayBuffer as Table
from async_loader.replay.array_types import Array, Ids
from async_loader.replay.buffer import parts_of


def column_of(table: Table, name: str, ids: Ids) -> Array:
    """Return a copy of one stored field by id; zeros where an id is not in the table."""
    state = parts_of(table).state
    with state.lock:
        state.check_open()
        state.catch_up()
        storage = state.table.storage
        fields = storage.layout.schema.fields
        place: Any = next(i for i, field in enumerate(fields) if field.name == name)
        rows = ids % storage.layout.rows
        values: Array = storage.cell(place)[rows]
        values[(storage.heads()[rows, 0] != ids + 1) | (ids < 0)] = 0
    return values
