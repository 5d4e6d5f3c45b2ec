"""The schema of a step: fields, dtypes, shapes, and the layout of a packed row."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeGuard, Union, get_args

import numpy as np
import numpy.typing as npt

from async_loader import spaces, tree
from async_loader.errors import SchemaError
from async_loader.name_hints import SAY, explain_wrong_names, hint
from async_loader.public_names import set_public_names
from async_loader.validation import MOST

__all__ = [
    "RESERVED",
    "Codec",
    "Field",
    "Padding",
    "Schema",
    "SchemaLike",
]
set_public_names(globals())

# keywords of calls that add steps, beside the fields
_OF_ADDING = ("stream", "priority", "timeout_s", "final_obs")

_INSTEAD_OF_TEXT = (
    "; text is left out, or stored as a number: its place in a list of texts, or its characters as "
    "uint8, padded to one length"
)
RESERVED = ("index", "weight", "stream", "redelivered")
END_FIELDS = ("terminated", "truncated", "done")
"""Fields of a table's steps that end episodes: one number each."""


def supported(dtype: np.dtype[Any]) -> bool:
    """Whether rows of this dtype can live in shared memory: bool, integers, floats, complex,
    native byte order.
    """
    return dtype.kind in "biufc" and dtype.isnative and dtype.char not in "gG"


Padding = Literal["repeat", "zero"]
Codec = Literal["lz4"]
Scope = Literal["step", "group"]

