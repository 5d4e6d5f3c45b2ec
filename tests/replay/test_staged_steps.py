"""Staged steps: no call can tell whether a step was staged or written at once."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storm_rig import count_points, some_points, strike

from async_loader import (
    Field,
    Fifo,
    Lifo,
    MinHeap,
    Prioritized,
    RankPrioritized,
    ReplayBuffer,
    Transitions,
    Uniform,
)
from async_loader.errors import Closed, SchemaError
from async_loader.source import Applied
from async_loader.testing.debug import debug_state

FLAT = {"x": "float32", "obs": Field((3,), "float32"), "terminated": "bool", "truncated": "bool"}
LINKED = {
    "x": "float32",
    "obs": Field((3,), "float32", stack=2, next="next_obs"),
    "terminated": "bool",
    "truncated": "bool",
}


def step(number: int, how: str) -> dict[str, Any]:
    """A step in one of the types that a program may give."""
    ends = {"terminated": how == "terminated", "truncated": False}
    if how == "numpy":
        ends = {name: np.bool_(value) for name, value in ends.items()}
    x: Any = {"numpy": np.float32, "double": np.float64, "int": int}.get(how, float)(number)
    return {"x": x, "obs": np.full(3, number, np.float32), **ends}


def buffers(
    schema: Any, capacity: int, sampler: Any = Uniform, **options: Any
) -> list[ReplayBuffer]:
    """Two equal buffers, of which the second writes each step at once."""
    made = [ReplayBuffer(capacity, schema, seed=3, sampler=sampler(), **options) for _ in range(2)]
    debug_state(made[1]).state.may_stage = False
    return made


def is_staging(buffer: ReplayBuffer) -> bool:
    return debug_state(buffer).state.staged is not None


def staged_steps(buffer: ReplayBuffer) -> int:
    staged = buffer._table_state.staged  # debug_state writes them
    return 0 if staged is None else staged.count


def insides(buffer: ReplayBuffer) -> dict[str, Any]:
    """What a table holds, with the rows of its items."""
    table = debug_state(buffer).state.table
    live = np.flatnonzero(table.items.alive)
    return {
        "ids": table.ids.tolist(),
        "live": live.tolist(),
        "last": table.last.tolist(),
        "streams": dict(table.streams),
        "counts": (table.inserted, table.deleted, table.waiting),
        "rows": [
            table.storage.cell(i)[live].tolist()
            for i in range(len(table.storage.layout.schema.fields))
        ],
        "heads": table.storage.heads()[live].tolist(),
    }


operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.integers(0, 2),
            st.sampled_from(["numpy", "float", "double", "int", "terminated"]),
        ),
        st.tuples(st.just("end"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("sample"), st.integers(1, 4), st.none()),
        st.tuples(st.just("delete"), st.integers(1, 4), st.none()),
        st.tuples(st.just("extend"), st.integers(1, 9), st.none()),
        st.tuples(st.just("count"), st.none(), st.none()),
    ),
    max_size=120,
)


@pytest.mark.parametrize("schema", [FLAT, LINKED], ids=["flat", "linked"])
@given(
    script=operations,
    capacity=st.sampled_from([6, 17, 200]),
    n_steps=st.sampled_from([1, 3]),
    kind=st.sampled_from([Uniform, Prioritized, RankPrioritized, Fifo, Lifo, MinHeap]),
)
@settings(max_examples=150, deadline=None)
def test_a_table_is_the_same_whether_its_steps_were_staged_or_not(
    schema: Any, script: list[tuple[Any, ...]], capacity: int, n_steps: int, kind: Any
) -> None:
    view = Transitions(n_steps=n_steps, reward="x")
    both = buffers(schema, capacity, view=view, sampler=kind)
    logs: list[list[Any]] = [[], []]
    for buffer, log in zip(both, logs, strict=True):
        for number, (what, one, how) in enumerate(script):
            if what == "add":
                log.append(buffer.add(step(number, how), stream=one))
            elif what == "end":
                buffer.end_episode(stream=one, terminated=how)
            elif what == "extend":
                rows = [step(number + k, "numpy") for k in range(one)]
                columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
                log.append(buffer.extend(columns, stream=0).tolist())
            elif what == "count":
                log.append((len(buffer), buffer.stats()))
            elif len(buffer) >= one:
                batch = buffer.sample(one)
                if what == "sample" and kind in (Prioritized, RankPrioritized, MinHeap):
                    buffer.update_priorities(batch["index"], np.arange(1.0, 1 + one))
                log.append({name: column.tolist() for name, column in batch.items()})
                if what == "delete":
                    log.append(buffer.delete(batch["index"]))
    assert logs[0] == logs[1]
    assert insides(both[0]) == insides(both[1])
    for buffer in both:
        buffer.close()


@pytest.mark.parametrize("sampler", [Uniform, Prioritized, RankPrioritized, Fifo])
def test_a_plain_step_is_staged_and_is_there_for_every_call(sampler: Any) -> None:
    with ReplayBuffer(100, FLAT, sampler=sampler(), seed=0) as buffer:
        buffer.add(step(0, "numpy"))  # it makes the stream
        assert buffer.add(step(1, "numpy")) == 1
        assert buffer.add(step(2, "float")) == 2
        assert staged_steps(buffer) == 2
        assert len(buffer) == 3
        assert staged_steps(buffer) == 0
        assert sorted(buffer.get([0, 1, 2])["x"].tolist()) == [0, 1, 2]
        buffer.add(step(3, "numpy"))
        assert buffer.get([3])["x"].tolist() == [3]
        buffer.add(step(4, "numpy"))
        assert buffer.delete([4]) == Applied(1, 0)
        buffer.add(step(5, "numpy"))
        assert buffer.update([5], x=np.ones(1, np.float32)) == Applied(1, 0)
        buffer.add(step(6, "numpy"))
        assert buffer.stats().inserted == 7


@pytest.mark.parametrize(
    "wrong",
    [
        {"obs": [1, 2, 3]},
        {"obs": np.zeros(4, np.float32)},
        {"obs": np.zeros((1, 3), np.float32)},
        {"obs": np.zeros(3, np.complex64)},
        {"x": "a"},
        {"x": 1e300},
        {"terminated": 1},
        {"terminated": ...},
        {"another": 1},
    ],
    ids=str,
)
def test_a_step_that_does_not_fit_is_refused_as_before_the_first_was_staged(
    wrong: dict[str, Any],
) -> None:
    given = {**step(0, "float"), **wrong}
    given = {name: value for name, value in given.items() if value is not ...}
    both = buffers(FLAT, 50)
    said = []
    for buffer in both:
        for number in range(3):
            buffer.add(step(number, "numpy"))
        with pytest.raises(SchemaError) as caught:
            buffer.add(given)
        said.append(str(caught.value))
        assert len(buffer) == 3
        assert buffer.add(step(3, "numpy")) == 3
        buffer.close()
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int8", 127), ("uint8", 255), ("int16", -5), ("uint32", 2**32 - 1), ("int64", -(2**63)),
        ("uint64", 2**64 - 1), ("float16", 65504.0), ("float32", float("inf")), ("float64", 1e300),
        ("float32", float("nan")), ("bool", True), ("int32", True), ("float32", True),
        ("complex64", 1j), ("float32", np.float64(0.1)),
    ],
)  # fmt: skip
def test_a_number_is_stored_as_the_field_holds_it(kind: str, value: Any) -> None:
    both = buffers({"x": kind, "y": "float32"}, 50)
    stored = []
    for buffer in both:
        for _ in range(3):
            buffer.add(x=value, y=0.5)
        stored.append(buffer.get([2])["x"])
        buffer.close()
    assert stored[0].tobytes() == stored[1].tobytes()


@pytest.mark.parametrize(
    ("kind", "value"), [("int8", 128), ("uint8", -1), ("int64", 2**63), ("float16", 1e6)]
)
def test_a_number_that_the_field_does_not_hold_is_refused(kind: str, value: Any) -> None:
    with ReplayBuffer(10, {"x": kind, "y": "float32"}) as buffer:
        buffer.add(x=1, y=0.5)
        with pytest.raises(SchemaError, match="'x'"):
            buffer.add(x=value, y=0.5)
        assert len(buffer) == 1


def test_an_array_may_be_written_again_after_the_call() -> None:
    with ReplayBuffer(10, {"x": Field((2,), "float32"), "y": "float32"}) as buffer:
        array = np.zeros(2, np.float32)
        for number in range(4):
            array[:] = number
            buffer.add(x=array, y=0.0)
        array[:] = 9
        assert buffer.get([0, 1, 2, 3])["x"][:, 0].tolist() == [0, 1, 2, 3]


def test_steps_are_not_staged_where_something_may_go_wrong_later() -> None:
    class Own(Uniform):
        """A sampler of the user's."""

    for options in (
        {"sampler": Own()},
        {"max_times_sampled": 3},
        {"remover": MinHeap()},
    ):
        with ReplayBuffer(10, {"x": "float32"}, **options) as buffer:
            for number in range(3):
                buffer.add(x=float(number), priority=1.0 if "Heap" in repr(options) else None)
            assert not is_staging(buffer)
    with ReplayBuffer(10, {"x": ((1 << 12,), "float32")}) as buffer:  # copied twice, it is slower
        for _ in range(3):
            buffer.add(x=np.zeros(1 << 12, np.float32))
        assert not is_staging(buffer)


