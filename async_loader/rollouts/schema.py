"""What a group holds: fields of its members, ragged or of one shape, and fields of the group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from async_loader import tensors
from async_loader.errors import SchemaError
from async_loader.name_hints import explain_wrong_names, hint
from async_loader.public_names import set_public_names
from async_loader.schema import Field, Schema

__all__ = ["Ragged"]
set_public_names(globals())

Array = npt.NDArray[Any]
Scope = Literal["member", "group"]
OF_BATCHES = (
    "offsets", "group", "index", "lag", "micro", "mask", "redelivered", "prompt_index",
)  # fmt: skip
"""What batches have beside the fields."""


@dataclass(frozen=True, slots=True, init=False)
class Ragged:
    """A field of values of any length, as the tokens of a rollout: ``Ragged("int32")``.

    All ragged fields of one member have the same length.

    Parameters
    ----------
    dtype : dtype-like
        bool, integer, float or complex.
    shape : int | sequence of int
        Of each value: ``Ragged("uint8", (48, 8))`` has 48 x 8 numbers a token.
    scope : "member" | "group"
        Whether each member of a group has its own, or all have one, as the tokens of the prompt.

    Raises
    ------
    SchemaError
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    scope: Scope

    @explain_wrong_names
    def __init__(
        self,
        dtype: npt.DTypeLike,
        shape: int | Sequence[int] = (),
        *,
        scope: Scope = "member",
    ) -> None:
        field = Field(shape, dtype)
        if scope not in get_args(Scope):
            raise SchemaError(f"Ragged(scope={scope!r}): it is 'member' or 'group'")
        for name, value in (("dtype", field.dtype), ("shape", field.shape), ("scope", scope)):
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class GroupSchema:
    """The fields of a group.

    Attributes
    ----------
    fields : dict of str to Ragged | Field
    ragged, small, group : tuple of str
        Fields of members of any length, and of one shape; fields of the group.
    """

    fields: dict[str, Ragged | Field]
    ragged: tuple[str, ...]
    small: tuple[str, ...]
    group: tuple[str, ...]

    @classmethod
    def of(cls, spec: object) -> GroupSchema:
        """Convert a dict of fields. Raises SchemaError."""
        if isinstance(spec, GroupSchema):
            return spec
        if not isinstance(spec, Mapping) or not spec:
            raise SchemaError(
                f"the schema of Rollouts is a dict of fields, not {spec!r}: as in "
                "{'tokens': Ragged('int32'), 'reward': 'float32'}"
            )
        fields: dict[str, Ragged | Field] = {}
        for name, value in spec.items():
            if not isinstance(name, str) or not name.isidentifier() or name in OF_BATCHES:
                raise SchemaError(
                    f"field {name!r}: a field is named by a word, and batches have "
                    f"{', '.join(OF_BATCHES)} of their own: give another name"
                )
            fields[name] = (
                value if isinstance(value, Ragged) else Schema.of({name: value}).fields[0]
            )
            if isinstance(value, Field) and (value.linked or value.codec is not None):
                raise SchemaError(
                    f"field {name!r} of a group has a stack, a next or a codec: leave them out"
                )
        return cls(
            fields,
            tuple(n for n, f in fields.items() if isinstance(f, Ragged) and f.scope == "member"),
            tuple(n for n, f in fields.items() if isinstance(f, Field) and f.scope != "group"),
            tuple(n for n, f in fields.items() if f.scope == "group"),
        )

    def plain(self) -> dict[str, dict[str, Any]]:
        """Return it as plain values, for `from_plain`."""
        return {
            name: {
                "dtype": one.dtype.name, "shape": list(one.shape), "scope": one.scope,
                "ragged": isinstance(one, Ragged),
            }
            for name, one in self.fields.items()
        }  # fmt: skip

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> GroupSchema:
        """Return the schema of `plain`. Raises SchemaError."""
        made: dict[str, Any] = {}
        for name, one in plain.items():
            if not isinstance(one, Mapping) or "dtype" not in one:
                made[name] = one
                continue
            rest = dict(one)
            kind: Any = Ragged if rest.pop("ragged", False) else Field
            made[name] = kind(**rest)
        return cls.of(made)

    def named(self, what: str, names: Iterable[str]) -> tuple[str, ...]:
        """Check names of fields. Raises SchemaError."""
        listed = (names,) if isinstance(names, str) else tuple(names)
        for name in listed:
            if name not in self.fields:
                raise SchemaError(f"{what}: there is no field {name!r}: {hint(name, self.fields)}")
        return listed

    def array(self, name: str, value: object, *, copy: bool = True) -> Array:
        """Return a value of a field, of one member or of the group, as an array of its dtype.

        Raises SchemaError.
        """
        field = self.fields.get(name)
        if field is None:
            raise SchemaError(f"there is no field {name!r}: {hint(name, self.fields)}")
        if type(value) is np.ndarray and value.dtype == field.dtype:
            shape = value.shape[1:] if isinstance(field, Ragged) and value.ndim else value.shape
            if shape == field.shape and value.ndim == len(shape) + isinstance(field, Ragged):
                if not copy:
                    return value
                # `copy` would let other threads run, which takes longer than the copy
                return np.ndarray(shape=value.shape, dtype=value.dtype, buffer=value.tobytes())
        given = np.asarray(value if isinstance(value, list | tuple) else tensors.to_array(value))
        shape = given.shape[1:] if isinstance(field, Ragged) else given.shape
        if (isinstance(field, Ragged) and not given.ndim) or shape != field.shape:
            wanted = [*(["length"] if isinstance(field, Ragged) else []), *field.shape]
            raise SchemaError(
                f"field {name!r} has shape {list(given.shape)}, it takes {wanted}".replace("'", "")
            )
        return cast_array(name, given, field.dtype, copy=copy)

    def is_ragged(self, name: str) -> bool:
        """Return whether a field, of members or of the group, has any length."""
        return isinstance(self.fields[name], Ragged)

    def same_length(self, lengths: Mapping[str, int]) -> int:
        """Return the length that the ragged fields of a member share; 0 without one."""
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise SchemaError(f"ragged fields of one member differ in length ({said}): give one")
        return next(iter(lengths.values()), 0)


def cast_array(name: str, given: Array, dtype: np.dtype[Any], *, copy: bool = True) -> Array:
    """Return an array as this dtype, without a loss that is more than rounding."""
    if given.dtype != dtype and given.size:
        if given.dtype.kind in "iub" and dtype.kind in "iub":
            least, most = (0, 1) if dtype.kind == "b" else _range(dtype)
            if int(given.min()) < least or int(given.max()) > most:
                raise SchemaError(
                    f"field {name!r} has {given.min()} to {given.max()}, {dtype} has {least} to "
                    f"{most}: take a wider dtype"
                )
        elif not np.can_cast(given.dtype, dtype, "same_kind"):
            raise SchemaError(f"field {name!r} is {given.dtype}, it takes {dtype}: convert it")
    return given.astype(dtype, order="C", copy=copy)


def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)
