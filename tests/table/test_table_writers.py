"""What holds for every writer: of the table's process, of another one, of a feeder. One function
for all, as an actor is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from table_rig import Making

from async_loader import Field, Transitions
from async_loader.errors import Closed, ConfigError, SchemaError
from async_loader.table import Table, Writer

pytestmark = pytest.mark.usefixtures("near_feeders")

PLAIN = {"x": "int64", "terminated": "bool", "truncated": "bool"}
FOLLOWED = {"obs": Field((), "float32", next="next_obs"), "terminated": "bool", "truncated": "bool"}


def rows(table: Table, most: int = 40) -> dict[str, Any]:
    return table.get(range(most))


def test_an_actor_moves_by_one_line(writing: Making) -> None:
    def act(writer: Writer) -> None:
        for n in range(3):
            writer.append(x=n, terminated=n == 2)
        writer.extend(x=np.arange(3, 6))
        writer.end_episode()
        writer.flush()

    table = writing.table(100, PLAIN)
    act(writing.writer(table))
    assert rows(table)["x"].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_step_is_a_dict_or_keywords(writing: Making) -> None:
    table = writing.table()
    writer = writing.writer(table)
    step = {"x": 1, "reward": 0.5}
    writer.append(step)
    writer.append(**step)
    batch = {"x": np.array([1]), "reward": np.array([0.5])}
    writer.extend(batch)
    writer.extend(**batch)
    writer.flush()
    assert rows(table)["x"].tolist() == [1] * 4
    assert list(step) == list(batch) == ["x", "reward"]  # nothing was put into them
    for wrong in (lambda: writer.append(step, x=1), lambda: writer.extend(batch, x=np.array([1]))):
        with pytest.raises(SchemaError, match="one or the other"):
            wrong()


def test_ends_are_false_unless_given(writing: Making) -> None:
    table = writing.table(100, PLAIN)
    writer = writing.writer(table)
    writer.append(x=0)
    writer.append(x=1, terminated=True)
    writer.extend(x=np.array([2, 3]))
    writer.extend(x=np.array([4, 5]), truncated=True)
    writer.extend(x=np.array([6, 7]), terminated=np.array([False, True]), truncated=[True, False])
    writer.append({"x": 8, "terminated": True}, terminated=False)  # the step says it itself
    writer.flush()
    found = rows(table)
    assert found["terminated"].tolist() == [
        False,
        True,
        False,
        False,
        False,
        False,
        False,
        True,
        True,
    ]
    assert found["truncated"].tolist() == [
        False,
        False,
        False,
        False,
        True,
        True,
        True,
        False,
        False,
    ]


def test_the_observation_after_an_episode_is_a_keyword(writing: Making) -> None:
    table = writing.table(100, FOLLOWED)
    writer = writing.writer(table)
    writer.append(obs=0.0)
    writer.append(obs=1.0, truncated=True, final_obs=9.0)
    writer.extend(
        obs=np.array([2.0, 3.0], np.float32),
        terminated=[False, True],
        final_obs=np.array([0.0, 8.0], np.float32),
    )
    writer.append(obs=4.0)
    writer.end_episode(final_obs=7.0, truncated=True)
    writer.flush()
    found = rows(table)
    assert found["obs"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert found["next_obs"].tolist() == [1.0, 9.0, 3.0, 8.0, 7.0]
    assert found["truncated"].tolist() == [False, True, False, False, True]
    with pytest.raises(TypeError):
        writer.end_episode(7.0)  # type: ignore[misc]
    with pytest.raises(SchemaError, match="a truncated step needs final_obs"):
        writer.append(obs=5.0, truncated=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["left", 7, ("left", 3), ("a", ("b", 1)), 1.5, None, ("a", 1.5)], ids=repr
)
def test_numbers_strings_and_tuples_of_these_name_a_stream(writing: Making, name: Any) -> None:
    table = writing.table(100, FOLLOWED)
    writer = writing.writer(table, name)
    other = "other" if name is None else name
    for obs in (0.0, 1.0):
        writer.append(obs=obs)
        writer.append(obs=obs + 10, stream="another")
    writer.append(obs=2.0, stream=None if name is None else name)
    writer.append(obs=50.0, stream=other)
    writer.flush()
    found = rows(table)
    linked = dict(zip(found["obs"].tolist(), found["next_obs"].tolist(), strict=True))
    assert linked == {0.0: 1.0, 1.0: 2.0, 10.0: 11.0, **({} if name is None else {2.0: 50.0})}


def test_rows_of_a_batch_may_have_a_stream_each(writing: Making) -> None:
    table = writing.table(100, FOLLOWED)
    writer = writing.writer(table)
    for start in (0.0, 100.0, 200.0):
        writer.extend(
            obs=np.arange(3, dtype=np.float32) + np.float32(start), stream=["a", ("b", 2), 3]
        )
    writer.extend(obs=np.array([300.0, 400.0], np.float32), stream="a")
    writer.flush()
    found = rows(table)
    linked = dict(zip(found["obs"].tolist(), found["next_obs"].tolist(), strict=True))
    assert linked == {
        0.0: 100.0,
        1.0: 101.0,
        2.0: 102.0,
        100.0: 200.0,
        101.0: 201.0,
        102.0: 202.0,
        200.0: 300.0,
        300.0: 400.0,
    }
    with pytest.raises(SchemaError, match="2 streams are given for 3 rows"):
        writer.extend(obs=np.zeros(3, np.float32), stream=["a", "b"])


def test_close_ends_every_episode_that_the_writer_has_open(writing: Making) -> None:
    table = writing.table(100, {"reward": "float32"}, view=Transitions(3, 1.0))
    writer = writing.writer(table)
    writer.append(reward=1.0)
    writer.extend(reward=np.array([2.0, 4.0], np.float32), stream=["a", "b"])
    writer.flush()
    assert len(table) == 0
    writer.close()
    writer.close()
    assert sorted(rows(table)["reward"].tolist()) == [1.0, 2.0, 4.0]
    for call in (
        lambda: writer.append(reward=1.0),
        lambda: writer.extend(reward=np.zeros(2, np.float32)),
        lambda: writer.extend(reward=np.zeros(0, np.float32)),
        lambda: writer.end_episode(),
        lambda: writer.flush(),
    ):
        with pytest.raises(Closed, match="this writer"):
            call()
    with pytest.raises(ConfigError, match="timeout_s="):
        writer.close(timeout_s=-1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"x": 1}, "lacks 'reward'"),
        ({"x": 1, "reward": 0.5, "y": 2}, "has also 'y'"),
        ({"x": "a", "reward": 0.5}, "'x'"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_by_name(
    writing: Making, step: dict[str, Any], said: str
) -> None:
    table = writing.table()
    writer = writing.writer(table)
    with pytest.raises(SchemaError, match=said):
        writer.append(step)
    with pytest.raises(SchemaError, match=said):
        writer.extend({name: np.array([value]) for name, value in step.items()})
    writer.append(x=1, reward=0.5)
    writer.flush()
    assert len(table) == 1


# -- vectors of environments -----------------------------------------------------------------------


class Envs:
    num_envs = 2
    metadata = {"autoreset_mode": "next_step"}  # noqa: RUF012 - as Gymnasium has it


def test_each_environment_is_a_stream_and_resets_are_no_steps(writing: Making) -> None:
    table = writing.table(100, FOLLOWED)
    obs = np.array([[0, 1, 2, 100, 101], [10, 11, 12, 13, 14]], np.float32)
    with table.vector_writer(Envs()) as writer:
        for t in range(4):
            ended = np.array([t == 1, False])  # the next call resets the first
            writer.append(
                obs=obs[:, t],
                next_obs=obs[:, t + 1],
                terminated=ended,
                truncated=np.zeros(2, np.bool_),
            )
        writer.flush()
    found = rows(table)
    linked = dict(zip(found["obs"].tolist(), found["next_obs"].tolist(), strict=True))
    assert linked == {0.0: 1.0, 1.0: 2.0, 10.0: 11.0, 11.0: 12.0, 12.0: 13.0}
    assert found["terminated"].tolist().count(True) == 1


def test_a_vectors_steps_go_in_together_or_not_at_all(writing: Making) -> None:
    table = writing.table(100, PLAIN)
    ends = {"terminated": np.zeros(2, np.bool_), "truncated": np.zeros(2, np.bool_)}
    with table.vector_writer(2, autoreset="next_step") as writer:
        for wrong in (
            {"x": np.zeros(3, np.int64)},
            {"x": np.zeros(2), "y": np.zeros(2)},
            {"x": np.array(["a", "b"])},
        ):
            with pytest.raises(SchemaError):
                writer.append(next_obs=np.zeros(2), **wrong, **ends)
        writer.append(x=np.arange(2), next_obs=np.zeros(2), **ends)
        writer.flush()
        assert sorted(rows(table)["x"].tolist()) == [0, 1]
        writer.reset()
        writer.append(x=np.arange(2), next_obs=np.zeros(2), **ends)
        writer.flush()
    assert len(table) == 4
    with pytest.raises(Closed):
        writer.append(x=np.arange(2), next_obs=np.zeros(2), **ends)
