"""Steps that come in messages make the table that the same steps make when they are added one by
one.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from async_loader import Field, ReplayBuffer, Transitions
from async_loader.errors import SchemaError, Timeout, WouldDeadlock
from async_loader.replay.base.row_format import FINAL, SHOWN, TERMINATED, TRUNCATED, VERSION_ONE
from async_loader.replay.buffer import shared_table
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.samplers import Prioritized
from async_loader.replay.table.nonblocking_table import Incoming, NonblockingTable
from async_loader.replay.table.reader import ReplayReader
from tests.table_parts import debug_state

LINKED = {
    "obs": Field((2,), np.dtype(np.int32), stack=2, next="next_obs"),
    "reward": "float64",
    "terminated": "bool",
    "truncated": "bool",
}
FLAT = {
    "obs": Field((2,), np.dtype(np.int32)),
    "reward": "float64",
    "terminated": "bool",
    "truncated": "bool",
}
LARGE = {**FLAT, "frame": Field((600,), np.dtype(np.int32), next="next_frame")}

step = st.tuples(
    st.just("step"),
    st.integers(0, 3),
    st.sampled_from(["", "", "", "", "T", "T+", "X", "X+"]),
    st.integers(0, 5),
)
end = st.tuples(
    st.just("end"), st.integers(0, 3), st.sampled_from(["T", "X", "T+", "X+"]), st.just(0)
)
operations = st.lists(st.one_of(step, step, step, step, end), min_size=1, max_size=60)


def row(schema, number: int, terminated: bool = False, truncated: bool = False) -> dict:
    made = {
        "obs": np.full(2, number, np.int32),
        "reward": float(number),
        "terminated": terminated,
        "truncated": truncated,
    }
    return {**made, "frame": np.full(600, number, np.int32)} if "frame" in schema else made


def final_of(schema, number: int):
    return np.full(600, number, np.int32) if "frame" in schema else np.full(2, number, np.int32)


class Sides:
    """The same steps to a buffer, one by one, and to a served table, in messages."""

    def __init__(self, schema, capacity: int = 24, prioritized: bool = False, limiter=None) -> None:
        self.schema, self.prioritized = schema, prioritized
        self.linked = any(
            isinstance(one, Field) and one.next is not None for one in schema.values()
        )
        made = [
            ReplayBuffer(
                capacity,
                schema,
                seed=3,
                limiter=limiter,
                **({"sampler": Prioritized(0.6)} if prioritized else {}),
            )
            for _ in "ab"
        ]
        self.plain, self.buffer = made
        self.served = NonblockingTable(shared_table(self.buffer))
        for stream in range(4):
            debug_state(self.plain).state.table.stream(stream)
            self.served.stream(stream)
        self.rows: list[tuple[int, int, float, dict]] = []
        self.calls: list = []
        self.number = 0

    def add(self, what: str, stream: int, how: str, priority: int) -> None:
        """One operation: what is called on one side, the rows of the message on the other."""
        if what == "end":
            self.number += 1
            terminated, shown, number = how[0] == "T", how[1:] == "+" and self.linked, self.number
            final = final_of(self.schema, -number) if shown else None
            ends = {"terminated": terminated, "truncated": not terminated}
            self.calls.append(
                (1, lambda: self.plain.end_episode(final_obs=final, stream=stream, **ends))
            )
            flags = FINAL | (TERMINATED if terminated else TRUNCATED) | SHOWN * shown
            self.rows.append((stream, flags, np.nan, row(self.schema, -number)))
            return
        self.number += 1
        number, given = self.number, float(priority) if priority and self.prioritized else None
        terminated, truncated, followed = (
            how[:1] == "T",
            how[:1] == "X",
            how[1:] == "+" and self.linked,
        )
        flags = TERMINATED * terminated + TRUNCATED * truncated
        nan = np.nan if given is None else given
        self.rows.append((stream, flags, nan, row(self.schema, number, terminated, truncated)))
        if followed:
            self.rows.append((stream, FINAL, np.nan, row(self.schema, -number)))
        # its observation is all that is left of it
        lost = truncated and self.linked and not followed
        said = row(self.schema, number, terminated, truncated and not lost)
        final = final_of(self.schema, -number) if followed else None

        def call() -> None:
            self.plain.add(said, stream=stream, priority=given, final_obs=final, timeout_s=0)
            if lost:
                self.plain.end_episode(stream=stream)

        self.calls.append((1 + followed, call))

    def message(self, start: int, stop: int) -> Incoming:
        rows = self.rows[start:stop]
        columns = [
            np.array([one[3][name] for one in rows], self.served.schema.fields[i].dtype)
            for i, name in enumerate(self.schema)
        ]
        streams, flags = (np.array([one[k] for one in rows], np.int64) for k in (0, 1))
        return Incoming(streams, flags, np.array([one[2] for one in rows]), columns)

    def groups(self, cuts: list[int]) -> list[tuple[int, int]]:
        """Messages: cut somewhere, but not between a step and its final observation."""
        ends, place = [], 0
        for count, _ in self.calls:
            place += count
            ends.append(place)
        stops = sorted({ends[cut % len(ends)] for cut in cuts} | {ends[-1]})
        return list(zip([0, *stops], stops, strict=False))

    def same(self) -> None:
        one, two = debug_state(self.plain).state.table, debug_state(self.buffer).state.table
        assert (one.inserted, one.sampled, one.deleted) == (two.inserted, two.sampled, two.deleted)
        assert one.g[7] == two.g[7], "the next id"
        np.testing.assert_array_equal(one.items.alive, two.items.alive)
        np.testing.assert_array_equal(one.last[:4], two.last[:4])
        heads = [table.storage.heads() for table in (one, two)]
        np.testing.assert_array_equal(heads[0][:, :3], heads[1][:, :3])
        flags = [each[:, 3] % VERSION_ONE for each in heads]
        np.testing.assert_array_equal(flags[0], flags[1])
        ids = np.sort(one.ids[one.items.alive != 0])
        views = [None] if self.prioritized else [None, Transitions(n_steps=1, gamma=0.5)]
        for view in views:
            read = []
            for state in (debug_state(one).state for one in (self.plain, self.buffer)):
                read_plan = state.read_plan(view, state.sampler)
                reader = ReplayReader(state.table.storage, read_plan)
                into = reader.fresh(len(ids))
                assert not len(reader.fill(ids, into)) or not len(ids)
                read.append(into.fields)
            for a, b in zip(*read, strict=True):
                np.testing.assert_array_equal(a, b)
        if self.prioritized:
            np.testing.assert_array_equal(
                one.given[one.items.alive != 0], two.given[two.items.alive != 0]
            )


@pytest.mark.slow
@pytest.mark.parametrize("schema", [LINKED, FLAT, LARGE], ids=["linked", "flat", "large"])
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(operations, st.lists(st.integers(0, 100), max_size=6), st.booleans())
def test_messages_make_the_table_that_single_steps_make(schema, script, cuts, prioritized):
    sides = Sides(schema, prioritized=prioritized)
    for operation in script:
        sides.add(*operation)
    for _, call in sides.calls:
        call()
    for start, stop in sides.groups(cuts):
        steps = sides.message(start, stop)
        sides.served.check(steps) if prioritized or not np.isfinite(
            steps.priorities
        ).any() else None
        assert sides.served.insert(steps, 0) == stop - start
    sides.same()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(operations, st.lists(st.integers(0, 100), max_size=6), st.booleans(), st.integers(2, 5))
@example(
    # the first of three rows makes the last item that is lacking, and ends what is free
    script=[
        *[("step", 0, "", 0)] * 5,
        ("step", 1, "X", 0),
        *[("step", stream, "", 0) for stream in (2, 1, 0, 0)],
    ],
    cuts=[],
    linked=True,
    least=5,
)
@example(
    # the end makes two items, the last that are allowed
    script=[*[("step", 0, "", 0)] * 7, ("step", 1, "", 0), ("step", 0, "T", 0), ("step", 0, "", 0)],
    cuts=[],
    linked=True,
    least=2,
)
def test_a_limiter_stops_messages_at_the_step_at_which_it_stops_single_steps(
    script, cuts, linked, least
):
    sides = Sides(
        LINKED if linked else FLAT,
        limiter=RateLimiter(
            min_size_to_sample=least, samples_per_insert=1.5, error_buffer=(0.0, 12.0)
        ),
    )
    for operation in script:
        sides.add(*operation)
    calls = iter(sides.calls)
    waiting = next(calls, None)
    added = inserted = 0  # rows, on either side
    for start, stop in sides.groups(cuts):
        steps, done = sides.message(start, stop), 0
        while True:
            done = sides.served.insert(steps, done)
            inserted = start + done
            while waiting is not None and added < stop:
                try:
                    waiting[1]()
                except (Timeout, WouldDeadlock):
                    break
                added, waiting = added + waiting[0], next(calls, None)
            assert inserted == added
            sides.same()
            if inserted == stop:
                break
            assert sides.served.why_not_insert() is not None
            plain, drawing = (
                sides.plain.sample(2, timeout_s=0),
                sides.served.drawing(None, 0, 1, None),
            )
            assert drawing.why_not(2) is None
            for a, b in zip(
                sides.plain.schema.leaves(
                    {k: plain[k] for k in ("obs", "reward", "terminated", "truncated")}
                ),
                drawing.arrays(2),
                strict=False,
            ):
                np.testing.assert_array_equal(a, b)


LIES = {
    "a final observation comes first": [(0, FINAL), (0, 0)],
    "a final observation behind a step that goes on": [(0, 0), (0, FINAL)],
    "a final observation of another stream": [(0, TERMINATED), (1, FINAL)],
    "two final observations": [(0, TERMINATED), (0, FINAL), (0, FINAL)],
    "a final observation behind an end": [(0, 0), (0, FINAL | TRUNCATED), (0, FINAL)],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_message_that_lies_is_refused_whole(lie):
    sides = Sides(LINKED)
    sides.rows = [
        (stream, flags, np.nan, row(LINKED, 1)) for stream, flags in [(0, 0), (1, 0), *LIES[lie]]
    ]
    before = debug_state(sides.buffer).state.table.storage.heads().copy()
    with pytest.raises(SchemaError, match=r"row [2-9] is a final observation"):
        sides.served.check(sides.message(0, len(sides.rows)))
    np.testing.assert_array_equal(debug_state(sides.buffer).state.table.storage.heads(), before)


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize(
    ("schema", "view"), [(FLAT, None), (LINKED, None), (LINKED, Transitions(n_steps=3, gamma=0.5))]
)
def test_batches_that_are_drawn_into_somebodys_memory_are_the_same_batches(
    schema, view, prioritized
):
    samplers = [{"sampler": Prioritized(0.6)} if prioritized else {} for _ in "ab"]
    buffers = [ReplayBuffer(100, schema, seed=5, **sampler) for sampler in samplers]
    for one in buffers:
        writer = one.writer()
        for i in range(80):
            writer.append(row(schema, i))
    filling, plain = (
        NonblockingTable(shared_table(one)).drawing(view, 0, 1, None) for one in buffers
    )
    memory = [
        [np.zeros((8, *field.shape), field.dtype) for field in plain.schema.fields]
        for _ in range(2)
    ]
    targets = [filling.target(arrays) for arrays in memory]
    for i in range(6):
        assert filling.why_not(8) is None
        filling.fill(targets[i % 2])
        wanted = plain.arrays(8)
        for into, array in zip(memory[i % 2], wanted, strict=True):
            np.testing.assert_array_equal(into, array)
        if prioritized:
            for one in buffers:
                one.update_priorities(wanted[-2], np.arange(8.0) + 1)
    assert buffers[0].stats().sampled == buffers[1].stats().sampled == 48
