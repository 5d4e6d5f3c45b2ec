"""Checks that a value fits a field, and converts it to what a row takes.

Writes nothing, so that a value that does not fit leaves nothing half-written.

# NOTE [what fits]
A value fits when the row can hold it unchanged, apart from rounding a float to the field's
precision:

- shapes are equal; nothing is broadcast;
- any bool or integer fits an integer field that holds its value (300 does not fit uint8);
- bools fit every field, and only bools fit a bool field;
- an integer fits a float field up to the number below which every integer is exact (2**24 for
  float32);
- a float fits a float field of any width, rounded: Gymnasium's rewards are float64 and networks are
  float32, and
  every replay buffer rounds there. A finite value that would become infinite (1e300 in float32)
  does not fit;
- a float never fits an integer field, not even 3.0: data that is sometimes 3.0 is soon 3.5;
- real numbers fit complex fields; None, strings, objects, masked arrays and Python lists fit
  nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from async_loader import tensors
from async_loader.errors import SchemaError
from async_loader.replay.array_types import Array
from async_loader.schema import Field


class FieldValidator:
    """The checks of one field, with its limits computed once. See NOTE [what fits].

    Parameters
    ----------
    field : Field
    """

    __slots__ = ("_high", "_largest", "_low", "_scalar", "field")

    def __init__(self, field: Field) -> None:
        self.field = field
        self._scalar = field.dtype.kind if field.shape == () else ""
        if field.dtype.kind in "iu":
            self._low, self._high = int(np.iinfo(field.dtype).min), int(np.iinfo(field.dtype).max)
        elif field.dtype.kind in "fc":
            self._high = 1 << (np.finfo(field.dtype).nmant + 1)
            self._low = -self._high
            self._largest = float(np.finfo(field.dtype).max)

    def value(self, value: object) -> Any:
        """Return one step's value, or an equal one of the field's dtype.

        Raises
        ------
        SchemaError
            Says what was given and what the field holds.
        """
        if self._scalar and self._number_fits(value):
            return value
        array = (
            _number(value)
            if isinstance(value, bool | int | float | complex)
            else tensors.as_array(value)
        )
        if array is None:
            self._refuse_unheld(value)
            raise SchemaError(
                f"field {self.field.name!r} is {_said(value)}, not a number, a numpy array or a "
                f"tensor: give every step {_expected(self.field)} (np.asarray for lists)"
            )
        if array.shape != self.field.shape:
            raise self._wrong_shape(array.shape, self.field.shape)
        return self._converted(array)

    def column(self, value: object) -> Array:
        """As `value`, for many steps: an array or tensor ``[rows, *field.shape]``."""
        array = tensors.as_array(value)
        if array is None:
            self._refuse_unheld(value)
            raise SchemaError(
                f"field {self.field.name!r} is {_said(value)}, not a numpy array or a tensor: "
                "many steps are one array [rows, ...] per field (np.asarray for lists, add() for "
                "one step)"
            )
        if array.ndim == 0 or array.shape[1:] != self.field.shape:
            raise self._wrong_shape(array.shape, ("rows", *self.field.shape))
        return self._converted(array)

    def _refuse_unheld(self, value: object) -> None:
        """Raise SchemaError for a tensor or a masked array that cannot become an array."""
        if (text := tensors.unheld(value)) is not None:
            raise SchemaError(f"field {self.field.name!r} is {text}, {_expected(self.field)}")

    def _number_fits(self, value: object) -> bool:
        """Check a number without making an array. ``False``: not decided."""
        if isinstance(value, bool | np.bool_):
            return True
        if self._scalar == "f" and isinstance(value, float):  # numpy's float64 is one
            return -self._largest <= value <= self._largest or not math.isfinite(value)
        return self._scalar in "iuf" and type(value) is int and self._low <= value <= self._high

    def _converted(self, array: Array) -> Array:
        """Return the array, or a copy in a dtype that assigns to the field's without changing a
        value.
        """
        source, target = array.dtype, self.field.dtype
        if source == target or (source.kind == "b" and target.kind in "iufc"):
            return array
        if source.kind in "iu" and target.kind in "iufc":
            return self._within(array)
        if source.kind + target.kind in ("ff", "fc", "cc"):
            return self._rounded(array)
        raise SchemaError(
            f"field {self.field.name!r} is {source}, the schema (given, or taken from the first "
            f"step) says {target}, which does not hold every {source}: convert the value, or give "
            "a schema with another dtype"
        )

    def _within(self, array: Array) -> Array:
        if array.size and not (self._low <= array.min() and array.max() <= self._high):
            value = array.min() if array.min() < self._low else array.max()
            raise SchemaError(
                f"field {self.field.name!r} holds {value}, and {self.field.dtype} is exact for "
                "whole numbers from "
                f"{self._low} to {self._high} only: give a schema with a wider dtype"
            )
        return array

    def _rounded(self, array: Array) -> Array:
        try:
            with np.errstate(over="raise"):
                return array.astype(self.field.dtype)
        except FloatingPointError:
            raise SchemaError(
                f"field {self.field.name!r} holds a finite value beyond the largest "
                f"{self.field.dtype}, "
                f"{self._largest:.4g}: scale it, or give a schema with a wider dtype"
            ) from None

    def _wrong_shape(self, shape: tuple[int, ...], expected: tuple[int | str, ...]) -> SchemaError:
        said = "(" + ", ".join(map(str, expected)) + ("," if len(expected) == 1 else "") + ")"
        return SchemaError(
            f"field {self.field.name!r} has shape {shape}, the schema (given, or taken from the "
            f"first step) says {said}: nothing is broadcast, pass an array of that shape"
        )


def _number(value: complex) -> Array | None:
    array = np.asarray(value)
    return None if array.dtype.kind == "O" else array


def _said(value: object) -> str:
    return f"the integer {value}" if isinstance(value, int) else type(value).__name__


def _expected(field: Field) -> str:
    return (
        f"an array {list(field.shape)} of {field.dtype}"
        if field.shape
        else f"a number that {field.dtype} holds"
    )