_AXES = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
"""Of an array of numpy."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Field:
    """One array of a step: ``{"obs": Field((84, 84), "uint8", stack=4, next="next_obs")}``.

    Parameters
    ----------
    shape : int | sequence of int
        Shape of one step's value, without the batch dimension; ``()`` is one number.
    dtype : dtype-like
        bool, integer, float or complex in native byte order.
    stack : int
        A replay table stores one value per step and delivers the last ``stack`` of them,
        ``[stack, *shape]``, newest last.
    next : str, optional
        A replay table delivers the value of the following step too, under this top-level name
        (nested as this one is).
    padding : "repeat" | "zero"
        How a stack is filled before the episode's first step: with that step's value, or zeros.
    codec : "lz4", optional
        A replay table keeps the values compressed, each for itself. Needs the extra ``codec``.
    scope : "step" | "group"
        A table of `Rollouts` has one value for a whole group.
    name : str
        The key of a mapping is the name, and a different one is refused; once the field is part of
        a schema, ``name`` is the dotted path within the step, as in ``obs.pixels``.

    Raises
    ------
    SchemaError
        For a dtype that cannot live in shared memory (object, string, datetime, long double,
        foreign byte order), for a name in place of the shape, and for an unknown codec.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stack: int
    next: str | None
    padding: Padding
    codec: Codec | None
    scope: Scope
    name: str

    @explain_wrong_names
    def __init__(
        self,
        shape: int | Sequence[int] = (),
        dtype: npt.DTypeLike = "float32",
        *,
        stack: int = 1,
        next: str | None = None,
        padding: Padding = "repeat",
        codec: Codec | None = None,
        scope: Scope = "step",
        name: str = "",
    ) -> None:
        if not isinstance(name, str):
            raise SchemaError(f"Field(name={name!r}): a name is text, as in name='obs'")
        what = f"field {name!r}" if name else "a Field"
        values = {
            "shape": _shape(what, shape),
            "dtype": _dtype(what, dtype),
            "stack": stack,
            "next": next,
            "padding": padding,
            "codec": codec,
            "scope": scope,
            "name": name,
        }
        if isinstance(stack, bool) or not isinstance(stack, int) or not 0 < stack <= MOST:
            raise SchemaError(f"{what} has stack={stack!r}: it is a Python int, 1 to {MOST:,}")
        if next is not None and (not isinstance(next, str) or not next):
            raise SchemaError(
                f"{what} has next={next!r}: it is the name of the following step's value"
            )
        if padding not in get_args(Padding):
            raise SchemaError(f"{what} has padding={padding!r}: it is 'repeat' or 'zero'")
        if codec not in (None, *get_args(Codec)):
            known = " or ".join(map(repr, get_args(Codec)))
            raise SchemaError(f"{what} has codec={codec!r}: it is {known}, or None")
        if scope not in get_args(Scope):
            raise SchemaError(f"{what} has scope={scope!r}: it is 'step' or 'group'")
        for key, value in values.items():
            object.__setattr__(self, key, value)

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

    def __repr__(self) -> str:
        plain = {
            "stack": 1,
            "next": None,
            "padding": "repeat",
            "codec": None,
            "scope": "step",
            "name": "",
        }
        given = [
            f"{key}={getattr(self, key)!r}"
            for key, usual in plain.items()
            if getattr(self, key) != usual
        ]
        return f"Field({', '.join([repr(self.shape), repr(self.dtype.name), *given])})"


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
        for field in self.fields:
            axes = len(field.shape) + (field.stack > 1) + 1
            if axes > _AXES:
                raise SchemaError(
                    f"field {field.name!r} has {axes} axes with those of its batch and stack, an "
                    f"array {_AXES} at most: join some, as by reshape"
                )
        if not self.fields:
            raise SchemaError("a schema has at least one field, this one has none")

    @classmethod
    def of(cls, spec: SchemaLike) -> Schema:
        """Convert any supported description of a schema.

        Parameters
        ----------
        spec : Schema | Gymnasium space | (nested) mapping
            The values of a mapping: `Field`, ``(shape, dtype)``, a dtype, a Gymnasium space (Box,
            Discrete, MultiDiscrete, MultiBinary, Dict, Tuple), or an example: an array or a tensor
            of one step.

        Raises
        ------
        SchemaError
            Names the value of an unsupported kind.
        """
        if isinstance(spec, Schema):
            return spec
        if isinstance(spec, Mapping) or spaces.is_space(spec):
            structure, values = _spec(spec)
            names = tree.names(structure)
            return cls(structure, tuple(_field(n, v) for n, v in zip(names, values, strict=True)))
        raise SchemaError(
            f"a schema is a dict of fields, not {spec!r}: as in {{'obs': env.observation_space, "
            "'action': env.action_space, 'reward': 'float32', 'terminated': 'bool'}"
        )

    @classmethod
    def of_step(cls, step: Any) -> Schema:
        """Derive a schema from one step of numbers, numpy arrays and tensors.

        A single float64 number is float32, whether of Python or of numpy, and a Python int int64.

        Raises
        ------
        SchemaError
            Names the leaf of an unsupported kind.
        """
        structure = tree.structure_of(step)
        names = tree.names(structure)
        values = tree.leaves(step, structure)
        return cls(structure, tuple(_step_field(n, v) for n, v in zip(names, values, strict=True)))

    def leaves(self, value: Any) -> list[Any]:
        """Return the leaves of a step (or batch) that is nested like this schema.

        Raises
        ------
        SchemaError
            If it is nested differently.
        """
        try:
            return list(tree.leaves(value, self.structure))
        except tree.Misfit as error:
            raise SchemaError(
                f"the step does not fit the schema ({self}): {error}{self._unknown(value)}"
            ) from None

    def _unknown(self, value: object) -> str:
        """Describe a field of the step that the schema lacks, as the end of a message."""
        known = [field.name for field in self.fields]
        words = (
            [word for word in value if isinstance(word, str) and word not in known]
            if isinstance(value, Mapping)
            else []
        )
        made = {field.next for field in self.fields if field.next is not None}
        for word in words:
            if word in made:
                return (
                    f"; {word!r} is read from the step that follows (next={word!r}): leave it out, "
                    "and give final_obs= with an episode's last step"
                )
            if word in SAY:
                said = hint(word, [*known, *_OF_ADDING])
                return (
                    f"; {word!r} is no field of it: "
                    f"{said if said.startswith('say ') else hint(word, known)}"
                )
        return ""

    def __repr__(self) -> str:
        return f"<Schema {self}>"

    def rebuild(self, values: Iterable[Any]) -> Any:
        return tree.rebuild(self.structure, values)

    def with_field(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...] = ()) -> Schema:
        """Return this schema with one more top-level field at the end."""
        root = self.structure
        if root is None or root.kind is not dict or name in root.keys:
            raise SchemaError(
                f"cannot add {name!r} to ({self}): steps are dicts, and {name!r} is a reserved name"
            )
        node = tree.Node(dict, (*root.keys, name), (*root.children, None))
        return Schema(node, (*self.fields, Field(shape, dtype, name=name)))

    @property
    def nbytes(self) -> int:
        """Bytes of one step without padding."""
        return sum(field.nbytes for field in self.fields)

    def __str__(self) -> str:
        return ", ".join(map(str, self.fields))


def tops_of(schema: Schema) -> list[str]:
    """Return the top-level name of each field: a dotted name may be one key, or several."""
    return [str(path[0]) if path else "value" for path in tree.paths(schema.structure)]


def samples_of(schema: Schema, arrays: Sequence[Any]) -> list[Any]:
    """Return the rows of a batch as samples; ``arrays [rows, ...]``: one for each field."""
    return [schema.rebuild([array[i] for array in arrays]) for i in range(len(arrays[0]))]


# Union: names above may be strings at run time.
SchemaLike: TypeAlias = Union[Schema, spaces.Space, Mapping[str, Any]]  # noqa: UP007
"""Accepted by `Schema.of`. Values of a mapping are Any: a dict of a Field and a dtype is
dict[str, object] to type checkers.
"""


