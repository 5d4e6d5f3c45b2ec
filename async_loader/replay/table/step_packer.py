"""Checks steps, and lays them out for kernels: as sources with an address and a stride."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import SchemaError
from async_loader.replay.arguments import length_of
from async_loader.replay.array_types import Array, Bools, Ids
from async_loader.replay.base.array_address import address_of
from async_loader.replay.base.field_table import ARRAY_ADDRESS, NO_FIELDS
from async_loader.replay.base.row_format import AWAITS, ENDS, TERMINATED, TRUNCATED
from async_loader.replay.table.field_validator import FieldValidator
from async_loader.replay.table.storage import StorageLayout
from async_loader.schema import Schema

Steps = tuple[Ids, Ids, Ids, object]
"""Many checked steps, as kernels take them. A plain tuple: it is made for every call.

- the table of fields of the steps, and that of their final observations; see field_table.py
- the flags ``[steps]``: how each stands in its episode
- what these tables point to, to be kept until the steps are written
"""


class StepPacker:
    """Checks and packs the steps of one writing process.

    Used under its lock, except where a method says otherwise.

    Parameters
    ----------
    layout : StorageLayout
    base : int
        Address of row 0.
    """

    def __init__(self, layout: StorageLayout, base: int) -> None:
        self.schema = schema = layout.schema
        self.fits = [FieldValidator(field) for field in schema.fields]
        self._kinds = [
            (fit, f.dtype, f.shape, f.dtype.type if f.shape == () else None)
            for fit, f in zip(self.fits, schema.fields, strict=True)
        ]
        self.leaves = _leaves_of(schema)
        self.everything = list(range(len(schema.fields)))
        places = zip(layout.places, schema.fields, strict=True)
        self._template = np.array(
            [(base + offset, stride, f.nbytes, 0, f.nbytes) for (offset, stride), f in places],
            np.int64,
        )
        self._cells = [np.zeros((1, *field.shape), field.dtype) for field in schema.fields]
        self._one = self.fields(self.everything, self._cells)
        self.terminated, self.truncated, self.done = end_fields(schema)
        self.ends = [i for i in (self.terminated, self.truncated, self.done) if i >= 0]
        self.followed = [i for i, field in enumerate(schema.fields) if field.next is not None]
        every = list(tree.paths(schema.structure))
        self._paths = [every[i] for i in self.followed]
        self._tops = list(dict.fromkeys(path[0] for path in self._paths))
        self._final_cells = [np.zeros_like(self._cells[i]) for i in self.followed]
        self._one_final = self.fields(self.followed, self._final_cells)

    def fields(self, which: list[int], sources: Sequence[Array]) -> Ids:
        """Return the table of fields for `kernels.write`, of sources ``[steps, *shape]``."""
        return self.fields_at(which, [address_of(source) for source in sources])

    def fields_at(self, which: list[int], addresses: list[int]) -> Ids:
        """As `fields`, of sources with known addresses."""
        made = self._template.copy() if which is self.everything else self._template[which]
        for i, address in enumerate(addresses):
            made[i, ARRAY_ADDRESS] = address
        return made

    def values(self, step: Mapping[str, Any]) -> list[Any]:
        """Check one step and return its values. Any thread, without the lock."""
        values = self.leaves(step)
        for i, (fit, dtype, shape, scalar) in enumerate(self._kinds):
            value = values[i]
            kind = type(value)
            if kind is not scalar and (
                kind is not np.ndarray or value.dtype is not dtype or value.shape != shape
            ):
                values[i] = fit.value(value)
        return values

    def put(self, values: Sequence[Any]) -> Ids:
        """Lay out one step. Return its table of fields for `kernels.write`."""
        for cell, value in zip(self._cells, values, strict=True):
            cell[0] = value
        return self._one

    def put_final(self, values: Sequence[Any]) -> Ids:
        """Lay out one final observation. Return its table of fields."""
        for cell, value in zip(self._final_cells, values, strict=True):
            cell[0] = value
        return self._one_final

    def columns(self, batch: Mapping[str, Any]) -> list[Array]:
        """Check many steps.

        Return their columns, contiguous, in the fields' dtypes. Any thread, without the lock.
        """
        columns = self.leaves(batch)
        for i, (_, dtype, shape, _) in enumerate(self._kinds):
            value = columns[i]
            if (
                type(value) is not np.ndarray
                or not value.ndim
                or value.dtype is not dtype
                or value.shape[1:] != shape
                or not value.flags.c_contiguous
            ):
                columns[i] = self.column(i, value)
        length_of(self.schema, columns)
        return columns

    def column(self, i: int, value: object) -> Array:
        """As `columns`, for one field."""
        fit, dtype, *_ = self._kinds[i]
        return np.ascontiguousarray(fit.column(value), dtype)

    def steps(self, batch: Mapping[str, Any], final_obs: object, said: Ids | None) -> Steps:
        """Check many steps. Any thread, without the lock.

        Parameters
        ----------
        said : int64 array [rows] | None
            Flags beside those that the fields ``terminated``, ``truncated`` and ``done`` hold.
        """
        columns = self.columns(batch)
        if said is None and final_obs is None and not self.may_end(columns):
            flags = np.zeros(len(columns[0]), np.int64)
            return self.fields(self.everything, columns), NO_FIELDS, flags, columns
        flags = self.column_ends(columns, said)
        final, finals, has_final = NO_FIELDS, None, np.zeros(len(flags), np.bool_)
        if final_obs is not None:
            finals, has_final = self.final_columns(final_obs, flags & ENDS != 0)
            final = self.fields(self.followed, finals)
        flags = self.check_ends(flags, has_final)
        return self.fields(self.everything, columns), final, flags, (columns, finals)

    # -- ends of episodes --------------------------------------------------------------------------

    def flags(self, values: Sequence[Any], has_final: bool, said: int = 0) -> int:
        """Return the flags of one step: those of its fields, and ``said``. See NOTE [done].

        Raises
        ------
        SchemaError
            If the episode is cut off and the observation after it is needed and missing; or is
            given and the episode goes on.
        """
        flags = said
        if self.terminated >= 0 and values[self.terminated]:
            flags |= TERMINATED
        if self.truncated >= 0 and values[self.truncated]:
            flags |= TRUNCATED
        if self.done >= 0 and values[self.done] and not flags & TRUNCATED:
            flags |= TERMINATED
        return self.check_end(flags, has_final)

    def check_end(self, flags: int, has_final: bool) -> int:
        """Return the flags, with AWAITS if a final observation follows. Raises as `flags`."""
        if not self.followed:
            return flags
        if has_final:
            if not flags & ENDS:
                raise SchemaError(
                    "final_obs is given for a step that is neither terminated nor truncated: leave "
                    "it out"
                )
            return flags | AWAITS
        if flags & TRUNCATED and not flags & TERMINATED:
            raise SchemaError(
                "a truncated step needs final_obs=..., the observation after it: its value is "
                "bootstrapped from that "
                "(without it, end_episode() of a writer gives up the last step)"
            )
        return flags

    def may_end(self, columns: Sequence[Array]) -> bool:
        """Return whether a step of these columns may end its episode."""
        # a third of what `any()` takes
        return any(columns[i].tobytes().strip(b"\0") for i in self.ends)

    def column_ends(self, columns: Sequence[Array], said: Ids | None = None) -> Ids:
        """Return the flags of many steps: those of their fields, and ``said``."""
        flags = np.zeros(len(columns[0]), np.int64) if said is None else said
        for place, flag in ((self.terminated, TERMINATED), (self.truncated, TRUNCATED)):
            if place >= 0:
                flags = flags | _says(columns[place]) * flag
        if self.done >= 0:
            flags = flags | (_says(columns[self.done]) & (flags & TRUNCATED == 0)) * TERMINATED
        return flags

    def check_ends(self, flags: Ids, has_final: Bools) -> Ids:
        """As `check_end`, for many steps."""
        if self.followed and flags.any():
            # of many steps few end an episode
            some = np.flatnonzero((flags != 0) | has_final)
            for value, has in set(zip(flags[some].tolist(), has_final[some].tolist(), strict=True)):
                self.check_end(value, has)
            flags[has_final] |= AWAITS
        return flags

    def final_values(self, final: object) -> list[Any]:
        """Check one final observation and return its values. Any thread, without the lock."""
        self._check_followed()
        return [
            self.fits[i].value(value)
            for i, value in zip(self.followed, self._final_leaves(final), strict=True)
        ]

    def final_columns(self, final: object, ends: Bools) -> tuple[list[Array], Bools]:
        """Return the final observations ``[rows, ...]`` of steps that end an episode, and which
        these are.

        Arrays of objects (Gymnasium's ``infos["final_obs"]``) hold ``None`` for all other steps.
        """
        self._check_followed()
        count = len(ends)
        made = []
        for i, value in zip(self.followed, self._final_leaves(final), strict=True):
            field = self.schema.fields[i]
            rows = rows_of(value, f"final_obs ({field.name!r})")
            if rows != count:
                raise SchemaError(
                    f"final_obs has {rows} rows for {count} steps: one for each, whatever it is "
                    "where none ends"
                )
            whole = np.zeros((count, *field.shape), field.dtype)
            array = tensors.as_array(value)
            if array is None or array.dtype.kind == "O":
                ends = ends & np.array([one is not None for one in value], np.bool_)
                for row in np.flatnonzero(ends).tolist():
                    whole[row] = self.fits[i].value(tensors.to_array(value[row]))
            else:
                whole[ends] = self.fits[i].column(array[ends])
            made.append(whole)
        return made, ends

    def _final_leaves(self, final: Any) -> list[Any]:
        whole = {self._tops[0]: final} if len(self._tops) == 1 else final
        found = []
        for i, path in zip(self.followed, self._paths, strict=True):
            value = whole
            for key in path:
                try:
                    value = value[key]
                except (KeyError, TypeError, IndexError):
                    names = ", ".join(self.schema.fields[i].name for i in self.followed)
                    raise SchemaError(
                        f"final_obs lacks {self.schema.fields[i].name!r}: it is built like a "
                        f"step's {names}"
                    ) from None
            found.append(value)
        return found

    def _check_followed(self) -> None:
        if not self.followed:
            raise SchemaError(
                "final_obs is given, and no field of the schema has a next=... that would show it: "
                "leave it out"
            )


# NOTE [done]
# Gym's `done` was "terminated or truncated", and most programs without `truncated` mean
# "terminated" by it. So `done` ends the episode, also beside `terminated`; it counts as terminated
# unless the same step is said to be truncated.


def end_fields(schema: Schema) -> tuple[int, int, int]:
    """Return the positions of `terminated`, `truncated` and `done`; -1 for fields that the schema
    lacks. See NOTE [done].

    Each is one number, which may have a shape: TorchRL's are ``[1]``.
    """
    places = {field.name: i for i, field in enumerate(schema.fields)}
    return places.get("terminated", -1), places.get("truncated", -1), places.get("done", -1)


def _says(column: Array) -> Bools:
    """Return whether each step of an end field says that its episode ends."""
    says: Bools = column.reshape(len(column)) != 0
    return says


def rows_of(value: Any, what: str) -> int:
    """Return the rows of an array, tensor or list. Raises SchemaError for a value without rows."""
    try:
        return len(value)
    except TypeError:
        raise SchemaError(
            f"{what} has no rows: it is an array or tensor [rows, ...], np.atleast_1d for a single "
            "number"
        ) from None


def _leaves_of(schema: Schema) -> Callable[[Any], list[Any]]:
    root = schema.structure
    return (
        _Flat(schema, root.keys)
        if isinstance(root, tree.Node) and root.kind is dict and not any(root.children)
        else schema.leaves
    )


class _Flat:
    """The leaves of a step without nested fields; faster than `Schema.leaves`."""

    def __init__(self, schema: Schema, keys: Sequence[str]) -> None:
        self._schema = schema
        self._keys = keys

    def __call__(self, step: Mapping[str, Any]) -> list[Any]:
        if len(step) == len(self._keys):
            with contextlib.suppress(KeyError):
                return [step[key] for key in self._keys]
        return self._schema.leaves(step)
