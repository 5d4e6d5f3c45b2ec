"""Schemas as msgpack, and their ids. No text becomes a dtype or a class.

A schema is an array ``[nesting, [field, ...]]``; a field is ``[name, dtype code, shape, stack,
next, padding]``; a nesting is nil for a leaf, else ``[0 dict | 1 list | 2 tuple, keys, [nesting,
...]]``, with keys for dicts only.
"""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from async_loader import tree
from async_loader.errors import Malformed, SchemaError
from async_loader.feeder.wire import codes
from async_loader.feeder.wire.codes import ErrorCode
from async_loader.schema import Field, Padding, Schema

BESIDE_SCHEMA = 512
"""Bytes of a control message that are left for its other fields."""
_KINDS: tuple[type, ...] = (dict, list, tuple)
_PADDINGS: tuple[Padding, ...] = ("repeat", "zero")


class Nest(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One container of a schema's structure."""

    kind: Literal[0, 1, 2]
    keys: Annotated[tuple[codes.Key, ...], Meta(max_length=codes.FIELDS)]
    children: Annotated[tuple[Nest | None, ...], Meta(max_length=codes.FIELDS)]


class FieldSpec(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One field: name, dtype code, shape, stack, next, padding (0: repeat, 1: zero)."""

    name: codes.Name
    dtype: codes.U8
    shape: codes.Shape
    stack: codes.Count
    next: codes.Name | None
    padding: Literal[0, 1]

    @property
    def nbytes(self) -> int:
        """Bytes of one value.

        A dimension of 0 counts as 1, since numpy multiplies the others too.
        """
        return math.prod(max(1, n) for n in self.shape) * codes.DTYPES[self.dtype].itemsize


class SchemaSpec(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A schema in wire form, checked.

    Raises
    ------
    SchemaError
        From the constructor; a decoder turns it into Malformed.
    """

    structure: Nest | None
    fields: Annotated[tuple[FieldSpec, ...], Meta(min_length=1, max_length=codes.FIELDS)]

    def __post_init__(self) -> None:
        for field in self.fields:
            if field.dtype not in codes.DTYPES:
                raise SchemaError(
                    f"field {field.name!r} has dtype code {field.dtype}, known are 1 to "
                    f"{max(codes.DTYPES)}"
                )
        row = sum(field.nbytes * field.stack for field in self.fields)
        if row > codes.ROW_BYTES:
            raise SchemaError(
                f"a row takes {row} bytes with its stacks, {codes.ROW_BYTES} may travel: make "
                "fields smaller"
            )
        names = {field.name for field in self.fields}
        if len(names) < len(self.fields):
            raise SchemaError(
                f"{len(self.fields)} fields have {len(names)} names: give every field a name of "
                "its own"
            )
        leaves = _leaves(self.structure)
        if leaves != len(self.fields):
            raise SchemaError(
                f"the structure has {leaves} leaves for {len(self.fields)} fields: there is one "
                "for each"
            )


def spec_of(schema: Schema) -> SchemaSpec:
    """Convert to wire form.

    Raises SchemaError for other containers, keys other than text that can be sent, and sizes.
    """
    fields = tuple(
        FieldSpec(
            one.name,
            codes.dtype_code(one.dtype),
            one.shape,
            one.stack,
            one.next,
            1 if one.padding == "zero" else 0,
        )
        for one in schema.fields
    )
    spec = SchemaSpec(_nest(schema.structure), fields)
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=SchemaSpec)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise SchemaError(f"the schema ({str(schema)[:80]}) cannot travel: {error}") from None
    return spec


def schema_of(spec: SchemaSpec) -> Schema:
    """Convert from wire form."""
    fields = (
        Field(
            f.shape,
            codes.DTYPES[f.dtype],
            stack=f.stack,
            next=f.next,
            padding=_PADDINGS[f.padding],
            name=f.name,
        )
        for f in spec.fields
    )
    return Schema(_structure(spec.structure), tuple(fields))


def encode(schema: Schema) -> bytes:
    """Return the canonical encoding: equal for equal schemas, in msgpack's shortest forms."""
    return msgspec.msgpack.encode(spec_of(schema))


def check_travels(schema: Schema, what: str, most: int = codes.CONTROL_BYTES) -> None:
    """Raise Malformed, TOO_LARGE, if a schema is too large for a control message.

    Parameters
    ----------
    what : str
        Whose schema it is, for the text.
    most : int
        Bytes of the message's body.
    """
    nbytes = len(encode(schema))
    if nbytes > most - BESIDE_SCHEMA:
        text = (
            f"the schema of {what} has {len(schema.fields)} fields and takes {nbytes} bytes, a "
            f"control message {most - BESIDE_SCHEMA}"
        )
        remedy = "join fields into arrays, or give them shorter names"
        raise Malformed(f"{text}: {remedy}", ErrorCode.TOO_LARGE)


def schema_id(schema: Schema | SchemaSpec) -> int:
    """Return the first 4 bytes of the SHA-256 of the canonical encoding, as in the header."""
    spec = schema if isinstance(schema, SchemaSpec) else spec_of(schema)
    return int.from_bytes(hashlib.sha256(msgspec.msgpack.encode(spec)).digest()[:4], "little")


def check_id(said: int, ours: int) -> None:
    """Raise Malformed, SCHEMA, if rows are of another schema than was agreed on."""
    if said != ours:
        text = (
            f"rows are of schema {said:#010x}, agreed was {ours:#010x}: open the writer or reader "
            "anew"
        )
        raise Malformed(text, ErrorCode.SCHEMA, ours)


def _nest(structure: tree.Structure) -> Nest | None:
    if structure is None:
        return None
    if structure.kind not in _KINDS:
        raise SchemaError(
            f"{structure.kind.__name__} cannot travel: nest steps with dicts, lists and tuples"
        )
    keys: tuple[Any, ...] = structure.keys if structure.kind is dict else ()
    kind: Any = _KINDS.index(structure.kind)
    return Nest(kind, keys, tuple(map(_nest, structure.children)))


def _structure(nest: Nest | None) -> tree.Structure:
    if nest is None:
        return None
    keys = nest.keys if nest.kind == 0 else tuple(range(len(nest.children)))
    return tree.Node(_KINDS[nest.kind], keys, tuple(map(_structure, nest.children)))


def _leaves(nest: Nest | None, depth: int = 1) -> int:
    """Return the number of leaves.

    Raises SchemaError for containers that are not as they have to be.
    """
    if nest is None:
        return 1
    if depth > codes.DEPTH:
        raise SchemaError(f"the schema is nested more than {codes.DEPTH} deep: flatten it")
    if len(nest.keys) != (len(nest.children) if nest.kind == 0 else 0):
        raise SchemaError(
            f"a container has {len(nest.keys)} keys and {len(nest.children)} children: dicts have "
            "a key for each"
        )
    if len(set(nest.keys)) < len(nest.keys):
        raise SchemaError("a dict has a key twice: give every entry a key of its own")
    return sum(_leaves(child, depth + 1) for child in nest.children)
