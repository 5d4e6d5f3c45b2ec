"""Gathered records: no call can tell whether a step was gathered or written at once."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import (
    Field,
    Fifo,
    Lifo,
    MinHeap,
    Prioritized,
    RankPrioritized,
    RateLimiter,
    ReplayBuffer,
    Transitions,
    Uniform,
)
from async_loader.errors import Closed, SchemaError
from async_loader.replay.array_types import Array
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
    state = debug_state(made[1]).state
    state.served = True
    state.gather()
    return made


def is_gathering(buffer: ReplayBuffer) -> bool:
    return debug_state(buffer).state.table.records.limit > 1


def gathered(buffer: ReplayBuffer) -> int:
    return buffer._table_state.table.records.count  # debug_state writes them


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


steps = st.lists(
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
    script=steps,
    capacity=st.sampled_from([6, 17, 200]),
    n_steps=st.sampled_from([1, 3]),
    kind=st.sampled_from([Uniform, Prioritized, RankPrioritized, Fifo, Lifo, MinHeap]),
)
@settings(max_examples=60, deadline=None)
def test_a_table_is_the_same_whether_its_steps_were_gathered_or_not(
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
def test_a_plain_step_is_gathered_and_is_there_for_every_call(sampler: Any) -> None:
    with ReplayBuffer(100, FLAT, sampler=sampler(), seed=0) as buffer:
        buffer.add(step(0, "numpy"))  # it makes the stream
        assert buffer.add(step(1, "numpy")) == 1
        assert buffer.add(step(2, "float")) == 2
        assert gathered(buffer) == 3
        assert len(buffer) == 3
        assert gathered(buffer) == 0
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
def test_a_step_that_does_not_fit_is_refused_as_before_the_first_was_gathered(
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


def test_steps_are_not_gathered_where_something_may_go_wrong_later() -> None:
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
            assert not is_gathering(buffer)
    with ReplayBuffer(10, {"x": ((1 << 12,), "float32")}) as buffer:  # copied twice, it is slower
        for _ in range(3):
            buffer.add(x=np.zeros(1 << 12, np.float32))
        assert not is_gathering(buffer)


def test_a_sampler_of_a_source_knows_steps_that_were_gathered_before_it() -> None:
    with ReplayBuffer(10, {"x": "float32"}, seed=0) as buffer:
        for number in range(3):
            buffer.add(x=float(number))
        source = buffer.source(sampler=Prioritized())
        for number in range(3, 6):
            buffer.add(x=float(number))
        assert sorted(set(source.draw_now(200).batch["x"].tolist())) == [0, 1, 2, 3, 4, 5]
        source.close()


def test_a_waiting_draw_gets_a_step_that_could_be_gathered() -> None:
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


def test_a_buffer_without_references_frees_its_memory_at_once() -> None:
    gc.collect()
    gc.disable()
    try:
        buffer = ReplayBuffer(10, {"x": "float32"})
        for number in range(3):
            buffer.add(x=float(number))
        assert is_gathering(buffer)
        table = weakref.ref(debug_state(buffer).state.table)
        del buffer
        assert table() is None
    finally:
        gc.enable()


def patience() -> Any:
    """Wait for as long as it takes, a minute at most."""

    class Waits:
        def wait(self, eventfd: Any, what: str) -> None:
            import select

            assert select.select([eventfd], [], [], 60)[0], what

    return Waits()


WIDTH = 4
STREAMS: dict[str, Any] = {
    "array": np.arange(WIDTH),
    "range": range(2, 2 + WIDTH),
    "one": "actor",
    "list": list(range(WIDTH)),
}


def batch(first: int, how: str = "plain", rows: int = WIDTH) -> dict[str, Array]:
    """The steps ``first``, ``first + 1``, ... of as many environments, given in one of the ways
    that a program may have.
    """
    numbers = np.arange(first, first + rows)
    columns = {
        "x": numbers.astype(np.float64 if how == "double" else np.float32),
        "obs": np.repeat(numbers, 3).reshape(rows, 3).astype(np.float32),
        "terminated": numbers % 3 == 0 if how == "terminated" else np.zeros(rows, np.bool_),
        "truncated": np.zeros(rows, np.bool_),
    }
    if how == "strided":
        columns["obs"] = np.asfortranarray(columns["obs"])
    if how == "another order":
        return dict(reversed(columns.items()))
    return columns


def extended(buffer: ReplayBuffer, times: int = 3, width: int = WIDTH) -> int:
    """Extend some times. Return the next number."""
    for k in range(times):
        buffer.extend(batch(width * k, rows=width), stream=range(width))
    return width * times


WAYS = ["plain", "plain", "plain", "double", "terminated", "strided", "another order"]
RUNS = st.tuples(
    st.just("extend"),
    st.lists(st.sampled_from(WAYS), min_size=1, max_size=6),
    st.sampled_from(sorted(STREAMS)),
)
"""Batches that follow each other."""
operations = st.lists(
    st.one_of(
        RUNS,
        RUNS,
        st.tuples(st.just("narrow"), st.integers(1, 3), st.none()),
        st.tuples(st.just("vector"), st.sampled_from(["plain", "terminated"]), st.none()),
        st.tuples(st.just("add"), st.integers(0, 2), st.sampled_from(["numpy", "terminated"])),
        st.tuples(st.just("end"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("sample"), st.integers(1, 4), st.none()),
        st.tuples(st.just("get"), st.integers(1, 4), st.none()),
        st.tuples(st.just("update"), st.integers(1, 4), st.none()),
        st.tuples(st.just("delete"), st.integers(1, 4), st.none()),
        st.tuples(st.just("save"), st.none(), st.none()),
        st.tuples(st.just("count"), st.none(), st.none()),
    ),
    max_size=25,
)


def run(buffer: ReplayBuffer, script: list[tuple[Any, ...]], folder: Path) -> list[Any]:
    """Return all that the calls of a script return."""
    log: list[Any] = []
    writer = buffer.vector_writer(
        WIDTH, autoreset="next_step", streams=[f"env {k}" for k in range(WIDTH)]
    )
    number = 0
    for what, one, how in script:
        if what == "extend":
            for way in one:
                log.append(buffer.extend(batch(number, way), stream=STREAMS[how]).tolist())
                number += WIDTH
        elif what == "narrow":
            log.append(buffer.extend(batch(number, rows=one), stream=range(one)).tolist())
        elif what == "vector":
            fields = batch(number, one)
            if writer._resetting.any():
                fields["terminated"] = np.zeros(WIDTH, np.bool_)
            log.append(writer.append(next_obs=fields["obs"], **fields).tolist())
            log.append(writer.steps)
        elif what == "add":
            log.append(buffer.add(step(number, how), stream=one))
        elif what == "end":
            buffer.end_episode(stream=one, terminated=how)
        elif what == "save":
            buffer.save(folder / "saved")
            with ReplayBuffer.from_checkpoint(folder / "saved") as loaded:
                log.append(len(loaded))
        elif what == "count":
            log.append((len(buffer), buffer.stats()))
        elif len(buffer) >= one:
            drawn = buffer.sample(one)
            log.append({name: column.tolist() for name, column in drawn.items()})
            ids = np.unique(drawn["index"])
            if what == "get":
                log.append(buffer.get(ids)["x"].tolist())
            elif what == "update":
                log.append(buffer.update(ids, x=np.full(len(ids), -number, np.float32)))
            elif what == "delete":
                log.append(buffer.delete(ids))
        number += WIDTH
    return log


@pytest.mark.parametrize("schema", [FLAT, LINKED], ids=["flat", "linked"])
@given(
    script=operations,
    capacity=st.sampled_from([6, 17, 400]),
    n_steps=st.sampled_from([1, 3]),
    kind=st.sampled_from([Uniform, Prioritized]),
)
@settings(max_examples=30, deadline=None)
def test_a_table_is_the_same_whether_its_batches_were_gathered_or_not(
    schema: Any,
    script: list[tuple[Any, ...]],
    capacity: int,
    n_steps: int,
    kind: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    both = buffers(schema, capacity, view=Transitions(n_steps=n_steps, reward="x"), sampler=kind)
    logs = [run(buffer, script, tmp_path_factory.mktemp("saved")) for buffer in both]
    assert logs[0] == logs[1]
    assert insides(both[0]) == insides(both[1])
    for buffer in both:
        buffer.close()


@pytest.mark.parametrize("streams", ["array", "range", "one"])
def test_a_small_batch_is_gathered_and_is_there_for_every_call(streams: str) -> None:
    with ReplayBuffer(200, FLAT, seed=0) as buffer:
        for k in range(4):
            ids = buffer.extend(batch(WIDTH * k), stream=STREAMS[streams])
            assert ids.tolist() == list(range(WIDTH * k, WIDTH * (k + 1)))
            assert gathered(buffer) == (k + 1) * WIDTH
        assert len(buffer) == 4 * WIDTH
        assert gathered(buffer) == 0
        assert buffer.get(range(4 * WIDTH))["x"].tolist() == list(range(4 * WIDTH))


def test_batches_of_a_vector_writer_are_gathered() -> None:
    with ReplayBuffer(200, FLAT, seed=0) as buffer:
        writer = buffer.vector_writer(WIDTH, autoreset="next_step")
        for k in range(4):
            fields = batch(WIDTH * k)
            ids = writer.append(next_obs=fields["obs"], **fields)
            assert ids is not None
            assert ids.tolist() == list(range(WIDTH * k, WIDTH * (k + 1)))
        assert gathered(buffer) == 4 * WIDTH
        assert writer.steps == 4 * WIDTH == len(buffer)


def test_arrays_may_be_written_again_after_the_call() -> None:
    with ReplayBuffer(200, FLAT, seed=0) as buffer:
        columns, streams = batch(0), np.arange(WIDTH)
        for k in range(5):
            columns["x"][:] = k
            ids = buffer.extend(columns, stream=streams)
            ids[:] = 0
        assert gathered(buffer) > 0
        columns["x"][:] = 9
        assert buffer.get(range(5 * WIDTH))["x"].tolist() == np.repeat(range(5), WIDTH).tolist()
        streams[:] = 7  # another stream for all: not that of the batches before
        buffer.extend(columns, stream=streams)
        assert set(debug_state(buffer).state.table.streams) == {*range(WIDTH), 7}


@pytest.mark.parametrize(
    "wrong",
    [
        {"obs": [[1, 2, 3]] * WIDTH},
        {"obs": np.zeros((WIDTH, 4), np.float32)},
        {"obs": np.zeros((WIDTH + 1, 3), np.float32)},
        {"x": np.zeros(WIDTH, np.complex64)},
        {"x": np.full(WIDTH, 1e300)},
        {"terminated": np.zeros(WIDTH)},
        {"truncated": np.ones(WIDTH, np.bool_)},
        {"another": np.zeros(WIDTH)},
        {"obs": ...},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_batch_that_does_not_fit_is_refused_and_none_of_it_is_stored(
    wrong: dict[str, Any],
) -> None:
    both, said = buffers(LINKED, 100), []
    for buffer in both:
        for first in (0, 4, 8, 12):
            buffer.extend(batch(first, "double" if "x" in wrong else "plain"), stream=range(WIDTH))
        columns = {name: v for name, v in {**batch(16), **wrong}.items() if v is not ...}
        with pytest.raises(SchemaError) as caught:
            buffer.extend(columns, stream=range(WIDTH))
        said.append(str(caught.value))
        assert debug_state(buffer).state.table.g is not None
        assert buffer.extend(batch(16), stream=range(WIDTH)).tolist() == [16, 17, 18, 19]
        buffer.close()
    assert said[0] == said[1]


def test_batches_are_not_gathered_where_something_may_go_wrong_later() -> None:
    for options in (
        {"max_times_sampled": 3},
        {"remover": MinHeap()},
        {"limiter": RateLimiter(min_size_to_sample=1)},
    ):
        with ReplayBuffer(100, FLAT, **options) as buffer:
            for k in range(5):
                priority = np.ones(WIDTH) if "remover" in options else None
                buffer.extend(batch(k), stream=range(WIDTH), priority=priority)
                assert gathered(buffer) == 0
    with ReplayBuffer(100, {"x": Field((1 << 16,), "float32")}) as buffer:
        for _ in range(5):
            buffer.extend(x=np.zeros((WIDTH, 1 << 16), np.float32))
            assert gathered(buffer) == 0


def test_a_limiter_ends_gathering_and_keeps_what_was_gathered() -> None:
    with ReplayBuffer(100, FLAT, seed=0) as buffer:
        extended(buffer, 5)
        assert gathered(buffer) > 0
        buffer.limiter = RateLimiter(min_size_to_sample=1)
        assert len(buffer) == 20
        buffer.extend(batch(20), stream=range(WIDTH))
        assert gathered(buffer) == 0


def test_after_close_a_batch_is_refused() -> None:
    buffer = ReplayBuffer(100, FLAT, seed=0)
    number = extended(buffer, 6)
    assert gathered(buffer) > 0
    buffer.close()
    with pytest.raises(Closed):
        buffer.extend(batch(number), stream=range(WIDTH))


def test_a_forked_child_draws_the_batches_that_were_gathered() -> None:
    with ReplayBuffer(100, FLAT, seed=0) as buffer:
        extended(buffer, 5)
        assert gathered(buffer) > 0
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(write, b"%d" % len(set(buffer.sample(500)["x"].tolist())))
            finally:
                os._exit(0)
        os.close(write)
        assert os.read(read, 10) == b"20"
        os.close(read)
        os.waitpid(child, 0)
        assert buffer.extend(batch(20), stream=range(WIDTH)).tolist() == [20, 21, 22, 23]
