"""What a step is, and the packed row made of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from async_loader import Field, Schema
from async_loader.errors import SchemaError
from async_loader.schema import PackedRow, supported

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
REFUSED = ["O", "U3", "S3", "V8", "M8[ns]", "m8[s]", np.longdouble, np.clongdouble, ">f4", ">i8", ">c16", [("a", "f4")]]

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
fields = st.lists(st.builds(Field, st.just("f"), shapes, st.sampled_from(DTYPES)), min_size=1, max_size=6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numeric_dtypes_of_native_order_are_supported(dtype):
    assert supported(np.dtype(dtype))
    assert Field("x", (2,), dtype).dtype == np.dtype(dtype)


@pytest.mark.parametrize("dtype", REFUSED, ids=str)
def test_dtypes_that_shared_memory_cannot_hold_are_refused_by_name(dtype):
    assert not supported(np.dtype(dtype))
    with pytest.raises(SchemaError, match=r"field 'obs' has dtype .*, which shared memory cannot hold: use bool"):
        Field("obs", (2,), dtype)


def test_negative_dimensions_are_refused():
    with pytest.raises(SchemaError, match=r"shape \(-1,\)"):
        Field("obs", (-1,), "f4")


@given(fields)
def test_packed_rows_are_naturally_aligned_without_overlap_and_stride_by_eight(listed):
    row = PackedRow.of(listed)
    assert row.stride % 8 == 0
    assert row.stride >= max(8, sum(f.nbytes for f in listed))
    taken: list[tuple[int, int]] = []
    for field, offset in zip(listed, row.offsets, strict=True):
        # Also the row after it: torch wants strides in whole items.
        assert offset % field.dtype.itemsize == 0
        assert row.stride % field.dtype.itemsize == 0
        assert offset + field.nbytes <= row.stride
        if field.nbytes:
            assert all(offset + field.nbytes <= start or stop <= offset for start, stop in taken)
            taken.append((offset, offset + field.nbytes))


def test_a_schema_of_a_step_takes_python_numbers_as_torch_does():
    schema = Schema.of_step(
        {
            "obs": {"pixels": np.zeros((3, 2), np.uint8), "t": torch.zeros(2, dtype=torch.float64)},
            "r": 0.5,
            "a": 1,
            "d": True,
            "n": np.float64(1),
        }
    )
    kinds = {f.name: (f.shape, f.dtype.name) for f in schema.fields}
    assert kinds == {
        "obs.pixels": ((3, 2), "uint8"),
        "obs.t": ((2,), "float64"),
        "r": ((), "float32"),
        "a": ((), "int64"),
        "d": ((), "bool"),
        "n": ((), "float64"),
    }
    assert schema.nbytes == 6 + 16 + 4 + 8 + 1 + 8


@pytest.mark.parametrize("value", ["text", None, object(), np.array(["a"]), torch.zeros(2, dtype=torch.bfloat16)])
def test_a_step_with_anything_else_is_refused_by_name(value):
    with pytest.raises(SchemaError, match="obs"):
        Schema.of_step({"obs": value, "a": 1})


def test_a_schema_of_a_spec():
    spec = {"obs": {"a": ((4,), np.float32), "b": "u1"}, "r": Field("r", (2, 2), "f8"), "d": bool}
    schema = Schema.of(spec)
    assert str(schema) == "obs.a float32[4], obs.b uint8[], r float64[2, 2], d bool[]"
    assert Schema.of(schema) is schema
    assert schema.rebuild([1, 2, 3, 4]) == {"obs": {"a": 1, "b": 2}, "r": 3, "d": 4}
    assert schema.leaves({"d": 4, "r": 3, "obs": {"b": 2, "a": 1}}) == [1, 2, 3, 4]
    listed = Schema.of([Field("x", (), "f4"), Field("y", 3, "i8")])
    assert listed.rebuild([1, 2]) == {"x": 1, "y": 2}
    assert listed.fields[1].shape == (3,)


@pytest.mark.parametrize("spec", [[], ["x"], [("x", "f4")], {"x": "nonsense"}, {"x": object()}])
def test_a_bad_spec_is_refused(spec):
    with pytest.raises(SchemaError):
        Schema.of(spec)


def test_an_empty_spec_is_refused():
    with pytest.raises(SchemaError):
        Schema.of({})
    with pytest.raises(SchemaError, match="at least one field"):
        Schema.of_step({"obs": {}})


def test_a_name_given_twice_is_refused():
    with pytest.raises(SchemaError, match="'x' is there more than once"):
        Schema.of([Field("x"), Field("y"), Field("x")])


def test_a_step_that_does_not_fit_says_what_does_not():
    schema = Schema.of({"a": "f4", "b": "f4"})
    with pytest.raises(SchemaError, match="no 'b'"):
        schema.leaves({"a": 1, "c": 2})


def test_adding_a_field_refuses_a_name_that_is_taken():
    schema = Schema.of({"a": "f4"}).with_field("index", np.int64)
    assert [f.name for f in schema.fields] == ["a", "index"]
    with pytest.raises(SchemaError, match="'index' is a reserved name"):
        schema.with_field("index", np.int64)


@given(fields)
def test_nbytes_counts_every_item(listed):
    assert Schema.of([Field(f"f{i}", f.shape, f.dtype) for i, f in enumerate(listed)]).nbytes == sum(
        math.prod(f.shape) * f.dtype.itemsize for f in listed
    )


def test_schemas_are_equal_by_value_and_can_be_keys():
    one, two = (Schema.of({"a": ((2,), "f4"), "b": {"c": "i8"}}) for _ in range(2))
    assert one == two
    assert len({one, two}) == 1
    assert one != Schema.of({"a": ((2,), "f4"), "b": {"c": "i4"}})
