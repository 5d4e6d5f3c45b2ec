"""What a field takes and what it refuses: nothing is cast silently, and a refusal writes
nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from async_loader.errors import SchemaError
from async_loader.replay import ReplayBuffer
from tests.table_parts import debug_state

TAKEN = [
    ("float32", (), 0.5, 0.5),
    ("float32", (), 3, 3.0),
    ("float32", (), True, 1.0),
    ("float32", (), np.float64(0.1), np.float32(0.1)),
    ("float32", (), np.float64("inf"), np.inf),
    ("float32", (), float("-inf"), -np.inf),
    ("float32", (), np.array(0.5), 0.5),
    ("float32", (2,), np.array([0.1, np.inf]), np.array([0.1, np.inf], np.float32)),
    ("float32", (2,), np.array([1, 1 << 24]), [1, 1 << 24]),
    ("float64", (2,), np.array([1, 2], np.float16), [1, 2]),
    ("float16", (), 2.5, 2.5),
    ("int64", (), 3, 3),
    ("int64", (), np.uint8(3), 3),
    ("int64", (), False, 0),
    ("uint8", (), np.int64(255), 255),
    ("uint8", (3,), np.array([0, 7, 255]), [0, 7, 255]),
    ("int8", (), -128, -128),
    ("uint64", (), (1 << 64) - 1, (1 << 64) - 1),
    ("bool", (), np.True_, True),
    ("bool", (2,), np.array([True, False]), [True, False]),
    ("complex64", (), 1.5, 1.5),
    ("complex64", (), 1 + 2j, 1 + 2j),
    ("float32", (2,), np.array([1, 2], ">f8"), [1, 2]),
    ("float32", (2, 2), np.arange(4, dtype=np.float32).reshape(2, 2).T, [[0, 2], [1, 3]]),
]

REFUSED = [
    ("int64", (), 0.7, "is float64.*says int64"),
    ("int64", (), 3.0, "is float64.*says int64"),
    ("int64", (2,), np.array([1.0, 2.0]), "is float64.*says int64"),
    ("uint8", (), 300, "holds 300.*0 to 255"),
    ("uint8", (), -1, "holds -1.*0 to 255"),
    ("uint8", (2,), np.array([1, 300]), "holds 300.*0 to 255"),
    ("int64", (), 1 << 63, "holds 9223372036854775808"),
    ("int64", (), 1 << 70, "the integer 1180591620717411303424"),
    ("uint8", (4, 4), 1, r"has shape \(\).*says \(4, 4\)"),
    ("uint8", (4, 4), np.zeros((4, 4, 1), np.uint8), r"has shape \(4, 4, 1\).*says \(4, 4\)"),
    (
        "float32",
        (3,),
        np.zeros(1, np.float32),
        r"has shape \(1,\).*says \(3,\).*nothing is broadcast",
    ),
    ("float32", (), np.zeros(1, np.float32), r"has shape \(1,\).*says \(\)"),
    ("float32", (), None, "is NoneType.*a number that float32 holds"),
    ("float32", (2,), None, "is NoneType.*an array"),
    ("float32", (2,), [0.5, 0.5], "is list.*np.asarray"),
    ("float32", (), "1.0", "is str"),
    ("float32", (), object(), "is object"),
    ("float32", (), 1e300, "finite value beyond the largest float32"),
    ("float32", (2,), np.array([0.0, 1e300]), "finite value beyond the largest float32"),
    ("float32", (), (1 << 24) + 1, "exact for whole numbers"),
    ("float64", (), np.int64((1 << 53) + 1), "exact for whole numbers"),
    ("float32", (), 1j, "is complex128.*says float32"),
    ("bool", (), 1, "is int64.*says bool"),
    ("bool", (), 1.0, "is float64.*says bool"),
    ("float32", (1,), np.array(["a"]), "is <U1"),
    ("float32", (1,), np.array([None]), "is object"),
    ("int64", (1,), np.array([3], "m8[s]"), "is timedelta64"),
]


@pytest.mark.parametrize(("dtype", "shape", "value", "stored"), TAKEN)
def test_a_field_takes_what_it_can_hold(
    dtype: str, shape: tuple[int, ...], value: Any, stored: Any
) -> None:
    buffer = ReplayBuffer(4, {"x": (shape, dtype)})
    buffer.add(x=value)
    drawn = buffer.sample(1)["x"]
    assert drawn.dtype == dtype
    np.testing.assert_array_equal(drawn[0], stored)
    many = ReplayBuffer(4, {"x": (shape, dtype)})
    many.extend(x=np.asarray(value)[None])
    np.testing.assert_array_equal(many.sample(1)["x"], drawn)


@pytest.mark.parametrize(("dtype", "shape", "value", "said"), REFUSED)
def test_a_field_refuses_what_it_cannot_hold_and_nothing_is_written(
    dtype: str, shape: Any, value: Any, said: str
) -> None:
    buffer = ReplayBuffer(4, {"first": np.int64, "x": (shape, dtype)})
    with pytest.raises(SchemaError, match=f"field 'x'.*{said}"):
        buffer.add(first=1, x=value)
    assert len(buffer) == 0
    storage = debug_state(buffer).state.table.storage
    assert not storage.heads().any()
    assert not storage.cell(0).any()


def test_a_column_that_does_not_fit_writes_no_row_of_any_field() -> None:
    buffer = ReplayBuffer(8, {"x": np.int64, "y": np.uint8})
    for bad, said in [
        (np.arange(254, 258), "holds 257"),
        (np.zeros(4), "is float64"),
        (np.zeros((4, 1), np.uint8), r"says \(rows,\)"),
        (np.zeros(5, np.uint8), "unequal length"),
        ([1, 2, 3, 4], "many steps are one array"),
        (7, "many steps are one array"),
        (None, "is NoneType"),
    ]:
        with pytest.raises(SchemaError, match=said):
            buffer.extend(x=np.ones(4, np.int64), y=bad)
    assert len(buffer) == 0
    assert not debug_state(buffer).state.table.storage.cell(0).any()


def test_a_step_built_differently_is_refused() -> None:
    buffer = ReplayBuffer(8)
    buffer.add(a={"b": 1, "c": 2.0}, d=True)
    for step in (
        {"a": {"b": 1}, "d": True},
        {"a": 1, "d": True},
        {"d": True},
        {"a": {"b": 1, "c": 2.0}, "d": True, "e": 1},
    ):
        with pytest.raises(SchemaError, match="does not fit the schema"):
            buffer.add(step)
    flat = ReplayBuffer(8, {"x": np.int64})
    for step in ({}, {"y": 1}, {"x": 1, "y": 1}):
        with pytest.raises(SchemaError, match="does not fit the schema"):
            flat.add(step)
    assert len(buffer) == 1


def test_tensors_are_taken_like_arrays() -> None:
    torch = pytest.importorskip("torch")
    buffer = ReplayBuffer(8)
    buffer.add(obs=torch.ones(3, requires_grad=True), action=torch.tensor(2), reward=0.5)
    buffer.add(obs=np.ones(3, np.float32), action=2, reward=torch.tensor(0.5, dtype=torch.float64))
    buffer.extend(obs=torch.ones(4, 3), action=torch.full((4,), 2), reward=torch.full((4,), 0.5))
    batch = buffer.sample(20)
    assert (batch["obs"] == 1).all()
    assert (batch["action"] == 2).all()
    assert (batch["reward"] == 0.5).all()
    with pytest.raises(
        SchemaError, match=r"field 'reward' is a tensor of torch\.bfloat16, which numpy"
    ):
        buffer.add(obs=torch.ones(3), action=2, reward=torch.tensor(1, dtype=torch.bfloat16))


@pytest.mark.filterwarnings(
    "ignore:Sparse CSR tensor support is in beta:UserWarning",
    "ignore:The PyTorch API of nested:UserWarning",
)
def test_a_tensor_that_is_not_dense_is_refused_with_the_call_that_makes_it_so():
    torch = pytest.importorskip("torch")
    buffer = ReplayBuffer(8, {"x": ((2, 2), np.float32)})
    for one, call in (
        (torch.eye(2).to_sparse(), r"sparse coo tensor of torch\.float32, .*\.to_dense\(\)"),
        (torch.eye(2).to_sparse_csr(), r"sparse csr tensor .*\.to_dense\(\)"),
        (torch.nested.nested_tensor([torch.ones(2)] * 2), r"nested tensor .*\.to_padded_tensor"),
    ):
        for table in (buffer, ReplayBuffer(8)):
            with pytest.raises(SchemaError, match=f"field 'x' is a {call}"):
                table.add(x=one)
