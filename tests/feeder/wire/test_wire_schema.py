"""Schemas as bytes, and the sizes that follow from them."""

from __future__ import annotations

import hashlib
from collections import namedtuple

import msgspec
import pytest
from hypothesis import given, settings
from wire_rig import schemas

from async_loader import Field, Schema, tree
from async_loader.errors import SchemaError
from async_loader.feeder import wire
from async_loader.feeder.wire import schema_codec
from async_loader.feeder.wire.schema_codec import SchemaSpec
from async_loader.schema import PackedRow

U1, F4 = 3, 11


def decoded(plain: object) -> Schema:
    """What a schema that came as these plain values is taken for."""
    return wire.schema_of(msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=SchemaSpec))


def field(name="x", dtype=F4, shape=(), stack=1, successor=None, padding=0):
    return [name, dtype, list(shape), stack, successor, padding]


@settings(deadline=None)
@given(schemas())
def test_a_schema_comes_back_as_it_was(schema):
    data = schema_codec.encode(schema)
    spec = msgspec.msgpack.decode(data, type=SchemaSpec)
    assert wire.schema_of(spec) == schema
    assert schema_codec.encode(wire.schema_of(spec)) == data
    assert (
        wire.schema_id(spec)
        == wire.schema_id(schema)
        == int.from_bytes(hashlib.sha256(data).digest()[:4], "little")
    )


@pytest.mark.parametrize(
    "shape",
    [
        (2**33, 2**31),
        (2**31 - 1, 0, 2**31 - 1),
        (1,) * 17,
        (2**31,),
    ],
)
def test_shapes_that_overflow_are_refused_before_anything_is_made(shape):
    with pytest.raises(msgspec.ValidationError):
        decoded([None, [field(dtype=12, shape=shape)]])


@pytest.mark.parametrize(
    "plain",
    [
        [None, []],
        [[0, ["a"], [None, None]], [field("a"), field("b")]],
        [[0, ["a", "b"], [None, None]], [field("a"), field("a")]],
        [[3, [], [None]], [field("a")]],
        [None, [field("")]],
        [None, [field(stack=0)]],
        [None, [field(padding=2)]],
        [None, [field()[:-1]]],
        [[1, [], [None] * 4097], [field(str(i)) for i in range(4097)]],
    ],
    ids=lambda plain: str(plain)[:60],
)
def test_a_schema_that_does_not_hold_together_is_refused(plain):
    with pytest.raises(msgspec.ValidationError):
        decoded(plain)


def nested(depth: int) -> tree.Structure:
    return tree.Node(tuple, (0,), (nested(depth - 1),)) if depth else None


def test_a_schema_is_nested_32_deep_at_most():
    deepest = Schema(nested(32), (Field(name="x"),))
    message = wire.Message(wire.Reader(schema=wire.spec_of(deepest), leased=False, transport="tcp"))
    assert wire.schema_of(wire.decode(wire.encode(message)).body.schema) == deepest
    with pytest.raises(SchemaError, match="more than 32 deep"):
        wire.spec_of(Schema(nested(33), (Field(name="x"),)))
    plain: object = None
    for _ in range(33):
        plain = [2, [], [plain]]
    with pytest.raises(msgspec.ValidationError, match="more than 32 deep"):
        decoded([plain, [field()]])


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (Schema.of_step(namedtuple("Point", "x y")(1.0, 2.0)), "Point cannot travel"),
        (
            Schema(tree.Node(dict, (1,), (None,)), (Field(name="1"),)),
            "cannot travel: Expected `str`, got `int`",
        ),
        (Schema(None, (Field((1,) * 17, name="x"),)), "cannot travel: .*length <= 16"),
        (Schema(None, (Field(name="x" * 300),)), "cannot travel: .*length <= 256"),
        (Schema.of({"a.b": "f4", "a": {"b": "f4"}}), "a name of its own"),
    ],
    ids=["namedtuple", "key", "dimensions", "name", "names"],
)
def test_a_schema_that_cannot_travel_is_refused_where_it_is_made(schema, text):
    with pytest.raises(SchemaError, match=text):
        wire.spec_of(schema)


@settings(deadline=None)
@given(schemas())
def test_a_layout_is_that_of_packed_rows_behind_a_head(schema):
    layout = wire.RowLayout.of(schema)
    small = [f for f in schema.fields if f.nbytes < 1024]
    row = PackedRow.of(small)
    assert [at for at in layout.offsets if at is not None] == [16 + at for at in row.offsets]
    assert layout.stride == 16 + (row.stride if small else 0)
    assert layout.sizes(7) == [
        7 * layout.stride,
        *(7 * f.nbytes for f in schema.fields if f.nbytes >= 1024),
    ]
    assert sum(layout.sizes(1)) == layout.row_bytes