@dataclass(frozen=True, slots=True)
class PackedRow:
    """Layout of the fields within one packed row.

    Natural alignment: larger items first, and a stride that is a multiple of 8, so that strided
    views of any dtype are legal for numpy and torch alike, on the CPU and on a device.

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
        # complex128 comes first and needs a stride that is a multiple of its size; 8 is enough for
        # all others.
        unit = max([8, *(field.dtype.itemsize for field in listed)])
        return cls(tuple(offsets), max(unit, _align(end, unit)))


def _shape(what: str, shape: Any) -> tuple[int, ...]:
    if isinstance(shape, str):
        raise SchemaError(
            f"Field({shape!r}, ...): the shape comes first, and a field's name is its key, as in "
            f"{{'obs': Field((4,), 'float32')}}; one number of a dtype is Field(dtype='float32')"
        )
    try:
        if isinstance(shape, bool):
            raise TypeError("a bool is not a size")
        sizes = (shape,) if isinstance(shape, int | np.integer) else shape
        listed = tuple(operator.index(n) for n in sizes)
    except TypeError:
        raise SchemaError(
            f"{what} has shape {shape!r}: a shape is a tuple of whole numbers, () for one number; "
            "of a space say space.shape, and nest dicts, with a Field for each array"
        ) from None
    if any(n < 0 for n in listed):
        raise SchemaError(f"{what} has shape {listed}: dimensions are at least 0")
    if math.prod(listed) > MOST:
        raise SchemaError(f"{what} has shape {listed}: an array has at most {MOST:,} elements")
    return listed


def _dtype(what: str, dtype: object) -> np.dtype[Any]:
    """See NOTE [dtypes]."""
    if not _says_dtype(dtype):  # numpy reads None as float64
        raise SchemaError(f"{what} has dtype {dtype!r}: give one of numpy's, as in 'float32'")
    try:
        made: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise SchemaError(
            f"dtype {dtype!r} of {what} is unknown: use bool, int64, uint8, float32 or another of "
            "numpy's"
        ) from None
    if not supported(made):
        raise SchemaError(
            f"{what} has dtype {made}, which shared memory cannot hold: "
            "use bool, an integer, float or complex dtype in native byte order"
            f"{_INSTEAD_OF_TEXT * (made.kind in 'USO')}"
        )
    return made


# NOTE [dtypes]: np.dtype() accepts any object with an attribute dtype, such as an environment's
# space or an array, and drops its shape. So only plain dtypes are passed to it.
def _says_dtype(value: object) -> TypeGuard[npt.DTypeLike]:
    if isinstance(value, type):
        return issubclass(value, np.generic | bool | int | float | complex) or not hasattr(
            value, "dtype"
        )
    return isinstance(value, str | np.dtype | list | tuple)


def _align(n: int, to: int) -> int:
    return -(-n // to) * to


def _spec(spec: object) -> tuple[tree.Structure, list[Any]]:
    """Return the structure of a nested spec, and its leaves."""
    found = spaces.within(spec) if spaces.is_space(spec) else None
    if isinstance(spec, Mapping):
        found = dict, tuple(spec), tuple(spec.values())
    if found is None:
        return None, [spec]
    kind, keys, values = found
    parts = list(map(_spec, values))
    node = tree.Node(kind, keys, tuple(structure for structure, _ in parts))
    return node, [leaf for _, leaves in parts for leaf in leaves]


def _field(name: str, value: object) -> Field:
    if isinstance(value, Field):
        if value.name not in ("", name, name.rpartition(".")[2]):
            raise SchemaError(
                f"the field under {name!r} is named {value.name!r}: its key is its name, leave out "
                f"name={value.name!r}"
            )
        return replace(value, name=name)
    if spaces.is_space(value):
        return Field(*spaces.kind_of(name, value), name=name)
    if isinstance(value, tuple | list) and len(value) == 2 and not isinstance(value[0], str):
        return Field(value[0], value[1], name=name)
    if _says_dtype(value) and not isinstance(value, list | tuple):
        return Field((), value, name=name)
    known = None if isinstance(value, bool | int | float) else kind_of(value)
    if known is None:
        raise SchemaError(
            f"field {name!r}: {value!r} is not a Field, a (shape, dtype), a dtype, a Gymnasium "
            "space, an array or a tensor"
        )
    return Field(*known, name=name)


def _step_field(name: str, value: object) -> Field:
    known = kind_of(value)
    if known is None:
        from async_loader import tensors

        text = f"{type(value).__name__}, not a number, a numpy array or a tensor"
        raise SchemaError(f"field {name!r} is {tensors.unheld(value) or text}")
    shape, dtype = known
    if not shape and dtype == np.float64 and isinstance(value, np.ndarray | np.generic):
        dtype = _PYTHON_NUMBERS[float]  # which numpy.float64 is a kind of: some rewards are one
    return Field(shape, dtype, name=name)


_PYTHON_NUMBERS = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float32)}


def kind_of(value: object) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Return shape and dtype of a number, numpy array or CPU tensor; ``None`` for anything else,
    and for a masked array.
    """
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return value.shape, value.dtype
    number = _PYTHON_NUMBERS.get(type(value))
    if number is not None:
        return (), number
    from async_loader import tensors

    if isinstance(value, np.ndarray):
        return None if tensors.is_masked(value) else (value.shape, value.dtype)
    if tensors.is_tensor(value):
        dtype = tensors.numpy_dtype(value.dtype)
        return None if dtype is None or value.is_nested else (tuple(value.shape), dtype)
    return None
