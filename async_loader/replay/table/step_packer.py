"""Checks steps, and packs them as records."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import SchemaError
from async_loader.replay.arguments import length_of
from async_loader.replay.array_types import Array, Bools, Ids
from async_loader.replay.base.row_format import (
    AWAITS,
    ENDS,
    FINAL,
    TERMINATED,
    TRUNCATED,
    RecordLayout,
)
from async_loader.replay.table.field_validator import FieldValidator
from async_loader.replay.table.plain_steps import PlainSteps, is_number
from async_loader.replay.table.records import Packed, Rows, plain_heads
from async_loader.schema import Schema

_NONE: Ids = np.empty(0, np.int64)


class StepPacker:
    """Checks steps of a schema, and packs them as the records of one layout. Any thread.

    Parameters
    ----------
    schema : Schema
    layout : RecordLayout, optional

    Attributes
    ----------
    plain : PlainSteps
    pack_plain : callable
        As `pack`, in a fraction of the time; ``None`` for a step that `pack` has to look at.
    fits : list of FieldValidator
    followed : list of int
        Fields that a final observation has.
    nothing : Packed
        Zeros.
    """

    def __init__(self, schema: Schema, layout: RecordLayout | None = None) -> None:
        self.schema, self.layout = schema, RecordLayout.of(schema) if layout is None else layout
        self.fits = [FieldValidator(field) for field in schema.fields]
        self.terminated, self.truncated, self.done = end_fields(schema)
        places = (self.terminated, TERMINATED, 0), (self.truncated, TRUNCATED, 0)
        every_end = (*places, (self.done, TERMINATED, TRUNCATED))
        # Fields, what they say of a step, and unless which flag. See NOTE [done].
        self._end_flags = [one for one in every_end if one[0] >= 0]
        self.followed = [i for i, field in enumerate(schema.fields) if field.next is not None]
        every = list(tree.paths(schema.structure))
        self._paths = [every[i] for i in self.followed]
        self._tops = list(dict.fromkeys(path[0] for path in self._paths))
        self._ends = [i for i, *_ in self._end_flags]
        # End fields that kernels do not read, and truncated: its steps need final observations.
        needed = [self.truncated] if self.followed and self.truncated >= 0 else []
        self._untold = needed if ends_tell(schema) else self._ends
        self._zeros: list[Any] = [np.zeros(field.shape, field.dtype) for field in schema.fields]
        self.plain = PlainSteps(schema, self.layout, self._end_flags, bool(self.followed))
        self.pack_plain = self.plain.pack
        self.nothing = self.packed(self._zeros)

    def pack(
        self, step: Mapping[str, Any], said: int = 0, has_final: bool = False
    ) -> tuple[Packed, int]:
        """Check one step. Return it packed, and its flags: those of its fields, and ``said``. See
        NOTE [done].

        Raises
        ------
        SchemaError
            Also if the episode is cut off and the observation after it is needed and missing; or
            is given and the episode goes on.
        """
        values, flags = self.values(step), said
        for i, flag, unless in self._end_flags:
            if values[i] and not flags & unless:
                flags |= flag
        return self.packed(values), self.check_end(flags, has_final)

    def packed(self, values: Sequence[Any]) -> Packed:
        """Pack checked values."""
        fields, small = self.schema.fields, []
        for i in self.plain.small:
            value = values[i]
            if not is_number(fields[i]):
                small.append(np.asarray(value, fields[i].dtype).tobytes())
            else:
                small.append(value.item() if isinstance(value, np.ndarray | np.generic) else value)
        large = (np.asarray(values[i], fields[i].dtype) for i in self.layout.large)
        return self.plain.pack_small(*small), tuple(large)

    def final(self, final_obs: object) -> Packed:
        """Check one final observation, and pack it."""
        values = self._zeros.copy()
        for i, value in zip(self.followed, self.final_values(final_obs), strict=True):
            values[i] = value
        return self.packed(values)

    def values(self, step: Mapping[str, Any]) -> list[Any]:
        """Check one step. Return its values, in the order of the schema."""
        leaves = self.schema.leaves(step)
        return [fit.value(value) for fit, value in zip(self.fits, leaves, strict=True)]

    def columns(self, batch: Mapping[str, Any]) -> list[Array]:
        """Check many steps. Return their columns, in the fields' dtypes."""
        columns: list[Array] | None = self.plain.columns(batch, self._column)
        if columns is None:
            columns = list(map(self._column, itertools.count(), self.schema.leaves(batch)))
            length_of(self.schema, columns)
        return columns

    def _column(self, i: int, value: object) -> Array:
        return self.fits[i].column(value).astype(self.schema.fields[i].dtype, copy=False)

    def rows(
        self,
        batch: Mapping[str, Any],
        said: Ids | None = None,
        final_obs: object = None,
        flagged: bool = False,
    ) -> Rows:
        """Check many steps; final observations come behind their steps.

        Parameters
        ----------
        said : int array [rows] | None
            Flags beside those that the fields ``terminated``, ``truncated`` and ``done`` hold.
        flagged : bool
            Have all flags in the heads, also those that kernels see in the fields.
        """
        columns = self.columns(batch)
        if said is None and final_obs is None:
            for i in self._ends if flagged else self._untold:
                if columns[i].tobytes().strip(b"\0"):  # a third of what `any()` takes
                    break
            else:
                return Rows(columns)
        flags = self.column_ends(columns, said)
        finals, which = None, _NONE
        if final_obs is not None:
            finals, which = self.final_columns(final_obs, flags & ENDS != 0)
        self.check_ends(flags, which)
        steps = None
        if finals is not None and len(which):
            repeats = np.ones(len(flags), np.int64)
            repeats[which] = 2
            steps = np.arange(len(flags)).repeat(repeats)
            behind = which + np.arange(1, len(which) + 1)
            columns = [column.take(steps, 0) for column in columns]
            for i, final in zip(self.followed, finals, strict=True):
                columns[i][behind] = final
            flags = flags.take(steps)
            flags[behind] = FINAL
        heads = plain_heads(len(flags))
        heads["flags"] = flags
        return Rows(columns, heads, steps)

    # -- ends of episodes --------------------------------------------------------------------------

    def check_end(self, flags: int, has_final: bool) -> int:
        """Return the flags, with AWAITS if a final observation follows. Raises as `pack`."""
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

    def column_ends(self, columns: Sequence[Array], said: Ids | None = None) -> Ids:
        """Return the flags of many steps: those of their fields, and ``said``."""
        flags = np.zeros(len(columns[0]), np.int64) if said is None else said.copy()
        for i, flag, unless in self._end_flags:
            rows = columns[i].reshape(-1).nonzero()[0]
            if unless:
                rows = rows[flags[rows] & unless == 0]
            if len(rows):
                flags[rows] |= flag
        return flags

    def check_ends(self, flags: Ids, finals: Ids) -> None:
        """As `check_end`, for many steps, of which ``finals`` have final observations: adds AWAITS
        to their flags.
        """
        if self.followed:
            if len(finals):
                flags[finals] |= AWAITS
            if np.count_nonzero(flags & (ENDS | AWAITS) == TRUNCATED):
                self.check_end(TRUNCATED, False)  # raises

    def final_values(self, final: object) -> list[Any]:
        """Check one final observation and return its values. Any thread, without the lock."""
        return [
            self.fits[i].value(value)
            for i, value in zip(self.followed, self.final_leaves(final), strict=True)
        ]

    def final_columns(self, final: object, ends: Bools) -> tuple[list[Array], Ids]:
        """Return the final observations of the steps that end an episode and have one, and which
        steps these are.

        Arrays of objects (Gymnasium's ``infos["final_obs"]``) hold ``None`` for all other steps.
        """
        leaves = self.final_leaves(final)
        for i, value in zip(self.followed, leaves, strict=True):
            ends = with_final(value, ends, self.schema.fields[i].name)
        rows = ends.nonzero()[0]
        made = []
        for i, value in zip(self.followed, leaves, strict=True):
            array, field = tensors.as_array(value), self.schema.fields[i]
            if array is None or array.dtype.kind == "O":
                array = np.empty((len(rows), *field.shape), field.dtype)
                for k, row in enumerate(rows.tolist()):
                    array[k] = self.fits[i].value(tensors.to_array(value[row]))
                made.append(array)
            else:
                made.append(self.fits[i].column(array.take(rows, 0)))
        return made, rows

    def final_leaves(self, final: Any) -> list[Any]:
        """Return what a final observation has of each field in ``followed``."""
        self._check_followed()
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

    def as_final(self, leaves: Sequence[Any]) -> Any:
        """Return a final observation of these leaves: the inverse of `final_leaves`."""
        made: dict[Any, Any] = {}
        for path, value in zip(self._paths, leaves, strict=True):
            inner = made
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = value
        return made[self._tops[0]] if len(self._tops) == 1 else made

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


