"""The parts of a table, and steps by their ids: read, changed, taken out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from async_loader import tensors
from async_loader.errors import SchemaError
from async_loader.lifecycle import seconds_or_none
from async_loader.replay.arguments import floats_of, ids_of, named, one_axis, per_item
from async_loader.replay.array_types import Array
from async_loader.replay.table.insert import Inserter
from async_loader.replay.table.sample import TableSampler
from async_loader.replay.table.step_packer import StepPacker
from async_loader.replay.table.table_state import TableState
from async_loader.replay.views import View, checked_view
from async_loader.schema import END_FIELDS, Field
from async_loader.source import Applied
from async_loader.table import Batch


class TableParts:
    """The parts that every front of one table shares, and what these do with steps by id.

    `ReplayBuffer` is the front that waits, `NonblockingTable` the one for an event loop. Both may
    be used side by side, since each part takes the table's lock by itself. Any thread. An id that
    is gone is never another step.

    Attributes
    ----------
    state : TableState
        The lock, the table under it, its limits, and the waiting calls.
    inserter : Inserter
        Adds steps and changes priorities.
    table_sampler : TableSampler
        Draws and reads items.
    """

    def __init__(self, state: TableState) -> None:
        self.state, self.inserter = state, Inserter(state)
        self.table_sampler = TableSampler(state)

    def get(self, index: object, view: View | None) -> Batch:
        """See `ReplayBuffer.get`."""
        ids = ids_of(index)
        checked_view(view)
        self.state.check_open()
        if not self.state.ready:
            return {"index": np.empty(0, np.int64)}
        return self.table_sampler.these(ids, view)

    def update_priorities(
        self, index: object, priority: object, view: View | None = None
    ) -> Applied:
        """See `ReplayBuffer.update_priorities`."""
        ids, eta = ids_of(index), self.state.eta_of(view)
        if eta is not None:
            priority = per_item(priority, len(ids), eta)
        return self.inserter.prioritize(ids, floats_of(priority, "priority"))

    def update(self, index: object, /, **fields: Any) -> Applied:
        """See `ReplayBuffer.update`."""
        ids, fields = one_axis(index, fields)
        table_state = self.state
        if not table_state.ready:
            return Applied(0, len(ids))
        columns = columns_of(table_state.step_packer, fields, len(ids))
        with table_state.lock:
            return table_state.own().patch(ids, columns)

    def delete(self, index: object) -> Applied:
        """See `ReplayBuffer.delete`."""
        ids = ids_of(index)
        table_state = self.state
        if not table_state.ready:
            return Applied(0, len(ids))
        with table_state.lock:
            try:
                return table_state.own().delete(ids)
            finally:
                table_state.waiters.ring()

    def clear(self, timeout_s: float | None) -> None:
        """See `ReplayBuffer.clear`."""
        seconds_or_none("timeout_s", timeout_s)
        table_state = self.state
        with table_state.lock:
            if not table_state.ready:
                table_state.check_open()
                return
            try:
                table_state.own().clear()
                self.table_sampler.forget()
            finally:
                table_state.waiters.ring()


def columns_of(step_packer: StepPacker, fields: Mapping[str, Any], rows: int) -> dict[int, Array]:
    """Check new values ``[rows, ...]``, and return them by the position of their fields in the
    schema. Raises SchemaError, as `ReplayBuffer.update`.
    """
    columns: dict[int, Array] = {}
    known = {field.name: i for i, field in enumerate(step_packer.schema.fields)}
    for name, value in named(fields):
        if name not in known or name in END_FIELDS:  # ends have taken effect already
            raise SchemaError(
                f"field {name!r} cannot be updated: "
                f"{', '.join(n for n in known if n not in END_FIELDS)} can"
            )
        fit = step_packer.fits[known[name]]
        if fit.field.codec is not None:
            raise SchemaError(
                f"field {name!r} has codec={fit.field.codec!r}, and a compressed value has no room "
                "for another: leave the codec out to update it"
            )
        column = fit.column(_in_rows(value, rows, fit.field))
        if len(column) != rows:
            raise SchemaError(f"field {name!r} has {len(column)} rows for {rows} ids: one for each")
        columns[known[name]] = column
    return columns


def _in_rows(value: object, rows: int, field: Field) -> Any:
    """Reshape a value to ``[rows, *field.shape]`` if only its shape differs, as ``[rows, 1]`` from
    a network.
    """
    array = tensors.as_array(value)
    wanted = (rows, *field.shape)
    if (
        array is None
        or array.shape == wanted
        or array.size != int(np.prod(wanted))
        or not array.ndim
        or len(array) != rows
    ):
        return value
    return array.reshape(wanted)
