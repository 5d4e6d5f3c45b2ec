"""Checks of usual steps: functions that are compiled for a schema, without a loop over its fields.

A loop takes as long again as all that it does. What these functions do not know they leave to
`StepPacker`, and so they raise no errors of their own.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from types import CodeType
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.replay.base.row_format import RECORD_HEAD, RecordLayout
from async_loader.schema import Field, Schema

_FORMATS = {np.dtype(name).char: sign for name, sign in (
    ("bool", "?"), ("int8", "b"), ("uint8", "B"), ("int16", "h"), ("uint16", "H"),
    ("int32", "i"), ("uint32", "I"), ("int64", "q"), ("uint64", "Q"),
    ("float16", "e"), ("float32", "f"), ("float64", "d"),
)}  # fmt: skip
"""Formats of `struct` for numbers. It refuses what a field does not hold, as `FieldValidator`."""
_SOURCE = """
def pack(step, said, has_final):
    if type(step) is not dict or len(step) != {width}:
        return None
    try:
        {values}, = get(step)
        if not ({same}):
            return None
        small = pack_small({small})
    except (KeyError, *not_packed):
        return None
    flags = said
    {ends}
    return (small, ({large})), flags

def columns(batch, column):
    if type(batch) is not dict or len(batch) != {width}:
        return None
    try:
        {values}, = get(batch)
        rows = len(v0)
        if not ({long}):
            return None
    except (KeyError, TypeError, AttributeError):
        return None
    return [{columns}]
"""


class PlainSteps:
    """The functions of one schema.

    Parameters
    ----------
    schema : Schema
    layout : RecordLayout
    ends : sequence of (int, int, int)
        Of each end field: its position, the flag that it sets, and unless which one is set.
    followed : bool
        Whether the flags of an end depend on its final observation.

    Attributes
    ----------
    small : list of int
        The small fields, as they follow each other in a record.
    pack_small : callable
        ``pack_small(*values)``: their bytes; numbers as they are and arrays as bytes.
    pack : callable
        As `StepPacker.pack`; ``None`` for an unusual step.
    columns : callable
        ``columns(batch, column)``: as `StepPacker.columns`; ``None`` for an unusual batch.
        ``column(i, value)`` checks a column of another dtype than its field's.
    """

    def __init__(
        self,
        schema: Schema,
        layout: RecordLayout,
        ends: Sequence[tuple[int, int, int]],
        followed: bool,
    ) -> None:
        fields = schema.fields
        # a field without elements begins where the next one does
        small = sorted((layout.offsets[i] or 0, fields[i].nbytes, i) for i in layout.small)
        form, at = "<", RECORD_HEAD
        for offset, nbytes, i in small:
            sign = _FORMATS[fields[i].dtype.char] if is_number(fields[i]) else f"{nbytes}s"
            form, at = f"{form}{offset - at}x{sign}", offset + nbytes
        self.small = [i for *_, i in small]
        self.pack_small = struct.Struct(f"{form}{layout.stride - at}x").pack
        self.pack = self.columns = _unusual
        root: Any = schema.structure
        if isinstance(root, tree.Node) and root.kind is dict and fields:
            self._compile(schema, layout, ends, followed, len(root.keys))

    def _compile(
        self,
        schema: Schema,
        layout: RecordLayout,
        ends: Sequence[tuple[int, int, int]],
        followed: bool,
        width: int,
    ) -> None:
        """Compile the functions."""
        known: dict[str, Any] = {
            "get": _getter_of(schema), "pack_small": self.pack_small, "array": np.ndarray,
            "not_packed": (struct.error, OverflowError),
        }  # fmt: skip
        same, long, columns, packed = [], [], [], {}
        for i, field in enumerate(schema.fields):
            name, shape = f"v{i}", "".join(f"{n}, " for n in field.shape)
            known[f"dtype{i}"], known[f"types{i}"] = field.dtype, _types(field)
            is_same = f"type({name}) is array and {name}.dtype is dtype{i}"
            long.append(f"{name}.shape == (rows, {shape})")
            columns.append(f"{name} if {is_same} else column({i}, {name})")
            if is_number(field):
                packed[i] = name
                same.append(f"type({name}) in types{i}")
            else:
                packed[i] = f"{name}.tobytes()"
                same.append(f"{is_same} and {name}.shape == ({shape})")
        set_flags = [
            f"if v{i} and not flags & {unless}: flags |= {flag}" for i, flag, unless in ends
        ]
        if followed:
            set_flags.append("if flags or has_final: return None")
        source = _SOURCE.format(
            width=width,
            values=", ".join(f"v{i}" for i in range(len(schema.fields))),
            same=" and ".join(same),
            small=", ".join(packed[i] for i in self.small),
            large="".join(f"v{i}, " for i in layout.large),
            ends="\n    ".join(set_flags),
            long=" and ".join(long),
            columns=", ".join(columns),
        )
        exec(_code(source), known)
        self.pack, self.columns = known["pack"], known["columns"]


@functools.lru_cache(64)
def _code(source: str) -> CodeType:
    """Compile a source: 0.5 ms, once for all writers of a schema."""
    return compile(source, __file__, "exec")


def _unusual(*given: object) -> Any:
    """For a schema that is no dict of fields: every step is unusual."""


def is_number(field: Field) -> bool:
    """Return whether `struct` has a format for the field's values."""
    return not field.shape and field.dtype.isnative and field.dtype.char in _FORMATS


def _getter_of(schema: Schema) -> Callable[[Any], Sequence[Any]]:
    """Return what takes the values of all fields out of a dict."""
    root: Any = schema.structure
    if any(root.children):
        return schema.leaves
    if len(root.keys) == 1:
        return lambda step: (step[root.keys[0]],)
    return itemgetter(*root.keys)


def _types(field: Field) -> frozenset[type]:
    """Return the types of values that a number's place in the format takes as they are."""
    others = {"b": (), "f": (float, np.float64)}.get(field.dtype.kind, (int,))
    return frozenset((field.dtype.type, bool, *others))