def ends_tell(schema: Schema) -> bool:
    """Return whether kernels read from a step's end fields how it ends: all are whole numbers."""
    fields = (schema.fields[i] for i in end_fields(schema) if i >= 0)
    return all(one.dtype.kind in "biu" and one.codec is None for one in fields)


def with_final(value: Any, ends: Bools, name: str) -> Bools:
    """Return which of the steps that end have a final observation: all, or in a list or an array
    of objects those that are not ``None``. Raises SchemaError unless there is a row for each step.
    """
    rows = rows_of(value, f"final_obs ({name!r})")
    if rows != len(ends):
        raise SchemaError(
            f"final_obs has {rows} rows for {len(ends)} steps: one for each, whatever it is where "
            "none ends"
        )
    if tensors.is_tensor(value) or (isinstance(value, np.ndarray) and value.dtype.kind != "O"):
        return ends
    there = ends.copy()
    for row in ends.nonzero()[0].tolist():
        there[row] = value[row] is not None
    return there


def rows_of(value: Any, what: str) -> int:
    """Return the rows of an array, tensor or list. Raises SchemaError for a value without rows."""
    try:
        return len(value)
    except TypeError:
        raise SchemaError(
            f"{what} has no rows: it is an array or tensor [rows, ...], np.atleast_1d for a single "
            "number"
        ) from None
