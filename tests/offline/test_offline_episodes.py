"""Episodes into a table and out again: each step, each end, each observation after an end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import Field, MinSize, ReplayBuffer, Sequences, connect
from async_loader.errors import SchemaError
from async_loader.offline import (
    BadData,
    from_episodes,
    from_npz,
    to_npz,
)


def episode(steps: int, seed: int = 0, *, truncated: bool = False, nested: bool = False) -> dict:
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(steps + 1, 3)).astype(np.float32)
    ended = np.arange(steps) == steps - 1
    return {
        "obs": {"place": obs, "pair": {"a": obs[:, 0] * 2, "b": obs[:, :2]}} if nested else obs,
        "action": rng.integers(0, 5, steps),
        "reward": rng.normal(size=steps),
        "terminated": ended & (not truncated),
        "truncated": ended & truncated,
    }


def rows(table: ReplayBuffer) -> dict:
    return table.get(np.arange(2 * (table.capacity or 1)))


def flat(value, name=""):
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, tuple):
        pairs = enumerate(value)
    else:
        return {name: value}
    return {k: v for key, one in pairs for k, v in flat(one, f"{name}.{key}").items()}


def same(one: dict, other: dict) -> bool:
    one, other = flat(one), flat(other)
    return one.keys() == other.keys() and all(
        one[k].dtype == other[k].dtype and np.array_equal(one[k], other[k]) for k in one
    )


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=12),
    st.booleans(),
)
def test_a_table_shows_each_step_as_it_was_and_files_make_an_equal_table(
    tmp_path_factory, lengths, nested
):
    episodes = [
        episode(steps, i, truncated=truncated, nested=nested)
        for i, (steps, truncated) in enumerate(lengths)
    ]
    table = from_episodes(episodes)
    shown = flat(rows(table))
    assert len(table) == sum(steps for steps, _ in lengths)
    for name in ("action", "reward", "terminated", "truncated"):
        assert np.array_equal(shown[f".{name}"], np.concatenate([one[name] for one in episodes]))
    for name in [key for key in shown if key.startswith(".obs")]:
        given_ = [flat(one)[name] for one in episodes]
        after = name.replace(".obs", ".next_obs")
        assert np.array_equal(shown[name], np.concatenate([one[:-1] for one in given_]))
        assert np.array_equal(shown[after], np.concatenate([one[1:] for one in given_]))
    folder = tmp_path_factory.mktemp("npz")
    assert len(to_npz(table, folder)) == len(episodes)
    assert same(rows(from_npz(folder)), rows(table))


NAMED = {
    "obs": "observations",
    "action": "actions",
    "terminated": "terminals",
    "truncated": "timeouts",
}


def test_the_observation_after_an_end_comes_in_three_ways_with_one_result():
    whole = episode(4, truncated=True)
    first, last = whole["obs"][:-1], whole["obs"][-1]
    ways = [
        whole,
        {**whole, "obs": first, "next_obs": whole["obs"][1:]},
        {**whole, "obs": first, "final_obs": last},
        {**whole, "truncated": True, "terminated": False},
        {NAMED.get(name, name): value for name, value in whole.items()},
    ]
    tables = [from_episodes([way, way]) for way in ways]
    assert all(same(rows(table), rows(tables[0])) for table in tables)


def test_a_schema_chooses_fields_and_dtypes_and_options_reach_the_table():
    schema = {
        "obs": Field((3,), "float16", stack=2, next="next_obs"),
        "reward": "float32",
        "terminated": "bool",
    }
    table = from_episodes(
        [episode(6), episode(5, 1, truncated=True)],
        schema=schema, capacity=40, view=Sequences(2), seed=3, limiter=MinSize(4),
    )  # fmt: skip
    assert (table.capacity, table.view, table.limiter) == (40, Sequences(2), MinSize(4))
    assert table.sample(2)["obs"].shape == (2, 2, 2, 3)
    halves = from_episodes([episode(6)], float_dtype="float16")
    assert halves.schema is not None
    assert {f.dtype.name for f in halves.schema.fields} == {"float16", "int64", "bool"}


def test_next_observations_of_steps_that_do_not_follow_each_other_need_a_field():
    one = episode(4)
    loose = {**one, "obs": one["obs"][:-1], "next_obs": one["obs"][:-1] + 1}
    with pytest.raises(BadData, match=r"episode 0, field 'next_obs': its values are not"):
        from_episodes([loose])
    schema = {
        "obs": Field((3,), "float32"), "next_obs": Field((3,), "float32"), "reward": "float64",
        "terminated": "bool",
    }  # fmt: skip
    table = from_episodes([loose], schema=schema)
    assert np.array_equal(rows(table)["next_obs"], loose["next_obs"])


def changed(**fields) -> list[dict]:
    one = episode(4)
    return [episode(3), {**one, **fields}]


NESTED = {**episode(4), "obs": {"x": np.zeros(4), "k": np.zeros(4)}}
BAD = {
    "no dict": ([episode(3), [1, 2]], None, "episode 1: it is a list"),
    "no episodes": ([], None, "the iterable: there are no episodes in it"),
    "missing": ([{"obs": np.zeros((3, 2)), "action": np.zeros(2)}], "reward", "it is missing"),
    "other fields": (changed(log_prob=np.zeros(4)), None, "it has also 'log_prob'"),
    "unequal": (changed(action=np.zeros(3, int)), None, "unequal length: .*'action': 3"),
    "short obs": (changed(obs=np.zeros((3, 3), "f4")), None, "unequal length: .*'obs': 3"),
    "other shape": (changed(obs=np.zeros((5, 2), "f4")), "obs", "nothing is broadcast"),
    "object": (changed(action=np.array([None] * 4)), "action", "is object, the schema"),
    "text": (changed(action=np.array(list("abcd"))), "action", "is <U1, the schema"),
    "no end": (changed(terminated=np.zeros(4, bool)), "truncated", "missing_ends='truncate'"),
    "early end": (changed(terminated=np.array([0, 1, 0, 1])), "terminated", "step 1 of 4 ends"),
    "odd ends": (changed(terminated=np.array([0, 0, 0, 7])), "terminated", "beside 0 and 1"),
    "no steps": ([episode(3), episode(0)], "reward", "has no steps"),
    "floats": (changed(action=np.zeros(4)), "action", "convert the value"),
    "twice": (changed(actions=np.zeros(4, int)), "action", "given twice"),
    "too many": (changed(final_obs=np.zeros(3)), "final_obs", "leave final_obs out"),
    "nested": ([NESTED, {**NESTED, "obs": {"x": np.zeros(4)}}], None, "lacks 'k'"),
    "final": ([NESTED, {**NESTED, "final_obs": {"y": np.zeros(())}}], "final_obs", "than obs"),
    "nothing after": (
        changed(obs=np.zeros((4, 3), "f4"), terminated=False, truncated=True),
        "obs",
        "after the last step of a truncated episode is missing",
    ),
}


@pytest.mark.parametrize("what", list(BAD))
def test_bad_data_is_refused_by_episode_and_field(what):
    episodes, field, text = BAD[what]
    mine = from_episodes([episode(2, 9)], capacity=50)
    fits = what not in ("nested", "final", "other fields")  # these are of another schema than mine
    for options in ({"capacity": 100}, *([{"into": mine}] if fits else [])):
        with pytest.raises(BadData, match=text) as found:
            from_episodes(iter(episodes), **options)
        assert found.value.episode == (None if not episodes else len(episodes) - 1)
        assert field is None or (found.value.field == field and f"{field!r}" in str(found.value))
        assert isinstance(found.value, SchemaError)


def test_a_feeders_table_is_filled_like_one_of_this_process():
    local = from_episodes([episode(5), episode(3, 1, truncated=True)])
    schema = local.schema
    assert schema is not None
    with connect("embedded", tables={"replay": 100}) as client:
        table = client.table("replay")
        with pytest.raises(BadData, match="episode 0, field 'truncated'"):
            from_episodes([changed(terminated=np.zeros(4, bool))[1]], into=table)
        assert len(table) == 0
        from_episodes([episode(5), episode(3, 1, truncated=True)], into=table)
        assert same(table.get(np.arange(20)), rows(local))


def with_text(steps: int) -> dict:
    one = episode(steps)
    texts = np.array(["go to the door"] * (steps + 1), object)
    obs = {"place": {"at": one["obs"], "called": texts}, "mission": texts}
    return {**one, "obs": obs, "plan": texts[:-1], "reward": np.full(steps, np.nan)}


@pytest.mark.parametrize("read", ["from_episodes", "from_npz"])
@pytest.mark.parametrize("into", [False, True])
def test_what_a_schema_leaves_out_may_be_anything(read, into, tmp_path):
    obs = {"place": {"at": Field((3,), "float32", next="next_obs")}}
    schema = {"obs": obs, "action": "int64", "terminated": "bool", "truncated": "bool"}
    options = {"into": ReplayBuffer(20, schema)} if into else {"schema": schema}
    episodes = [with_text(4), with_text(3)]
    if read == "from_episodes":
        table = from_episodes(episodes, **options)
    else:
        for i, one in enumerate(episodes):
            named = {k.replace(".", "/"): v for k, v in flat(one).items()}
            np.savez(tmp_path / f"{i}.npz", **{k.strip("/"): v for k, v in named.items()})
        table = from_npz(tmp_path, **options)
    assert len(table) == 7
    with pytest.raises(BadData, match=r"obs.place.called'.*dtype object"):
        from_episodes(episodes)
