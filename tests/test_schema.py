"""The schema of a step, and the packed row made of it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from async_loader import Field, Schema
from async_loader.errors import SchemaError
from async_loader.schema import PackedRow, supported

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
REFUSED = [
    "O",
    "U3",
    "S3",
    "V8",
    "M8[ns]",
    "m8[s]",
    np.longdouble,
    np.clongdouble,
    ">f4",
    ">i8",
    ">c16",
    [("a", "f4")],
]

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
fields = st.lists(st.builds(Field, shapes, st.sampled_from(DTYPES)), min_size=1, max_size=6)


@pytest.mark.parametrize("dtype", REFUSED, ids=str)
def test_dtypes_that_shared_memory_cannot_hold_are_refused_by_name(dtype):
    assert not supported(np.dtype(dtype))
    with pytest.raises(
        SchemaError, match=r"field 'obs' has dtype .*, which shared memory cannot hold: use bool"
    ):
        Field((2,), dtype, name="obs")


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
            "z": np.array(1.0),
            "i": np.int32(1),
        }
    )
    kinds = {f.name: (f.shape, f.dtype.name) for f in schema.fields}
    assert kinds == {
        "obs.pixels": ((3, 2), "uint8"),
        "obs.t": ((2,), "float64"),
        "r": ((), "float32"),
        "a": ((), "int64"),
        "d": ((), "bool"),
        "n": ((), "float32"),
        "z": ((), "float32"),
        "i": ((), "int32"),
    }
    assert schema.nbytes == 6 + 16 + 4 + 8 + 1 + 4 + 4 + 4


@pytest.mark.parametrize(
    "value", ["text", None, object(), np.array(["a"]), torch.zeros(2, dtype=torch.bfloat16)]
)
def test_a_step_with_anything_else_is_refused_by_name(value):
    with pytest.raises(SchemaError, match="obs"):
        Schema.of_step({"obs": value, "a": 1})


def test_a_schema_of_a_spec():
    spec = {"obs": {"a": ((4,), np.float32), "b": "u1"}, "r": Field((2, 2), "f8"), "d": bool}
    schema = Schema.of(spec)
    assert str(schema) == "obs.a float32[4], obs.b uint8[], r float64[2, 2], d bool[]"
    assert Schema.of(schema) is schema
    assert schema.rebuild([1, 2, 3, 4]) == {"obs": {"a": 1, "b": 2}, "r": 3, "d": 4}
    assert schema.leaves({"d": 4, "r": 3, "obs": {"b": 2, "a": 1}}) == [1, 2, 3, 4]


@given(
    shape=st.lists(st.integers(0, 9), max_size=4),
    dtype=st.sampled_from(DTYPES),
    stack=st.integers(1, 5),
    after=st.none() | st.text(min_size=1, max_size=5),
    padding=st.sampled_from(["repeat", "zero"]),
    name=st.text(max_size=5),
)
def test_a_field_says_in_its_repr_what_makes_it_again(shape, dtype, stack, after, padding, name):
    field = Field(shape, dtype, stack=stack, next=after, padding=padding, name=name)
    assert eval(repr(field), {"Field": Field}) == field
    assert pickle.loads(pickle.dumps(field)) == field
    assert field.shape == tuple(shape)
    named = Schema.of(
        {"obs": {"x": Field(shape, dtype, stack=stack, next=after, padding=padding)}}
    ).fields[0]
    assert named == Field(shape, dtype, stack=stack, next=after, padding=padding, name="obs.x")


SPACES = {
    "box": (spaces.Box(0, 255, (4, 84, 84), np.uint8), (4, 84, 84), "uint8"),
    "float": (spaces.Box(-np.inf, np.inf, (3,)), (3,), "float32"),
    "discrete": (spaces.Discrete(5), (), "int64"),
    "several": (spaces.MultiDiscrete([2, 3]), (2,), "int64"),
    "grid": (spaces.MultiDiscrete([[2, 3], [4, 5]], dtype=np.int32), (2, 2), "int32"),
    "binary": (spaces.MultiBinary((2, 3)), (2, 3), "int8"),
}


@pytest.mark.parametrize("name", SPACES)
def test_a_space_is_stored_in_its_shape_and_dtype(name):
    space, shape, dtype = SPACES[name]
    (field,) = Schema.of({"obs": space}).fields
    assert (field.shape, field.dtype.name) == (shape, dtype)
    sample = np.asarray(space.sample())
    assert (sample.shape, sample.dtype) == (field.shape, field.dtype)


@pytest.mark.parametrize(
    "space",
    [spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Discrete(2), None)],
)
def test_a_space_without_one_shape_is_refused_by_name(space):
    with pytest.raises(
        SchemaError,
        match=rf"field 'obs.inner' is a {type(space).__name__} space.*use Box, Discrete",
    ):
        Schema.of({"obs": spaces.Dict({"inner": space})})


def test_a_step_that_does_not_fit_says_what_does_not():
    schema = Schema.of({"a": "f4", "b": "f4"})
    with pytest.raises(SchemaError, match="no 'b'"):
        schema.leaves({"a": 1, "c": 2})
