"""What a step is: fields, dtypes, shapes, and the packed row made of them. Holds no data."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import SchemaError

RESERVED = ("index", "weight", "stream", "redelivered")


def supported(dtype: np.dtype[Any]) -> bool:
    """Whether rows of this dtype can live in shared memory: bool, integers, floats, complex, native byte order."""
    return dtype.kind in "biufc" and dtype.isnative and dtype.char not in "gG"


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a step.

    Parameters
    ----------
    name : str
        Dotted path within the step, as in ``obs.pixels``.
    shape : tuple of int
        Of one step, without the batch dimension.
    dtype : dtype-like
        bool, integer, float or complex in native byte order.
    stack : int
        A replay table stores one value a step and delivers the last ``stack`` of them, ``[stack, *shape]``, newest last.
    next : str, optional
        A replay table delivers the value of the following step too, under this top-level name (nested as this one is).
    padding : "repeat" | "zero"
        What fills a stack before the episode's first step: that step's value, or zeros.

    Raises
    ------
    SchemaError
        For a dtype that cannot live in shared memory (object, string, datetime, long double, foreign byte order).
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] = np.dtype(np.float32)  # noqa: RUF009 - dtypes are immutable
    stack: int = 1
    next: str | None = None
    padding: str = "repeat"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise SchemaError(
                f"Field({self.name!r}, ...): a field's first argument is its name, as in Field('obs', (4,), 'float32')"
            )
        object.__setattr__(self, "shape", _shape(self.name, self.shape))
        if self.dtype is None:  # which numpy takes for float64
            raise SchemaError(f"field {self.name!r} has dtype None: give one, as in 'float32'")
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        if not supported(self.dtype):
            raise SchemaError(
                f"field {self.name!r} has dtype {self.dtype}, which shared memory cannot hold: "
                "use bool, an integer, float or complex dtype in native byte order"
            )
        if any(n < 0 for n in self.shape):
            raise SchemaError(f"field {self.name!r} has shape {self.shape}: dimensions are at least 0")
        if isinstance(self.stack, bool) or not isinstance(self.stack, int) or self.stack < 1:
            raise SchemaError(f"field {self.name!r} has stack={self.stack!r}: it is the number of values, 1 or more")
        if self.next is not None and (not isinstance(self.next, str) or not self.next):
            raise SchemaError(f"field {self.name!r} has next={self.next!r}: it is the name of the following step's value")
        if self.padding not in ("repeat", "zero"):
            raise SchemaError(f"field {self.name!r} has padding={self.padding!r}: it is 'repeat' or 'zero'")

    @property
    def nbytes(self) -> int:
        """Bytes of one step's value."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def linked(self) -> bool:
        """Whether delivering it takes more than the step itself."""
        return self.stack > 1 or self.next is not None

    def __str__(self) -> str:
        return f"{self.name} {self.dtype.name}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of a step and how they nest.

    Attributes
    ----------
    structure : Structure
        How `rebuild` nests the leaves.
    fields : tuple of Field
        One per leaf, in the structure's order.
    """

    structure: tree.Structure
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        if not self.fields:
            raise SchemaError("a schema has at least one field, this one has none")

    @classmethod
    def of(cls, spec: Any) -> Schema:
        """From a schema, a list of fields, or a (nested) dict of ``name: Field | (shape, dtype) | dtype``."""
        if isinstance(spec, Schema):
            return spec
        if isinstance(spec, Mapping):
            structure = _spec_structure(spec)
            values = list(_spec_leaves(spec))
            names = list(tree.names(structure))
            return cls(structure, tuple(_field(n, v) for n, v in zip(names, values, strict=True)))
        fields = tuple(spec)
        if not fields or not all(isinstance(f, Field) for f in fields):
            raise SchemaError(f"a schema is a dict or a list of Field, not {spec!r}")
        twice = sorted({f.name for f in fields if [g.name for g in fields].count(f.name) > 1})
        if twice:
            raise SchemaError(f"field {twice[0]!r} is there more than once: give every field a name of its own")
        return cls(tree.Node(dict, tuple(f.name for f in fields), (None,) * len(fields)), fields)

    @classmethod
    def of_step(cls, step: Any) -> Schema:
        """From one step of numbers, numpy arrays and tensors; Python floats are float32, ints int64.

        Raises
        ------
        SchemaError
            Names the leaf that is none of these.
        """
        structure = tree.structure_of(step)
        names = tree.names(structure)
        values = tree.leaves(step, structure)
        return cls(structure, tuple(_step_field(n, v) for n, v in zip(names, values, strict=True)))

    def leaves(self, value: Any) -> list[Any]:
        """The leaves of a step (or batch) built like this schema.

        Raises
        ------
        SchemaError
            If it is built differently.
        """
        try:
            return list(tree.leaves(value, self.structure))
        except tree.Misfit as error:
            raise SchemaError(f"the step does not fit the schema ({self}): {error}") from None

    def rebuild(self, values: Iterable[Any]) -> Any:
        return tree.rebuild(self.structure, values)

    def with_field(self, name: str, dtype: Any, shape: tuple[int, ...] = ()) -> Schema:
        """This schema with one more top-level field at the end."""
        root = self.structure
        if root is None or root.kind is not dict or name in root.keys:
            raise SchemaError(f"cannot add {name!r} to ({self}): steps are dicts, and {name!r} is a reserved name")
        node = tree.Node(dict, (*root.keys, name), (*root.children, None))
        return Schema(node, (*self.fields, Field(name, shape, np.dtype(dtype))))

    @property
    def nbytes(self) -> int:
        """Bytes of one step without padding."""
        return sum(field.nbytes for field in self.fields)

    def __str__(self) -> str:
        return ", ".join(map(str, self.fields))


@dataclass(frozen=True, slots=True)
class PackedRow:
    """Where each field lies within one packed row.

    Natural alignment: larger items first, and a stride that is a multiple of 8, so that strided views of any
    dtype are legal for numpy and torch alike, on the CPU and on a device.

    Attributes
    ----------
    offsets : tuple of int
        Bytes from the row's start, one per field, in the fields' order.
    stride : int
        Bytes from row to row.
    """

    offsets: tuple[int, ...]
    stride: int

    @classmethod
    def of(cls, fields: Iterable[Field]) -> PackedRow:
        listed = list(fields)
        offsets = [0] * len(listed)
        end = 0
        for i in sorted(range(len(listed)), key=lambda i: -listed[i].dtype.itemsize):
            end = _align(end, min(8, listed[i].dtype.itemsize))
            offsets[i] = end
            end += listed[i].nbytes
        # complex128 comes first and needs a stride of whole items; for all others 8 does.
        unit = max([8, *(field.dtype.itemsize for field in listed)])
        return cls(tuple(offsets), max(unit, _align(end, unit)))


def _shape(name: str, shape: Any) -> tuple[int, ...]:
    try:
        return (int(shape),) if isinstance(shape, int | np.integer) else tuple(operator.index(n) for n in shape)
    except TypeError:
        raise SchemaError(f"field {name!r} has shape {shape!r}: a shape is a tuple of whole numbers, () for one number") from None


def _align(n: int, to: int) -> int:
    return -(-n // to) * to


def _spec_structure(spec: Mapping[str, Any]) -> tree.Structure:
    children = (_spec_structure(v) if isinstance(v, Mapping) else None for v in spec.values())
    return tree.Node(dict, tuple(spec), tuple(children))


def _spec_leaves(spec: Mapping[str, Any]) -> Iterator[Any]:
    for value in spec.values():
        if isinstance(value, Mapping):
            yield from _spec_leaves(value)
        else:
            yield value


def _field(name: str, value: Any) -> Field:
    if isinstance(value, Field):
        if value.name not in ("", name, name.rpartition(".")[2]):
            raise SchemaError(f"the field under {name!r} is named {value.name!r}: give it one name, as in Field({name!r}, ...)")
        return replace(value, name=name)
    if value is None:
        raise SchemaError(f"field {name!r}: None is not a Field, a (shape, dtype) or a dtype")
    try:
        if isinstance(value, tuple) and len(value) == 2 and not isinstance(value[0], str):
            return Field(name, value[0], np.dtype(value[1]))
        return Field(name, (), np.dtype(value))
    except TypeError as error:
        raise SchemaError(f"field {name!r}: {value!r} is not a Field, a (shape, dtype) or a dtype") from error


def _step_field(name: str, value: Any) -> Field:
    known = kind_of(value)
    if known is None:
        raise SchemaError(f"field {name!r} is {type(value).__name__}, not a number, a numpy array or a tensor")
    return Field(name, *known)


_PYTHON_NUMBERS = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float32)}


def kind_of(value: Any) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Shape and dtype of a number, numpy array or CPU tensor; ``None`` for anything else."""
    if isinstance(value, np.ndarray | np.generic):
        return value.shape, value.dtype
    number = _PYTHON_NUMBERS.get(type(value))
    if number is not None:
        return (), number
    from async_loader import tensors

    if tensors.is_tensor(value):
        dtype = tensors.numpy_dtype(value.dtype)
        return None if dtype is None else (tuple(value.shape), dtype)
    return None
