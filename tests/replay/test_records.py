"""Gathered records: no call can tell whether a step was gathered or written at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import (
    Field,
    Prioritized,
    ReplayBuffer,
    Transitions,
    Uniform,
)
from async_loader.errors import SchemaError
from async_loader.replay.array_types import Array
from tests.table_parts import debug_state

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
        "counts": (table.inserted, table.deleted),
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
