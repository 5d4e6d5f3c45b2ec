"""A table as its process shares it, and steps by their ids: read, changed, taken out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from async_loader import tensors
from async_loader.errors import ConfigError, SchemaError, Unsupported
from async_loader.lifecycle import seconds_or_none
from async_loader.replay.arguments import floats_of, ids_of, named, one_axis, per_item
from async_loader.replay.array_types import Array, Floats, Ids
from async_loader.replay.samplers import priority_rules
from async_loader.replay.table.insert import Inserter
from async_loader.replay.table.step_packer import StepPacker
from async_loader.replay.views import View, checked_view
from async_loader.schema import END_FIELDS, Field
from async_loader.source import Applied
from async_loader.table import Batch


class SharedTable(Inserter):
    """A table as the threads of its process share it, with what they do to steps by id.

    It is built in layers, each in a file of its own and each using those below it::

        by_id.py         SharedTable   reads, changes and takes out steps by id, changes priorities
        insert.py        Inserter      adds steps
        sample.py        TableSampler  draws and reads items
        table_state.py   TableState    allocates the table, adapts it to views, closes it
        table_access.py  TableAccess   the lock, the limits, the waiting calls

    `ReplayBuffer` is the front that waits, `NonblockingTable` the one for an event loop. Both may
    be used side by side, since each call takes the table's lock by itself. Any thread. An id that
    is gone is never another step.
    """

    def get(self, index: object, view: View | None) -> Batch:
        """See `ReplayBuffer.get`."""
        ids = ids_of(index)
        checked_view(view)
        self.check_open()
        if not self.ready:
            return {"index": np.empty(0, np.int64)}
        return self.these(ids, self.read_plan(view))

    def update_priorities(
        self, index: object, priority: object, view: View | None = None
    ) -> Applied:
        """See `ReplayBuffer.update_priorities`."""
        ids, eta = ids_of(index), self.eta_of(view)
        if eta is not None:
            priority = per_item(priority, len(ids), eta)
        return self.prioritize(ids, floats_of(priority, "priority"))

    def prioritize(self, ids: Ids, priority: Floats) -> Applied:
        """Change priorities by id."""
        if ids.shape != priority.shape:
            raise ConfigError(f"{len(ids)} ids and {len(priority)} priorities: one for each")
        if not self.prioritized:
            raise Unsupported(
                f"this table samples by {self.sampler!r}, and has no priorities to update: "
                "leave update_priorities out"
            )
        priority_rules.check_given(priority)
        if not self.ready:
            return Applied(0, len(ids))
        self.checked(priority)
        with self.lock:
            self.catch_up()
            return self.table.prioritize(ids, priority)

    def update(self, index: object, /, **fields: Any) -> Applied:
        """See `ReplayBuffer.update`."""
        ids, fields = one_axis(index, fields)
        if not self.ready:
            return Applied(0, len(ids))
        columns = columns_of(self.step_packer, fields, len(ids))
        with self.lock:
            return self.own().patch(ids, columns)

    def delete(self, index: object) -> Applied:
        """See `ReplayBuffer.delete`."""
        ids = ids_of(index)
        if not self.ready:
            return Applied(0, len(ids))
        with self.lock:
            try:
                return self.own().delete(ids)
            finally:
                self.waiters.ring()

    def clear(self, timeout_s: float | None) -> None:
        """See `ReplayBuffer.clear`."""
        seconds_or_none("timeout_s", timeout_s)
        with self.lock:
            if not self.ready:
                self.check_open()
                return
            try:
                self.own().clear()
                self.forget()
            finally:
                self.waiters.ring()


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
        column = fit.column(in_rows(value, rows, fit.field))
        if len(column) != rows:
            raise SchemaError(f"field {name!r} has {len(column)} rows for {rows} ids: one for each")
        columns[known[name]] = column
    return columns


def in_rows(value: Any, rows: int, field: Field) -> Any:
    """Reshape a value to ``[rows, *field.shape]`` if only its shape differs, as ``[rows, 1]`` from
    a network.
    """
    array = value if tensors.is_tensor(value) else tensors.as_array(value)
    wanted = (rows, *field.shape)
    if (
        array is None
        or array.shape == wanted
        or math.prod(array.shape) != math.prod(wanted)
        or not array.ndim
        or len(array) != rows
    ):
        return value
    return array.reshape(wanted)
