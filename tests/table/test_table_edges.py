"""Edges at which tables might differ: priorities, names, views and steps that are refused, and
calls before there is a step.
"""

from __future__ import annotations

import contextlib
import math
import threading
from typing import Any

import numpy as np
import pytest
from table_rig import Making, until

from async_loader import (
    AsyncDataLoader,
    Field,
    Fifo,
    MinSize,
    Prioritized,
    ReplayBuffer,
    Transitions,
)
from async_loader.errors import ConfigError, NotEnoughData, SchemaError, Unsupported
from async_loader.source import Applied

FOLLOWED = {"obs": Field((), "float32", next="next_obs"), "terminated": "bool", "truncated": "bool"}
ALLOWED = r"priorities are numbers from 0 to 1e\+100"


def steps(rows: int) -> dict[str, Any]:
    return {"x": np.arange(rows), "reward": np.zeros(rows, np.float32)}


# -- priorities ------------------------------------------------------------------------------------


def test_priorities_that_nothing_goes_by_are_refused_and_the_writer_goes_on(
    writing: Making,
) -> None:
    table = writing.table()
    writer = writing.writer(table)
    for call in (
        lambda: writer.append(x=1, reward=0.5, priority=1.0),
        lambda: writer.extend(steps(2), priority=[1.0, 2.0]),
        lambda: writer.extend(steps(2), priority=[1.0, math.nan]),
        lambda: writer.append(x=1, reward=0.5, priority=1.0),
    ):
        with pytest.raises(
            Unsupported,
            match=r"^this table's Uniform\(.*\) and Fifo\(\) use no priorities: leave them out",
        ):
            call()
    writer.append(x=1, reward=0.5)
    writer.flush()
    assert len(table) == 1


@pytest.mark.slow
def test_a_first_step_whose_priority_is_refused_says_nothing_of_other_steps(
    writing: Making,
) -> None:
    for settings, error in (({}, Unsupported), ({"sampler": Prioritized()}, ConfigError)):
        table = writing.table(100, None, **settings)
        writer = writing.writer(table)
        wrong = 1.0 if error is Unsupported else -1.0
        with pytest.raises(error):
            writer.append(x=1, priority=wrong)
        with pytest.raises(error):
            writer.extend(x=np.arange(2), priority=[wrong, wrong])
        assert table.schema is None
        writer.append(y=1)
        writer.flush()
        assert table.schema is not None
        assert table.schema.fields[0].name == "y"


@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_several_ends_for_one_step_are_refused(writing: Making, name: str) -> None:
    table = writing.table()
    writer = writing.writer(table)
    with pytest.raises(SchemaError, match=rf"{name}=.*use extend for many steps"):
        writer.append(x=1, reward=0.5, **{name: np.ones(3)})
    writer.append(x=1, reward=0.5, **{name: np.ones(1)})
    writer.flush()
    assert len(table) == 1


def test_a_vectors_priorities_are_refused_as_those_of_any_writer(writing: Making) -> None:
    table = writing.table()
    ends = {"terminated": np.zeros(2, np.bool_), "truncated": np.zeros(2, np.bool_)}
    with (
        table.vector_writer(2, autoreset="next_step") as writer,
        pytest.raises(Unsupported, match="use no priorities"),
    ):
        writer.append(**steps(2), next_obs=np.zeros(2), priority=[1.0, 2.0], **ends)
    assert len(table) == 0


def test_priorities_are_taken_from_when_a_source_goes_by_them(make: Making) -> None:
    table = make.table()
    writer = make.writer(table)
    with pytest.raises(Unsupported, match="use no priorities"):
        writer.append(x=1, reward=0.0, priority=1.0)
    writer.extend(steps(4))
    writer.flush()
    with AsyncDataLoader(table.source(sampler=Prioritized()), 2, timeout_s=60) as loader:
        next(loader)
        writer.append(x=5, reward=0.0, priority=1.0)
        writer.flush()
    assert table.get([4])["x"].tolist() == [5]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (math.nan, "is NaN: " + ALLOWED + "; leave that row out, or give it a number"),
        (-1.0, "is -1.0: " + ALLOWED),
        (math.inf, "is inf: " + ALLOWED),
        (1e200, r"is 1e\+200: " + ALLOWED),
    ],
)
def test_a_priority_of_many_that_cannot_be_is_named_by_its_place(
    writing: Making, wrong: float, said: str
) -> None:
    table = writing.table(sampler=Prioritized())
    writer = writing.writer(table)
    with pytest.raises(ConfigError, match=f"^priority 1 of 3 {said}"):
        writer.extend(steps(3), priority=[1.0, wrong, 2.0])
    with pytest.raises(
        ConfigError,
        match="^priority is NaN: .* leave it out" if wrong != wrong else f"^priority 0 of 1 {said}",
    ):
        writer.append(x=1, reward=0.0, priority=wrong)
    writer.extend(steps(3), priority=[1.0, 0.0, 2.0])
    writer.flush()
    with pytest.raises(ConfigError, match=f"^priority 1 of 2 {said}"):
        table.update_priorities([0, 1], [1.0, wrong])
    assert len(table) == 3


