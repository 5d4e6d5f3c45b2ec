"""Staged batches: no call can tell whether a batch was staged or written at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storm_rig import count_points, some_points, strike
from test_staged_steps import FLAT, LINKED, buffers, insides, staged_steps, step

from async_loader import (
    Field,
    MinHeap,
    Prioritized,
    RateLimiter,
    ReplayBuffer,
    Transitions,
    Uniform,
)
from async_loader.errors import Closed, SchemaError
from async_loader.replay.array_types import Array
from async_loader.testing.debug import debug_state

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
    """Extend until batches of this width are staged. Return the next number."""
    for k in range(times):
        buffer.extend(batch(width * k, rows=width), stream=range(width))
    return width * times


WAYS = ["plain", "plain", "plain", "double", "terminated", "strided", "another order"]
RUNS = st.tuples(
    st.just("extend"),
    st.lists(st.sampled_from(WAYS), min_size=1, max_size=6),
    st.sampled_from(sorted(STREAMS)),
)
"""Batches that follow each other: only from the third on they are staged."""
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
def test_a_table_is_the_same_whether_its_batches_were_staged_or_not(
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
def test_the_third_batch_of_a_shape_is_staged_and_is_there_for_every_call(streams: str) -> None:
    with ReplayBuffer(200, FLAT, seed=0) as buffer:
        for k in range(4):
            ids = buffer.extend(batch(WIDTH * k), stream=STREAMS[streams])
            assert ids.tolist() == list(range(WIDTH * k, WIDTH * (k + 1)))
            assert staged_steps(buffer) == max(0, k - 1) * WIDTH
        assert len(buffer) == 4 * WIDTH
        assert staged_steps(buffer) == 0
        assert buffer.get(range(4 * WIDTH))["x"].tolist() == list(range(4 * WIDTH))


def test_batches_of_a_vector_writer_are_staged() -> None:
    with ReplayBuffer(200, FLAT, seed=0) as buffer:
        writer = buffer.vector_writer(WIDTH, autoreset="next_step")
        for k in range(4):
            fields = batch(WIDTH * k)
            ids = writer.append(next_obs=fields["obs"], **fields)
            assert ids is not None
            assert ids.tolist() == list(range(WIDTH * k, WIDTH * (k + 1)))
        assert staged_steps(buffer) == 2 * WIDTH
        assert writer.steps == 4 * WIDTH == len(buffer)


def test_arrays_may_be_written_again_after_the_call() -> None:
    with ReplayBuffer(200, FLAT, seed=0) as buffer:
        columns, streams = batch(0), np.arange(WIDTH)
        for k in range(5):
            columns["x"][:] = k
            ids = buffer.extend(columns, stream=streams)
            ids[:] = 0
        assert staged_steps(buffer) > 0
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


def test_batches_are_not_staged_where_something_may_go_wrong_later() -> None:
    for options in (
        {"max_times_sampled": 3},
        {"remover": MinHeap()},
        {"limiter": RateLimiter(min_size_to_sample=1)},
    ):
        with ReplayBuffer(100, FLAT, **options) as buffer:
            for k in range(5):
                priority = np.ones(WIDTH) if "remover" in options else None
                buffer.extend(batch(k), stream=range(WIDTH), priority=priority)
                assert staged_steps(buffer) == 0
    with ReplayBuffer(100, FLAT, sampler=Prioritized()) as buffer:
        for k in range(5):
            buffer.extend(batch(k), stream=range(WIDTH), priority=np.ones(WIDTH))
            assert staged_steps(buffer) == 0
    with ReplayBuffer(100, {"x": Field((1 << 16,), "float32")}) as buffer:
        for _ in range(5):
            buffer.extend(x=np.zeros((WIDTH, 1 << 16), np.float32))
            assert staged_steps(buffer) == 0


def test_a_limiter_ends_staging_and_keeps_what_was_staged() -> None:
    with ReplayBuffer(100, FLAT, seed=0) as buffer:
        extended(buffer, 5)
        assert staged_steps(buffer) > 0
        buffer.limiter = RateLimiter(min_size_to_sample=1)
        assert len(buffer) == 20
        buffer.extend(batch(20), stream=range(WIDTH))
        assert staged_steps(buffer) == 0


def test_after_close_a_batch_is_refused() -> None:
    buffer = ReplayBuffer(100, FLAT, seed=0)
    number = extended(buffer, 6)
    assert staged_steps(buffer) > 0
    buffer.close()
    with pytest.raises(Closed):
        buffer.extend(batch(number), stream=range(WIDTH))


def test_a_forked_child_draws_the_batches_that_were_staged() -> None:
    with ReplayBuffer(100, FLAT, seed=0) as buffer:
        extended(buffer, 5)
        assert staged_steps(buffer) > 0
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


@pytest.mark.parametrize("way", ["extend", "vector"])
def test_after_ctrl_c_at_any_point_a_batch_is_in_once_or_not_at_all(way: str) -> None:
    """Among them the points at which staged batches are written."""
    width = 64  # seven batches fill the memory

    def begun() -> tuple[ReplayBuffer, Any, Any]:
        buffer = ReplayBuffer(2000, FLAT, seed=0)
        writer = buffer.vector_writer(width, autoreset="next_step", streams=range(width))

        def append(first: int) -> None:
            fields = batch(first, rows=width)
            writer.append(next_obs=fields["obs"], **fields)

        def extend(first: int) -> None:
            buffer.extend(batch(first, rows=width), stream=range(width))

        add = extend if way == "extend" else append
        for k in range(3):
            add(width * k)
        return buffer, writer, lambda: [add(width * k) for k in range(3, 11)]

    _, _, add = begun()
    add()
    buffer, writer, add = begun()
    for at in some_points(count_points(add), 40, seed=1):
        buffer, writer, add = begun()
        struck = strike(add, at)
        if struck.raised is None:
            continue
        count = len(buffer)
        assert count % width == 0, struck.where
        assert buffer.get(np.arange(count))["x"].tolist() == list(range(count)), struck.where
        assert way == "extend" or writer.steps == count, struck.where
        ids = buffer.extend(batch(count, rows=width), stream=range(width))
        assert ids.tolist() == list(range(count, count + width)), struck.where