def test_a_sampler_of_a_source_knows_steps_that_were_staged_before_it() -> None:
    with ReplayBuffer(10, {"x": "float32"}, seed=0) as buffer:
        for number in range(3):
            buffer.add(x=float(number))
        source = buffer.source(sampler=Prioritized())
        for number in range(3, 6):
            buffer.add(x=float(number))
        assert sorted(set(source.draw_now(200).batch["x"].tolist())) == [0, 1, 2, 3, 4, 5]
        source.close()


def test_after_close_a_step_is_refused() -> None:
    buffer = ReplayBuffer(10, {"x": "float32"})
    for number in range(3):
        buffer.add(x=float(number))
    assert is_staging(buffer)
    buffer.close()
    with pytest.raises(Closed):
        buffer.add(x=3.0)


def test_a_waiting_draw_gets_a_step_that_could_be_staged() -> None:
    with ReplayBuffer(10, {"x": "float32"}, seed=0) as buffer:
        buffer.add(x=0.0)
        drawn: list[Any] = []
        waiting = threading.Thread(
            target=lambda: drawn.append(buffer.source(min_size=3).plan(2, patience()))
        )
        waiting.start()
        while not buffer.stats().waiting:
            pass
        buffer.add(x=1.0)
        buffer.add(x=2.0)
        waiting.join(60)
        assert len(drawn) == 1