@pytest.mark.slow
@pytest.mark.parametrize("schema", [None, {"x": "int64"}], ids=["no schema", "a schema"])
def test_no_priorities_are_updated_where_none_are_given(make: Making, schema: Any) -> None:
    table = make.table(100, schema, sampler=Prioritized())
    assert table.update_priorities([], []) == Applied(0, 0)
    assert table.update_priorities([3], [1.0]) == Applied(0, 1)
    with pytest.raises(ConfigError, match="priority 0 of 1 is NaN"):
        table.update_priorities([3], [math.nan])
    plain = make.table(100, schema)
    for ids, priority in (([], []), ([0], [1.0]), ([0], [-1.0]), ([0], [math.nan])):
        with pytest.raises(
            Unsupported,
            match=r"^this table samples by Uniform\(.*\), and has no priorities to update",
        ):
            plain.update_priorities(ids, priority)


# -- before the first step -------------------------------------------------------------------------


def test_calls_by_id_before_there_is_a_schema_find_nothing(make: Making) -> None:
    table = make.table(100, None)
    assert table.update([0, 1], x=[1, 2]) == table.delete([0, 1]) == Applied(0, 2)
    assert table.update([], x=[]) == table.delete([]) == Applied(0, 0)
    for ids in ([0, 1], []):
        found = table.get(ids, view=Transitions(3))
        assert list(found) == ["index"]
        assert (found["index"].dtype, len(found["index"])) == (np.int64, 0)
    for call in (
        lambda: table.get([0], view="n"),  # type: ignore[arg-type]
        lambda: table.get(["a"]),
        lambda: table.update(["a"], x=[1]),
        lambda: table.delete([[0]]),
    ):
        with pytest.raises(ConfigError):
            call()
    with pytest.raises(NotEnoughData):
        table.sample(1)
    assert table.schema is None


@pytest.mark.slow
def test_an_episode_that_has_no_step_is_ended_whatever_came_after_it(writing: Making) -> None:
    table = writing.table(100, FOLLOWED)
    writer = writing.writer(table)
    writer.end_episode(final_obs=5.0)
    with pytest.raises(SchemaError):
        writer.end_episode(final_obs=np.zeros(3))
    writer.append(obs=0.0)
    writer.append(obs=1.0, truncated=True, final_obs=2.0)
    writer.end_episode(final_obs=9.0)  # again: it has ended
    writer.flush()
    found = table.get(range(9))
    assert (found["obs"].tolist(), found["next_obs"].tolist()) == ([0.0, 1.0], [1.0, 2.0])
    plain = writing.writer(writing.table())
    with pytest.raises(SchemaError, match="final_obs is given"):
        plain.end_episode(final_obs=1.0)


def test_nothing_is_known_of_a_last_observation_before_there_is_a_schema(writing: Making) -> None:
    table = writing.table(100, None)
    writer = writing.writer(table)
    writer.end_episode(final_obs=5.0)
    assert table.schema is None
    writer.append(x=1)
    writer.flush()
    assert len(table) == 1


@pytest.mark.parametrize("first", ["append", "extend"])
def test_fields_stand_in_the_order_of_the_first_step(writing: Making, first: str) -> None:
    table = writing.table(100, None)
    writer = writing.writer(table)
    step = {"z": 1, "b": {"y": 2.0, "a": 3}}
    if first == "append":
        writer.append(step, terminated=True)
    else:
        writer.extend(
            {"z": np.array([1]), "b": {"y": np.array([2.0]), "a": np.array([3])}}, terminated=True
        )
    writer.flush()
    assert table.schema is not None
    assert [field.name for field in table.schema.fields] == [
        "z",
        "b.y",
        "b.a",
        "terminated",
        "truncated",
    ]
    for batch in (table.get([0]), table.sample(1)):
        assert list(batch) == ["z", "b", "terminated", "truncated", "index"]
        assert list(batch["b"]) == ["y", "a"]


# -- names of streams ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [1.5, ("a", (0.25, None)), np.float32(0.5), np.int64(3)], ids=repr)
def test_a_stream_that_may_be_named_so_is_saved_and_found_again(
    make: Making, name: Any, folder: Any
) -> None:
    table = make.table(100, {"reward": "float32"}, view=Transitions(2, 0.5))
    writer = make.writer(table, name)
    writer.append(reward=1.0)
    writer.flush()
    table.save(folder)
    table.load(folder)
    writer.append(reward=2.0)
    writer.end_episode(stream=name)
    writer.flush()
    assert table.get(range(9))["reward"].tolist() == [1.0, 2.0]


