"""Episodes and streams as users hand them over: done, names of streams, vectors of environments,
resume, refusals.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import Field, RateLimiter, ReplayBuffer, Sequences, Transitions, Uniform
from async_loader.errors import (
    Closed,
    ConfigError,
    SchemaError,
    Timeout,
)

OBS = {"obs": Field((), np.int64, next="next_obs"), "reward": np.float32}
ENDS = {"terminated": np.bool_, "truncated": np.bool_}
NO = np.zeros(2, np.bool_)


def pairs(buffer: ReplayBuffer) -> set[tuple[int, int]]:
    batch = buffer.sample(30 * len(buffer))
    return set(zip(batch["obs"].tolist(), batch["next_obs"].tolist(), strict=True))


@pytest.mark.parametrize(
    "schema", [{**OBS, "terminated": np.bool_, "done": np.bool_}, {**OBS, **ENDS, "done": np.bool_}]
)
@pytest.mark.parametrize("way", ["add", "extend", "writer"])
def test_done_ends_the_episode_as_terminated_also_beside_terminated(schema: Any, way: str) -> None:
    with ReplayBuffer(100, schema, seed=0) as buffer:
        others = {name: False for name in schema if name in ENDS}
        steps = [{"obs": t, "reward": 1.0, "done": t % 3 == 2, **others} for t in range(9)]
        if way == "extend":
            buffer.extend(
                {name: np.array([step[name] for step in steps]) for name in steps[0]}, stream=0
            )
        else:
            writer = buffer.writer()
            for step in steps:
                buffer.add(step) if way == "add" else writer.append(step)
        batch = buffer.sample(200, view=Transitions(n_steps=1))
        last = batch["obs"] % 3 == 2
        assert (batch["next_obs"] // 3 == batch["obs"] // 3).all()
        assert (batch["discount"][last] == 0).all()
        assert (batch["discount"][~last] > 0).all()


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
@pytest.mark.parametrize("ends", [("terminated", "truncated"), ("done",), ("terminated", "done")])
@given(
    over=st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=5, max_size=40),
    ways=st.lists(st.sampled_from(["add", "append", "extend", "writer extend"]), min_size=1),
)
@settings(max_examples=15)
def test_an_end_field_may_have_a_shape_of_ones(
    shape: tuple[int, ...], ends: tuple[str, ...], over: list[int], ways: list[str]
) -> None:
    """Steps, returns, stacks and sequences are those of a table whose ends are plain numbers."""
    plain, shaped = (
        ReplayBuffer(
            100,
            {
                "obs": Field((), np.int64, stack=2),
                "reward": np.float32,
                **{name: Field(one, np.bool_) for name in ends},
            },
        )
        for one in ((), shape)
    )
    for buffer, one in ((plain, ()), (shaped, shape)):
        writer, t = buffer.writer(), 0
        for count, way in enumerate(itertools.cycle(ways), 1):
            steps = range(t, min(len(over), t + count % 4 + 1))
            t = steps.stop
            said = {
                name: np.array([over[k] == (2 if name == "truncated" else 1) for k in steps])
                for name in ends
            }
            columns = {"obs": np.array(steps), "reward": np.ones(len(steps))}
            if way == "writer extend" and "terminated" in ends:
                writer.extend(columns, **{k: v for k, v in said.items() if k != "done"})
            elif way in ("extend", "writer extend"):
                rows = {name: value.reshape(-1, *one) for name, value in said.items()}
                buffer.extend(columns | rows, stream=writer.stream)
            else:
                for k, obs in enumerate(steps):
                    step = {"obs": obs, "reward": 1.0}
                    if way == "append" and "terminated" in ends:
                        writer.append(
                            step, **{n: bool(v[k]) for n, v in said.items() if n != "done"}
                        )
                    else:
                        whole = {n: np.full(one, v[k]) if one else v[k] for n, v in said.items()}
                        buffer.add(step | whole, stream=writer.stream)
            if t == len(over):
                break
    ids = np.arange(len(over))
    for view in (None, Transitions(3), Sequences(3)):
        left, right = plain.get(ids, view=view), shaped.get(ids, view=view)
        assert left.keys() == right.keys()
        for name, column in left.items():
            assert column.tolist() == right[name].reshape(column.shape).tolist(), name
            assert right[name].shape == column.shape + (shape if name in ends else ())


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float32])
@pytest.mark.parametrize("way", ["add", "extend"])
def test_an_end_field_ends_an_episode_with_any_number_but_zero(dtype: Any, way: str) -> None:
    says = np.array([0, 256, -0.0, 0.5, 0, 1, 0]).astype(dtype)
    with ReplayBuffer(10, {"obs": Field((), np.int64, stack=2), "terminated": dtype}) as buffer:
        if way == "add":
            for t, said in enumerate(says):
                buffer.add(obs=t, terminated=said)
        else:
            for steps in np.split(np.arange(7), [3, 6]):  # the second one is gathered
                buffer.extend(obs=steps, terminated=says[steps], stream=0)
        before = buffer.get(np.arange(7))["obs"][:, 0]
        assert before.tolist() == [0, *(t + (said != 0) for t, said in enumerate(says[:-1]))]


@pytest.mark.parametrize(
    "stream",
    [[0, 1], range(2), np.array([0, 1]), torch.tensor([0, 1])],
    ids=lambda s: type(s).__name__,
)
def test_a_sequence_of_names_is_one_for_each_row(stream: Any) -> None:
    buffer = ReplayBuffer(100, OBS, seed=0)
    for t in range(5):
        buffer.extend(obs=np.array([t, 100 + t]), reward=np.zeros(2), stream=stream)
    assert pairs(buffer) == {(t + k, t + k + 1) for t in range(4) for k in (0, 100)}
    with pytest.raises(ConfigError, match="could be the name of one stream"):
        buffer.extend(obs=np.arange(2), reward=np.zeros(2), stream=(0, 1))


def test_the_first_step_after_a_load_does_not_follow_the_last_one_before(tmp_path: Path) -> None:
    buffer = ReplayBuffer(
        100, {**OBS, "terminated": np.bool_}, sampler=Uniform(replacement=False), seed=0
    )
    with buffer, buffer.writer("far") as far:
        named, vector = (
            buffer.writer("left"),
            buffer.vector_writer(2, streams=["a", "b"], autoreset="disabled"),
        )
        del vector
        for t in range(4):
            buffer.add(obs=t, reward=0.0, terminated=False)
            named.append(obs=100 + t, reward=0.0)
            far.append(obs=200 + t, reward=0.0)
        far.flush()
        buffer.save(tmp_path)
    with ReplayBuffer.from_checkpoint(tmp_path) as again:
        assert again.stats().streams == 3
        again.end_episode(stream="left", final_obs=104)  # this is known after all
        with again.writer("far") as far:
            for t in range(4):
                again.add(obs=1000 + t, reward=0.0, terminated=False)
                again.writer("left").append(obs=1100 + t, reward=0.0)
                far.append(obs=1200 + t, reward=0.0)
            far.flush()
        found = {
            int(o): int(n)
            for o, n in zip(*map(again.sample(len(again)).get, ("obs", "next_obs")), strict=True)
        }
    assert all(after == before + 1 for before, after in found.items())
    assert 103 in found
    assert not {3, 203} & set(found)


def test_a_vector_is_in_as_a_whole_or_not_at_all_under_a_limiter() -> None:
    limiter = RateLimiter(min_size_to_sample=3, samples_per_insert=1.0, error_buffer=6)
    buffer = ReplayBuffer(
        200, {**OBS, **ENDS}, limiter=limiter, sampler=Uniform(replacement=False), seed=0
    )
    writer, no, t, refused = buffer.vector_writer(4, autoreset="next_step"), np.zeros(4, bool), 0, 0
    for _ in range(60):
        before = writer.steps
        try:
            obs = np.arange(4) * 100 + t
            writer.append(
                obs=obs,
                reward=np.zeros(4),
                next_obs=obs + 1,
                terminated=no,
                truncated=no,
                timeout_s=0,
            )
            t += 1
            assert writer.steps == before + 4
        except Timeout:
            refused += 1
            assert writer.steps == before
            buffer.sample(min(5, len(buffer)), timeout_s=0)
    assert refused > 5
    buffer.limiter = None
    assert all(after == before + 1 for before, after in pairs_once(buffer))
    small, ends = (
        ReplayBuffer(
            200,
            {"x": np.int64, **ENDS},
            limiter=RateLimiter(min_size_to_sample=1, samples_per_insert=1.0, error_buffer=2.0),
        ),
        np.zeros(8, bool),
    )
    with pytest.raises(ConfigError, match="together or not at all"):
        small.vector_writer(8, autoreset="next_step").append(
            x=np.arange(8), next_obs=0, terminated=ends, truncated=ends
        )


def pairs_once(buffer: ReplayBuffer) -> list[tuple[int, int]]:
    batch = buffer.sample(len(buffer))
    return list(zip(batch["obs"].tolist(), batch["next_obs"].tolist(), strict=True))


def test_reset_ends_the_open_episodes_of_a_vector_without_a_link() -> None:
    buffer = ReplayBuffer(100, {**OBS, **ENDS}, seed=0)
    with buffer.vector_writer(2, autoreset="next_step") as writer:
        for t in range(3):
            ends = np.array([False, t == 2])
            obs = np.array([t, 100 + t])
            writer.append(
                obs=obs, reward=np.zeros(2), next_obs=obs + 1, terminated=ends, truncated=NO
            )
        writer.reset()  # the second environment is not reset by the next call any more
        for t in range(10, 13):
            obs = np.array([t, 100 + t])
            assert (
                len(
                    writer.append(
                        obs=obs, reward=np.zeros(2), next_obs=obs + 1, terminated=NO, truncated=NO
                    )
                )
                == 2
            )
    assert pairs(buffer) == {
        (0, 1),
        (1, 2),
        (100, 101),
        (101, 102),
        (102, 103),
        (10, 11),
        (11, 12),
        (110, 111),
        (111, 112),
    }
    with pytest.raises(Closed):
        writer.append(obs=obs, reward=np.zeros(2), next_obs=obs, terminated=NO, truncated=NO)


LISTED: dict[str, Any] = {
    "of Stable-Baselines3": [
        {},
        {"terminal_observation": np.int64(7), "TimeLimit.truncated": True},
    ],
    "of Gymnasium": {"final_obs": [None, 7]},
    "an older one of Gymnasium": {"final_observation": [None, 7]},
    "each a tuple": ({"final_obs": None}, {"final_obs": 7, "TimeLimit.truncated": True}),
    "as objects": np.array([{}, {"final_obs": 7, "TimeLimit.truncated": True}], object),
}


@pytest.mark.parametrize("info", LISTED.values(), ids=LISTED)
def test_last_observations_are_found_in_what_vectors_call_info(info: Any) -> None:
    buffer = ReplayBuffer(100, {**OBS, **ENDS}, seed=0)
    writer = buffer.vector_writer(2, autoreset="same_step")
    done, limit = np.array([False, True]), not isinstance(info, dict)
    writer.append(
        obs=np.array([1, 6]),
        reward=NO,
        next_obs=np.array([2, 0]),
        terminated=done & limit,  # Stable-Baselines3 has one flag for both
        truncated=done & (not limit),
        info=info,
    )
    assert pairs(buffer) == {(6, 7)}
    assert buffer.sample(1)["truncated"].all()
    assert not buffer.sample(1)["terminated"].any()


@pytest.mark.parametrize("shown", ["linked", "stored", "learned", "neither"])
@pytest.mark.parametrize("info", [None, {}, [{}, {}]])
def test_a_vector_without_last_observations_may_terminate(shown: str, info: Any) -> None:
    """A truncated step needs one where next observations are shown: it would be bootstrapped from
    the next episode.
    """
    plain = {"obs": "int64", "reward": "float32", **ENDS}
    schemas: dict[str, Any] = {
        "linked": {**OBS, **ENDS},
        "stored": {**plain, "next_obs": "int64"},
        "learned": None,
        "neither": plain,
    }
    buffer = ReplayBuffer(100, schemas[shown], seed=0)
    writer, ended = buffer.vector_writer(2, autoreset="same_step"), np.array([False, True])
    step = {"obs": np.array([1, 6]), "reward": np.zeros(2), "next_obs": np.array([2, 0])}
    if shown != "neither":
        with pytest.raises(SchemaError, match="1 was truncated, and info lacks its last obs"):
            writer.append(**step, terminated=NO, truncated=ended, info=info)
    else:
        writer.append(**step, terminated=NO, truncated=ended, info=info)
    writer.append(**step, terminated=ended, truncated=NO, info=info)
    batch = buffer.sample(100)
    if shown != "neither":
        assert set(batch["next_obs"][batch["terminated"]].tolist()) == {6}
    assert {1, 6} >= set(batch["obs"].tolist()) >= {6}


class TensorDict(dict[str, Any]):
    """As the package of that name has it: a mapping that iterates over its rows."""

    def __init__(self, fields: dict[str, Any], *batch_size: int) -> None:
        super().__init__(fields)
        self.batch_size = batch_size

    def __iter__(self) -> Any:
        raise StopIteration

    def to_dict(self) -> dict[str, Any]:
        return dict(self.items())


def test_a_tensordict_is_taken_as_what_it_holds() -> None:
    buffer = ReplayBuffer(10)
    buffer.add(TensorDict({"x": torch.tensor(1.0)}))
    buffer.extend(TensorDict({"x": torch.arange(2.0)}, 2))
    assert len(buffer) == 3
    with pytest.raises(SchemaError, match="is not one step: extend"):
        buffer.add(TensorDict({"x": torch.arange(2.0)}, 2))
    with pytest.raises(SchemaError, match="add\\(\\) adds one step"):
        buffer.extend(TensorDict({"x": torch.tensor(1.0)}))