def test_a_forked_child_draws_what_was_staged_and_writes_none_of_it() -> None:
    with ReplayBuffer(10, {"x": "float32"}, seed=0) as buffer:
        for number in range(5):
            buffer.add(x=float(number))
        assert staged_steps(buffer) > 0
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(write, b"%d" % len(set(buffer.sample(200)["x"].tolist())))
            finally:
                os._exit(0)
        os.close(write)
        assert os.read(read, 10) == b"5"
        os.close(read)
        os.waitpid(child, 0)
        buffer.add(x=5.0)
        assert len(buffer) == 6


def test_a_buffer_without_references_frees_its_memory_at_once() -> None:
    gc.collect()
    gc.disable()
    try:
        buffer = ReplayBuffer(10, {"x": "float32"})
        for number in range(3):
            buffer.add(x=float(number))
        assert is_staging(buffer)
        table = weakref.ref(debug_state(buffer).state.table)
        del buffer
        assert table() is None
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["add", "append"])
def test_after_ctrl_c_at_any_point_a_step_is_in_once_or_not_at_all(way: str) -> None:
    """Among them the points at which staged steps are written."""

    def begun() -> tuple[ReplayBuffer, Any, Any]:
        buffer = ReplayBuffer(100, {"x": "float32", "y": "float32"}, seed=0)
        buffer.add(x=0.0, y=0.0)
        writer = buffer.writer(0)
        added = buffer.add if way == "add" else writer.append
        return buffer, writer, lambda: [added(x=float(n), y=0.0) for n in range(1, 71)]

    _, _, add = begun()
    add()
    buffer, writer, add = begun()
    total = count_points(add)
    for at in [*some_points(total, 60, seed=1), *range(total * 60 // 70, total * 66 // 70)]:
        buffer, writer, add = begun()
        struck = strike(add, at)
        if struck.raised is None:
            continue
        count = len(buffer)
        assert buffer.get(np.arange(count))["x"].tolist() == list(range(count)), struck.where
        assert way == "add" or writer.steps == count - 1, struck.where
        assert buffer.add(x=100.0, y=0.0) == count
        assert buffer.get([count])["x"].tolist() == [100], struck.where


def patience() -> Any:
    """Wait for as long as it takes, a minute at most."""

    class Waits:
        def wait(self, eventfd: Any, what: str) -> None:
            import select

            assert select.select([eventfd], [], [], 60)[0], what

    return Waits()