class Name:
    def __repr__(self) -> str:
        return "Name"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [frozenset({1}), Name(), b"a", math.nan, math.inf, 1j, ("a", b"b"), ("a", math.nan)],
    ids=repr,
)
def test_a_stream_that_could_not_be_saved_is_refused_at_once(writing: Making, name: Any) -> None:
    table = writing.table(100, {"x": "int64"})
    writer = writing.writer(table)
    said = "cannot be saved: name streams by numbers, strings, or tuples of these"
    for call in (
        lambda: writer.append(x=1, stream=name),
        lambda: writer.end_episode(stream=name),
        lambda: writer.extend(x=np.arange(1), stream=[name]),
        lambda: table.writer(name),
    ):
        with pytest.raises(ConfigError, match=said):
            call()
    writer.flush()
    assert len(table) == 0


def test_writers_of_one_process_share_a_named_stream_and_those_of_a_feeder_do_not(
    make: Making,
) -> None:
    table = make.table(100, FOLLOWED)
    for obs in (0.0, 1.0, 2.0, 3.0):
        writer = make.writer(table, "left")
        writer.append(obs=obs)
        writer.flush()
    found = table.get(range(9))
    linked = dict(zip(found["obs"].tolist(), found["next_obs"].tolist(), strict=True))
    assert linked == ({0.0: 1.0, 1.0: 2.0, 2.0: 3.0} if make.kind.table is ReplayBuffer else {})


# -- views -----------------------------------------------------------------------------------------


def test_a_view_that_is_refused_changes_nothing(make: Making) -> None:
    table = make.table(100, sampler=Fifo())
    writer = make.writer(table)
    writer.extend(steps(100))
    writer.flush()
    assert len(table) == 100
    with pytest.raises(ConfigError, match="draws no item twice, and 50 are more"):
        table.sample(50, view=Transitions(90), timeout_s=60)
    assert len(table) == 100
    with pytest.raises((ConfigError, Unsupported), match="min_size=50"):
        with AsyncDataLoader(
            table.source(view=Transitions(90), min_size=50), 4, timeout_s=60
        ) as loader:
            next(loader)
    assert len(table) == 100
    assert len(table.sample(8, view=Transitions(90))["x"]) == 8  # those that there can be
    assert len(table) == 11


# -- what is said ----------------------------------------------------------------------------------


def test_stats_name_the_waiting_streams_and_for_how_long(make: Making) -> None:
    table = make.table(limiter=MinSize(3))
    thread = threading.Thread(target=lambda: table.sample(2, timeout_s=60))
    thread.start()
    until(lambda: bool(table.stats().waiting))
    (first,) = table.stats().waiting
    assert (first.what, first.waited_s >= 0.0) == ("sample", True)
    until(lambda: table.stats().waiting[0].waited_s > first.waited_s)
    writer = make.writer(table)
    writer.extend(steps(3))
    writer.flush()
    thread.join(60)
    assert table.stats().waiting == ()


def test_fields_by_place_are_told_what_to_type(writing: Making) -> None:
    table = writing.table()
    writer: Any = writing.writer(table)
    with pytest.raises(
        TypeError,
        match=r"\.append\(\) takes one step by place, a dict of fields, and 3 values were given",
    ):
        writer.append(1, 0.5, True)
    with pytest.raises(
        TypeError,
        match=r"name the fields, as in extend\(obs=\.\.\., action=\.\.\., reward=\.\.\.\)$",
    ):
        writer.extend(np.arange(2), np.zeros(2))
    with pytest.raises(
        SchemaError, match=r"a step is a dict of fields, not int: give a dict, or name the fields"
    ):
        writer.append(1)
    writer.flush()
    with table.vector_writer(2, autoreset="disabled") as vector:
        add: Any = vector.append
        with pytest.raises(TypeError, match=r"by place, and 5 .*\(obs=, .*next_obs=, terminated="):
            add([1, 2], [0, 1], [1, 2], [0.0, 1.0], [False, True])
    assert len(table) == 0


def test_a_first_step_that_says_its_end_under_another_name_only_is_refused(
    writing: Making,
) -> None:
    """Of its writer's own flags none was given, so that they do not say it either."""
    table = writing.table(100, None, view=Transitions(n_steps=3))
    refused = (ConfigError, SchemaError)
    said = r"field 'dones' ends no episode.* name it 'terminated'"
    with pytest.raises(refused, match=said), contextlib.ExitStack() as stack:
        writing.kind.open(stack, table, None).append(obs=0.0, reward=1.0, dones=False)
    batch = {"obs": np.zeros(2), "reward": np.ones(2, np.float32), "is_last": np.zeros(2, bool)}
    with pytest.raises(refused, match="'is_last' ends no"), contextlib.ExitStack() as stack:
        writing.kind.open(stack, table, None).extend(batch)
    writer = writing.writer(table)
    writer.append(obs=0.0, reward=1.0, dones=True, terminated=True)
    writer.append(obs=1.0, reward=1.0, dones=False)
    writer.flush()
    assert len(table) == 1
