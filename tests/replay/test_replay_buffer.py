"""ReplayBuffer as its users see it: what goes in comes out, under its id."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from async_loader.errors import ConfigError, SchemaError, Unsupported
from async_loader.replay import ReplayBuffer
from async_loader.replay.arguments import bytes_of
from async_loader.replay.table import storage
from async_loader.schema import Field
from tests.table_parts import debug_state

SCHEMA = {
    "obs": {"small": ((3,), np.float32), "image": ((20, 60), np.uint8), "none": ((0,), np.int8)},
    "done": np.bool_,
}


def step_of(n: int) -> dict[str, Any]:
    """A step that says which one it is in every field."""
    image = np.full((20, 60), n % 251, np.uint8)
    small = np.arange(n, n + 3, dtype=np.float32)
    return {
        "obs": {"small": small, "image": image, "none": np.empty(0, np.int8)},
        "done": n % 3 == 0,
    }


def batch_of(numbers: list[int]) -> dict[str, Any]:
    steps = [step_of(n) for n in numbers]
    obs = {key: np.stack([s["obs"][key] for s in steps]) for key in ("small", "image", "none")}
    return {"obs": obs, "done": np.array([s["done"] for s in steps])}


def numbers_in(batch: dict[str, Any]) -> list[int]:
    """Which steps these are, after checking that all their fields agree."""
    numbers = batch["obs"]["small"][:, 0].astype(int)
    assert (batch["obs"]["small"] == numbers[:, None] + np.arange(3)).all()
    assert (batch["obs"]["image"] == (numbers % 251)[:, None, None]).all()
    assert (batch["done"] == (numbers % 3 == 0)).all()
    assert batch["obs"]["none"].shape == (len(numbers), 0)
    return [int(n) for n in numbers]


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.integers(1, 12),
    spare=st.integers(4, 9),
    given_schema=st.booleans(),
    moves=st.lists(
        st.one_of(
            st.just("add"), st.integers(1, 40), st.tuples(st.just("sample"), st.integers(1, 9))
        ),
        max_size=25,
    ),
)
def test_every_row_drawn_equals_what_was_added_under_its_id(
    capacity: int, spare: int, given_schema: bool, moves: list[Any]
) -> None:
    with mock.patch.object(storage, "_spare", return_value=spare):
        buffer = ReplayBuffer(capacity, SCHEMA if given_schema else None, seed=1)
        _compare_with_reference(buffer, capacity, moves)


def _compare_with_reference(buffer: ReplayBuffer, capacity: int, moves: list[Any]) -> None:
    added = 0  # the reference: step n has id n
    for move in moves:
        if move == "add":
            assert buffer.add(step_of(added)) == added
            added += 1
        elif isinstance(move, int):
            ids = buffer.extend(batch_of(list(range(added, added + move))))
            assert ids.tolist() == list(range(added, added + move))
            added += move
        elif added:
            batch = buffer.sample(move[1])
            assert numbers_in(batch) == batch["index"].tolist()
            assert len(batch["index"]) == move[1]
            assert batch["index"].min() >= added - capacity
            assert batch["index"].max() < added
        assert len(buffer) == min(added, capacity)


def test_every_live_step_is_drawn_equally_often() -> None:
    buffer = ReplayBuffer(20, seed=3)
    buffer.extend(x=np.arange(1_010))
    counts = np.bincount(
        np.concatenate([buffer.sample(500)["x"] for _ in range(80)]) - 990, minlength=20
    )
    assert len(counts) == 20
    chi_square = float(((counts - 2000.0) ** 2 / 2000.0).sum())
    assert chi_square < 43.8  # 19 degrees of freedom, p = 0.001


@pytest.mark.parametrize("seed", [True, -1, "a", 1.5])
def test_a_seed_is_an_integer(seed: object) -> None:
    with pytest.raises(ConfigError, match="give an integer of at least 0"):
        ReplayBuffer(3, seed=seed)  # type: ignore[arg-type]


def test_the_same_seed_draws_the_same_steps() -> None:
    def ids(seed: int | None) -> list[int]:
        buffer = ReplayBuffer(1000, seed=seed)
        buffer.extend(x=np.arange(1500))
        return [int(i) for _ in range(3) for i in buffer.sample(10)["index"]]

    assert ids(7) == ids(7)
    assert ids(7) != ids(8)
    assert ids(None) != ids(None)


def test_any_number_of_threads_add_and_sample() -> None:
    buffer = ReplayBuffer(
        64, {"thread": np.int64, "n": np.int64, "check": ((200,), np.int64)}, seed=0
    )
    buffer.add(thread=0, n=0, check=np.zeros(200, np.int64))
    wrong: list[object] = []
    ids: list[list[int]] = [[] for _ in range(4)]

    def write(thread: int) -> None:
        for n in range(150):
            ids[thread].append(
                buffer.add(thread=thread, n=n, check=np.full(200, thread * 1000 + n))
            )
            nine = {
                "thread": np.full(9, thread),
                "n": np.full(9, n),
                "check": np.full((9, 200), thread * 1000 + n),
            }
            ids[thread].extend(buffer.extend(nine).tolist())

    def read() -> None:
        for _ in range(300):
            batch = buffer.sample(32)
            expected = batch["thread"] * 1000 + batch["n"]
            if (batch["check"] != expected[:, None]).any():
                wrong.append(batch)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)] + [
        threading.Thread(target=read) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sorted(i for part in ids for i in part) == list(range(1, 4 * 150 * 10 + 1))


def test_the_first_steps_of_two_threads_agree_on_one_schema() -> None:
    for _ in range(20):
        buffer = ReplayBuffer(8)
        gate = threading.Barrier(2)
        refused: list[str] = []

        def first(
            value: Any, buffer: ReplayBuffer, gate: threading.Barrier, refused: list[str]
        ) -> None:
            gate.wait()
            try:
                buffer.add(x=value)
            except SchemaError as error:
                refused.append(str(error))

        threads = [
            threading.Thread(target=first, args=(v, buffer, gate, refused))
            for v in (np.zeros(3), np.zeros(4))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == 1
        assert len(buffer) == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"x": np.int16},
        {"x": ((), "int16")},
        {"x": Field((), np.int16)},
    ],
)
def test_a_schema_may_be_given_in_any_form(schema: Any) -> None:
    buffer = ReplayBuffer(10, schema)
    assert str(buffer.schema) == "x int16[]"
    buffer.add({"x": 5})
    assert buffer.sample(1)["x"].tolist() == [5]


@pytest.mark.parametrize(
    "name", ["index", "weight", "stream", "priority", "timeout_s", "final_obs"]
)
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(SchemaError, match=f"{name}.*reserved"):
        ReplayBuffer(10).add({name: 1, "x": 2})
    with pytest.raises(SchemaError, match=f"{name}.*reserved"):
        ReplayBuffer(10, {name: np.int64})
    ReplayBuffer(10).add(info={name: 1})  # nested it is no batch's key


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({}, "at least one field"),
        ({"x": object}, "field 'x' has dtype object"),
        ({"x": np.longdouble}, "field 'x' has dtype"),
        ({"x": "M8[s]"}, "datetime"),
        ({"x": "no such type"}, "'no such type' of field 'x' is unknown"),
        ([Field(name="x")], "a schema is a dict"),
    ],
)
def test_a_bad_schema_is_refused_by_name(schema: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        ReplayBuffer(10, schema)


@given(
    number=st.integers(1, 999) | st.decimals(min_value="0.01", max_value=999, places=2),
    unit=st.sampled_from(["B", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"]),
    case=st.sampled_from([str.upper, str.lower, str]),
    space=st.sampled_from(["", " ", "  "]),
)
def test_a_size_with_a_unit_is_bytes(number: Any, unit: str, case: Any, space: str) -> None:
    base = 1024 if "i" in unit else 1000
    exact = float(number) * base ** ["B", "K", "M", "G", "T"].index(unit[0])
    assume(exact >= 1)
    assert bytes_of("max_bytes", f"{space}{number}{space}{case(unit)}{space}") == int(exact)


def test_steps_that_are_no_steps_are_refused() -> None:
    for call, said in [
        (lambda b: b.add(), "at least one field"),
        (lambda b: b.add({}), "at least one field"),
        (lambda b: b.add(3), "a dict of fields, not int"),
        (lambda b: b.add({"x": 1}, y=2), "one or the other"),
        (lambda b: b.extend({}), "at least one field"),
        (lambda b: b.extend([{"x": 1}]), "a dict of fields, not list"),
        (lambda b: b.extend(x=np.float32(1)), "add\\(\\) for one step"),
        (lambda b: b.extend(x=np.zeros(3), y=np.zeros(4)), "unequal length.*'x': 3, 'y': 4"),
        (lambda b: b.add(x="text"), "field 'x' is str"),
        (lambda b: b.add(x=[1, 2, 3]), "field 'x' is a list: np.asarray"),
        (lambda b: b.add(x={"y": [1.0]}), "field 'x.y' is a list"),
        (lambda b: b.add(x=None), "field 'x' is NoneType"),
    ]:
        buffer = ReplayBuffer(10)
        with pytest.raises(SchemaError, match=said):
            call(buffer)  # type: ignore[no-untyped-call]
        assert buffer.schema is None
        assert len(buffer) == 0


def test_a_forked_child_can_neither_sample_nor_add() -> None:
    buffer = ReplayBuffer(8, seed=0)
    buffer.extend(x=np.arange(8))
    # as another thread of the parent may at the moment of the fork
    lock = debug_state(buffer).state.lock
    lock.acquire()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            for call in (lambda: buffer.sample(4), lambda: buffer.add(x=1)):
                with pytest.raises(Unsupported, match="only the process that made"):
                    call()
        except BaseException:
            os._exit(1)
        os._exit(0)
    lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    buffer.add(x=8)


def test_a_dropped_buffer_gives_its_memory_back_without_the_collector() -> None:
    buffer = ReplayBuffer(8, SCHEMA)
    buffer.add(step_of(1))
    buffer.sample(2)
    fds = len(os.listdir("/proc/self/fd"))  # two of the buffer's: mmap keeps a duplicate
    gone = weakref.ref(buffer)
    gc.disable()
    try:
        del buffer
        assert gone() is None
        assert len(os.listdir("/proc/self/fd")) == fds - 2
    finally:
        gc.enable()
