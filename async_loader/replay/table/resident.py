"""A table whose arrays lie in an accelerator's memory, and whose rules stay here.

# NOTE [slots]
The rows here hold ids, links, flags and numbers, and in place of each array its slot, which is
``id % rows + 1``. So draws, stacks, successors, priorities, views and saves are those of any table:
what they show of an array is slots, and the arrays are gathered there by them. Slot 0 is zeros, as
are the slots of what a stack or a sequence lacks. No draw waits for the accelerator.

# NOTE [in order]
A lock is held from the draw of rows, or their insertion, until the accelerator has been told to
read or write them. It does both in that order, on whichever streams: so no row is shown after it
was overwritten.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import NotEnoughData, SchemaError, Unsupported
from async_loader.lifecycle import Deadline
from async_loader.replay.arguments import length_of, named, one_axis, schema_of_columns
from async_loader.replay.array_types import Array, Ids
from async_loader.replay.base.row_format import CURSOR, ENDS
from async_loader.replay.hindsight_view import Hindsight
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.samplers import Sampler
from async_loader.replay.table.by_id import SharedTable, in_rows
from async_loader.replay.table.device_rows import DeviceRows, ResidentRows, device_of, is_array
from async_loader.replay.table.field_validator import FieldValidator
from async_loader.replay.table.sample import assembled
from async_loader.replay.table.step_packer import with_final
from async_loader.replay.table.storage import RowParts, StorageLayout
from async_loader.replay.views import Sequences, Transitions, View
from async_loader.schema import Field, Schema
from async_loader.source import Applied

if TYPE_CHECKING:
    import torch

_SLOT = np.dtype(np.int32)
_ON_HOST = ("index", "step_index")
"""Of a batch: ids, which stay here, where they are asked for."""


class ResidentTable(SharedTable):
    """A `SharedTable` whose arrays are tensors ``[rows, *shape]`` of one device.

    Numbers (fields of one element) stay here: rules need them. See NOTE [slots].

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, *args: Any, device: torch.device) -> None:
        super().__init__(*args)
        self.device = device
        self._one = threading.RLock()  # see NOTE [in order]
        self._due: list[tuple[Ids, Mapping[int, Any]]] = []

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep every other thread from the table, also for as long as a save or a load takes."""
        with self._one:
            try:
                if self._due:
                    self._write_due()
                yield
            finally:
                if self._due:  # Ctrl-C came before their arrays, which their owner may change now
                    self._write_due()

    def _write_due(self) -> None:
        """Write the arrays that are due, of the rows that were inserted."""
        stop = self._next()
        for ids, values in self._due:
            n = int(np.searchsorted(ids, stop))
            self.rows.put(ids[:n], {i: one[:n] for i, one in values.items()}, stop)
        self._due = []

    def allocate(self, schema: Schema) -> None:
        """See `TableState.allocate`. Raises OutOfMemory also for the device."""
        for field in schema.fields:
            if field.codec is not None:
                raise Unsupported(
                    f"field {field.name!r} has codec={field.codec!r}, and a table on a device "
                    "holds values as they are: leave the codec out"
                )
        slots = Schema(schema.structure, tuple(map(_slot_field, schema.fields)))
        assert self.capacity is not None
        rows = StorageLayout.of(slots, self.capacity).rows
        self.rows = DeviceRows(schema, rows, self.device)
        self._check_shown(self.view)
        super().allocate(slots)
        self._fits = [FieldValidator(field) for field in schema.fields]

    @property
    def shown_schema(self) -> Schema | None:
        """What a step is."""
        return None if self.schema is None else self.rows.schema

    @property
    def nbytes(self) -> int:
        """Of the rows here, and on the device."""
        return super().nbytes + self.rows.nbytes

    @property
    def saved_rows(self) -> RowParts:
        return ResidentRows(self.table.storage, self.rows)

    # -- adding ------------------------------------------------------------------------------------

    def add(
        self,
        step: Mapping[str, Any],
        stream: Hashable,
        said: int,
        priority: object,
        timeout_s: float | None,
        final: object,
    ) -> int:
        """See `Inserter.add`."""
        with self.held():
            if not self.ready:
                self.start(Schema.of_step(step))
            leaves, first = self.rows.schema.leaves(step), self._next()
            values = {i: self._value(i, leaves[i]) for i in self.rows.fields}
            lasts: dict[int, Any] = {}
            if final is not None:
                final, lasts = self._final(final, first + 1)
            inner = self._nested(leaves, self._slots(first))
            self._due = [(np.array([first]), values), (np.array([first + 1]), lasts)]
            id_ = super().add(inner, stream, said, priority, timeout_s, final)
            self._write_due()
            return id_

    def extend(
        self,
        batch: Mapping[str, Any],
        stream: object,
        priority: object,
        timeout_s: float | None,
        final_obs: object,
        said: Ids | None = None,
        whole: bool = False,
    ) -> Ids:
        """See `Inserter.extend`. Tensors of the device go there without a copy here."""
        with self.held():
            if not self.ready:
                self.start(schema_of_columns(batch))
            leaves, first = self.rows.schema.leaves(batch), self._next()
            values = {i: self._column(i, leaves[i]) for i in self.rows.fields}
            columns = [
                np.empty((len(values[i]), 0)) if i in values else tensors.to_array(one)
                for i, one in enumerate(leaves)
            ]
            ids = first + np.arange(length_of(self.rows.schema, columns))
            lasts, after = dict[int, Any](), ids[:0]
            if final_obs is not None:
                packer = self.step_packer
                plain = packer.columns(self._nested(columns, self._slots(ids)))
                ends = packer.column_ends(plain, said) & ENDS != 0
                final_obs, lasts, has = self._finals(final_obs, ends)
                ids += np.cumsum(has) - has
                after = ids[has] + 1
                final_obs = self._final_slots(final_obs, ids + 1)
            inner = self._nested(columns, self._slots(ids))
            self._due = [(ids, values), (after, lasts)]
            made = super().extend(inner, stream, priority, timeout_s, final_obs, said, whole)
            self._write_due()
            return made

    def end_episodes(
        self,
        streams: Sequence[Hashable],
        final_obs: object,
        flags: int,
        timeout_s: float | None = None,
    ) -> None:
        """See `Inserter.end_episodes`."""
        with self.held():
            if final_obs is None or not self.ready:
                super().end_episodes(streams, final_obs, flags, timeout_s)
                return
            first = self._next()
            final, lasts = self._final(final_obs, first)
            self._due = [(np.array([first]), lasts)]
            super().end_episodes(streams, final, flags, timeout_s)
            self._write_due()

    def _next(self) -> int:
        """Return the id of the next row."""
        with self.lock:
            return int(self.own().g[CURSOR])

    def _slots(self, ids: Any) -> Any:
        return np.asarray(ids % self.rows.count + 1, _SLOT)

    def _nested(self, leaves: Sequence[Any], slots: Any) -> dict[str, Any]:
        """Return a step, or a batch of steps, with slots in place of arrays."""
        on_device, schema = self.rows.fields, self.rows.schema
        values = [slots if i in on_device else one for i, one in enumerate(leaves)]
        made: dict[str, Any] = tree.rebuild(schema.structure, values)
        return made

    def _value(self, i: int, value: object) -> Any:
        """Check one value. Return it as a tensor ``[1, *shape]``."""
        field = self.rows.schema.fields[i]
        if self._is_there(value):
            return self._checked(field, value, field.shape)[None]
        return tensors.as_tensor(np.array(self._fits[i].value(value), field.dtype)[np.newaxis])

    def _column(self, i: int, value: object) -> Any:
        """Check many values. Return them as a tensor ``[rows, *shape]``."""
        field = self.rows.schema.fields[i]
        if self._is_there(value):
            return self._checked(field, value, (*value.shape[:1], *field.shape))  # type: ignore[attr-defined]
        return tensors.as_tensor(self._fits[i].column(value).astype(field.dtype, copy=False))

    def _is_there(self, value: object) -> bool:
        return tensors.is_tensor(value) and value.device == self.device

    def _checked(self, field: Field, value: Any, shape: tuple[int, ...]) -> Any:
        """Return a tensor of the device, if it is as its field."""
        if value.shape != shape or tensors.numpy_dtype(value.dtype) != field.dtype:
            raise SchemaError(
                f"field {field.name!r} is {tensors.said(value)} {list(value.shape)}, and takes "
                f"{field.dtype} {list(shape)}: convert it there"
            )
        return value.detach()

    # -- last observations -------------------------------------------------------------------------

    def _final(self, final: object, id_: int) -> tuple[Any, dict[int, Any]]:
        """Return a final observation with slots in place of arrays, and its arrays."""
        packer = self.step_packer
        leaves = dict(zip(packer.followed, packer.final_leaves(final), strict=True))
        there = {i: self._value(i, one) for i, one in leaves.items() if i in self.rows.fields}
        slot = self._slots(id_)
        return packer.as_final([slot if i in there else one for i, one in leaves.items()]), there

    def _finals(self, final: object, ends: Array) -> tuple[list[Any], dict[int, Any], Array]:
        """Return the leaves of final observations, arrays of those that are there, and which."""
        packer, has, fields = self.step_packer, ends.copy(), self.rows.schema.fields
        leaves = packer.final_leaves(final)
        for i, one in zip(packer.followed, leaves, strict=True):
            has &= with_final(one, ends, fields[i].name)
        lasts: dict[int, Any] = {}
        for i, one in zip(packer.followed, leaves, strict=True):
            if i not in self.rows.fields:
                continue
            if self._is_there(one):
                whole = self._checked(fields[i], one, (len(ends), *fields[i].shape))
                lasts[i] = whole[tensors.as_tensor(np.flatnonzero(has)).to(self.device)]
            else:
                some = [tensors.to_array(one[row]) for row in np.flatnonzero(has).tolist()]
                empty = np.empty((0, *fields[i].shape), fields[i].dtype)
                lasts[i] = self._column(i, np.stack(some) if some else empty)
        return leaves, lasts, has

    def _final_slots(self, leaves: Sequence[Any], ids: Ids) -> Any:
        """Return final observations with slots in place of arrays, ``None`` where none is."""
        packer, slots, found = self.step_packer, self._slots(ids), []
        for i, one in zip(packer.followed, leaves, strict=True):
            if i not in self.rows.fields:
                found.append(one)
                continue
            listed = np.empty(len(slots), object)
            for row in range(len(slots)):
                if one[row] is not None:
                    listed[row] = slots[row]
            found.append(listed)
        return packer.as_final(found)

    # -- sampling ----------------------------------------------------------------------------------

    def read_plan(self, view: View | None, sampler: Sampler | None = None) -> ReadPlan:
        """See `TableSampler.read_plan`. Raises Unsupported for views that compute with arrays."""
        self._check_shown(view)
        return super().read_plan(view, sampler)

    def _check_shown(self, view: View | None) -> None:
        arrays = [self.rows.schema.fields[i].name for i in self.rows.fields]
        if (
            isinstance(view, Hindsight)
            or (isinstance(view, Sequences) and view.ragged)
            or (isinstance(view, Transitions) and view.n_steps > 1 and view.reward in arrays)
        ):
            raise Unsupported(
                f"view={view!r}: a table on a device shows Sequences that are padded, and "
                "Transitions whose rewards are numbers: take a table without device="
            )

    def arrays(
        self, sampler: Sampler, batch_size: int, view: View | None, timeout_s: float | None
    ) -> Sequence[Any]:
        """See `TableSampler.arrays`: tensors of the device, but for ids."""
        deadline, left = Deadline(timeout_s), timeout_s
        while True:
            if left is not None:
                self._wait(sampler, batch_size, view, left)
            with self.held():
                try:
                    drawn = super().arrays(sampler, batch_size, view, None)
                except NotEnoughData:  # another thread has cleared it since
                    if left is None:
                        raise
                    left = deadline.left()
                    continue
                return self._shown(self.read_plan(view, self.drawing_sampler(sampler, view)), drawn)

    def _wait(self, sampler: Sampler, batch_size: int, view: View | None, timeout_s: float) -> None:
        """Wait until a batch can be drawn, while others add."""

        def begun() -> bool:
            self.check_open()
            return self.ready

        self.waiters.until(begun, "sample", lambda: "no step has been added yet", timeout_s)
        drawing = self.drawing_sampler(sampler, view)
        self.read_plan(view, drawing)  # from here on its steps wait for their successors

        def why_not() -> str | None:
            self.check_open()
            return self.why_not(drawing, batch_size)

        self.waiters.until(lambda: why_not() is None, "sample", why_not, timeout_s)

    def these(self, ids: Ids, read_plan: ReadPlan) -> dict[str, Any]:
        """See `TableSampler.these`."""
        with self.held():
            found = super().these(ids, read_plan)
            arrays = list(tree.leaves(found, read_plan.schema.structure))
            return assembled(read_plan, self._shown(read_plan, arrays))

    def _shown(self, read_plan: ReadPlan, arrays: Sequence[Array]) -> list[Any]:
        """Return the tensors of a batch, whose arrays have slots."""
        names = [field.name for field in read_plan.schema.fields]
        there = [i for i, name in enumerate(names) if name not in _ON_HOST]
        made = list(map(tensors.as_tensor, arrays))
        sent = self.rows.sent([arrays[i] for i in there])
        for i, tensor in zip(there, sent, strict=True):
            source = read_plan.outputs[i].source if i < len(read_plan.outputs) else -1
            made[i] = self.rows.gather(source, tensor) if source in self.rows.fields else tensor
        return made

    def update(self, index: object, /, **fields: Any) -> Applied:
        """See `SharedTable.update`."""
        ids, fields = one_axis(index, fields)
        if not self.ready:
            return Applied(0, len(ids))
        positions = {self.rows.schema.fields[i].name: i for i in self.rows.fields}
        with self.held():
            plain, values = {}, {}
            for name, value in named(fields):
                plain[name] = value
                if name in positions:
                    plain[name], i = self._slots(ids), positions[name]
                    field = self.rows.schema.fields[i]
                    values[i] = self._column(i, in_rows(value, len(ids), field))
                    if len(values[i]) != len(ids):
                        raise SchemaError(
                            f"field {name!r} has {len(value)} rows for {len(ids)} ids: one for each"
                        )
            applied = super().update(ids, **plain)
            with self.lock:
                there = np.flatnonzero(self.own().find(ids, steps=True) >= 0)
            _, last = np.unique(ids[there][::-1], return_index=True)
            there = there[::-1][last]  # of an id that is named twice, the last value
            self.rows.put(ids[there], {i: one[there] for i, one in values.items()})
            return applied


def resident_table(device: Any, *args: Any, **refused: object) -> ResidentTable:
    """Make the table of ``ReplayBuffer(device=...)``.

    Raises
    ------
    ConfigError
        For a device that torch does not have here.
    Unsupported
        For what such a table does not do: arguments that are not ``None``, by name.
    """
    for name, value in refused.items():
        if value:
            remedy = "give a number of steps" if name == "capacity" else f"leave {name} out"
            raise Unsupported(
                f"{name}={value!r} with device={str(device)!r}: a table on a device keeps its "
                f"newest steps, as many as capacity says, and waits for nothing: {remedy}"
            )
    return ResidentTable(*args, device=device_of(device))


def _slot_field(field: Field) -> Field:
    """Return the field of a row here."""
    if not is_array(field):
        return field
    return replace(field, shape=(), dtype=_SLOT)
