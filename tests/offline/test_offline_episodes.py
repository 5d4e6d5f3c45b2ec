"""Episodes into a table and out again: each step, each end, each observation after an end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import Field, MinSize, ReplayBuffer, Sequences, connect, tree
from async_loader.errors import ConfigError, SchemaError
from async_loader.offline import (
    BadData,
    from_episodes,
    from_hdf5,
    from_minari,
    from_npz,
    to_npz,
)


def episode(steps: int, seed: int = 0, *, truncated: bool = False, nested: bool = False) -> dict:
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(steps + 1, 3)).astype(np.float32)
    ended = np.arange(steps) == steps - 1
    return {
        "obs": {"place": obs, "pair": (obs[:, 0] * 2, obs[:, :2])} if nested else obs,
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


def test_an_npz_file_takes_fields_of_any_name(tmp_path):
    names = ("file", "allow_pickle", "args", "kwds", "f")
    table = from_episodes([episode(3, 0) | {name: np.arange(3) for name in names}])
    to_npz(table, tmp_path)
    assert same(rows(from_npz(tmp_path)), rows(table))
    with np.load(next(tmp_path.glob("*.npz"))) as loaded:
        assert set(names) <= set(loaded.files)


@pytest.mark.parametrize(
    "obs", [{"a/b": 4, "c": 4}, {"deep": {3: 4}}, {"_index_0": 4}, {"deep": ({}, 4)}]
)
def test_keys_that_an_npz_file_cannot_keep_are_refused_before_it_is_written(tmp_path, obs):
    obs = tree.transform(obs, lambda n: np.zeros(n))
    table = from_episodes([episode(3, 0) | {"obs": obs}])
    with pytest.raises(ConfigError, match="an npz file cannot keep the names"):
        to_npz(table, tmp_path / "new")
    assert not (tmp_path / "new").exists()


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


DONE = {
    "obs": Field((3,), "float32", next="next_obs"),
    "action": "int64",
    "reward": "float32",
    "done": "bool",
}


@pytest.mark.parametrize("dtype", [bool, int, float])
@pytest.mark.parametrize("alone", [False, True])
def test_done_ends_an_episode_as_in_a_table(dtype, alone):
    one = episode(4)
    if alone:
        del one["terminated"], one["truncated"]
    one["done"] = np.array([0, 0, 0, 1], dtype)
    table = from_episodes([one, one])
    assert table.capacity == 10
    assert rows(table)["done"].tolist() == rows(table)["terminated"].tolist() == [0, 0, 0, 1] * 2
    chosen = from_episodes([one, one], schema=DONE)
    assert rows(chosen)["done"].tolist() == [False, False, False, True] * 2
    one["done"] = np.array([0, 1, 0, 1], dtype)
    for schema in (None, DONE):
        with pytest.raises(BadData, match="field 'done': step 1 of 4 ends the episode"):
            from_episodes([one], schema=schema)
    # a table without the field does not look at it
    rest = {name: one_ for name, one_ in DONE.items() if name != "done"} | {"terminated": "bool"}
    if not alone:
        assert len(from_episodes([one], schema=rest)) == 4


@pytest.mark.parametrize("shaped", [False, True])
def test_ends_of_shape_one_are_taken_in_any_shape(shaped, tmp_path):
    schema = {
        "obs": Field((3,), "float32", next="next_obs"),
        "action": "int64",
        "reward": "float32",
        **dict.fromkeys(("terminated", "truncated", "done"), ((1,), "bool")),
    }
    episodes = [episode(4), episode(3, 1, truncated=True)]
    for one in episodes:
        one["done"] = one["terminated"] | one["truncated"]
        if shaped:
            one |= {name: one[name][:, None] for name in ("terminated", "truncated", "done")}
    table = from_episodes(episodes, schema=schema)
    assert rows(table)["truncated"].tolist() == [[False]] * 6 + [[True]]
    assert rows(table)["terminated"].tolist() == [[False]] * 3 + [[True]] + [[False]] * 3
    to_npz(table, tmp_path / "all")
    assert same(rows(from_npz(tmp_path / "all", schema=schema)), rows(table))
    mine = ReplayBuffer(20, schema)
    from_episodes(episodes, into=mine)
    assert same(rows(mine), rows(table))


def test_a_table_without_next_comes_back_from_its_files_under_its_schema(tmp_path):
    schema = {"obs": ((3,), "float32"), "action": "int64", "reward": "float64", "truncated": "bool"}
    table = ReplayBuffer(50, schema)
    one = episode(9, truncated=True)
    for _ in range(2):
        table.writer().extend(
            obs=one["obs"][:-1],
            action=one["action"],
            reward=one["reward"],
            truncated=one["truncated"],
        )
    to_npz(table, tmp_path / "all")
    assert same(rows(from_npz(tmp_path / "all", schema=table.schema)), rows(table))
    with pytest.raises(BadData, match="or a schema without next="):
        from_npz(tmp_path / "all")


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
    with pytest.raises(BadData, match=r"episode 0, field 'next_obs': that of step 0"):
        from_episodes([loose])
    schema = {
        "obs": Field((3,), "float32"), "next_obs": Field((3,), "float32"), "reward": "float64",
        "terminated": "bool",
    }  # fmt: skip
    table = from_episodes([loose], schema=schema)
    assert np.array_equal(rows(table)["next_obs"], loose["next_obs"])


def test_an_open_episode_is_written_as_truncated_where_the_table_can_show_it(tmp_path):
    table = ReplayBuffer(20, {"obs": Field((), "float32", next="next_obs"), "reward": "float32"})
    for i in range(5):
        table.add(obs=float(i), reward=1.0, stream="a")
    to_npz(table, tmp_path / "open")
    with np.load(tmp_path / "open" / "episode-00000000.npz") as file:
        assert file["obs"].tolist() == [0, 1, 2, 3, 4]
        assert file["truncated"].tolist() == [False] * 3 + [True]


def test_what_was_deleted_or_overwritten_is_not_written(tmp_path):
    table = from_episodes([episode(10, i) for i in range(4)], capacity=22)
    table.delete([20 + 11])
    files = to_npz(table, tmp_path / "rest")
    total = 0
    for file in files:
        with np.load(file) as one:
            total += len(one["reward"])
    assert total == len(table)


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
    "nan": (changed(reward=np.array([0, 1, np.nan, 0])), "reward", "step 2 has nan"),
    "inf": (changed(reward=np.array([0, np.inf, 0, 0])), "reward", "step 1 has inf"),
    "object": (changed(action=np.array([None] * 4)), "action", "dtype object"),
    "text": (changed(action=np.array(list("abcd"))), "action", "dtype <U1"),
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


def test_an_episode_without_an_end_is_taken_as_cut_off_on_request():
    episodes = changed(terminated=np.zeros(4, bool))
    table = from_episodes(episodes, missing_ends="truncate")
    assert rows(table)["truncated"].tolist() == [False] * 6 + [True]


def test_a_feeders_table_is_filled_like_one_of_this_process():
    local = from_episodes([episode(5), episode(3, 1, truncated=True)])
    schema = local.schema
    assert schema is not None
    with connect("embedded", tables={"replay": 100}) as client:
        table = client.table("replay")
        with pytest.raises(BadData, match="episode 0, field 'reward'"):
            from_episodes([changed(reward=np.full(4, np.nan))[1]], into=table)
        assert len(table) == 0
        from_episodes([episode(5), episode(3, 1, truncated=True)], into=table)
        assert same(table.get(np.arange(20)), rows(local))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"missing_ends": "drop"}, "missing_ends='drop'"),
        ({"into": 3}, "into=3"),
        ({"float_dtype": "int32"}, "float_dtype"),
        ({"schema": {"action": Field((), "int64", next="next_action")}}, "has next="),
    ],
)
def test_arguments_that_cannot_work_are_refused_before_anything_is_read(options, text):
    def never():
        raise AssertionError
        yield

    with pytest.raises(ConfigError, match=text):
        from_episodes(never(), **options)


def test_arguments_of_a_new_table_do_not_fit_a_given_one():
    with pytest.raises(ConfigError, match="capacity="):
        from_episodes([], into=ReplayBuffer(3), capacity=4)


def test_a_progress_bar_is_shown_on_stderr_on_request(capfd):
    from_episodes([episode(2), episode(3)], progress=True)
    out, err = capfd.readouterr()
    assert "100%" in err
    assert out == ""


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
    with pytest.raises(BadData, match=r"obs.place.called'.*dtype object.*leave it out: a schema="):
        from_episodes(episodes)


def test_infos_of_one_more_than_the_steps_begin_with_that_of_the_reset():
    """Some data sets have the reset's and others do not: each step has what its step returned."""
    solved = [{"infos": {"success": np.arange(n) == n - 1}} for n in (5, 4)]
    table = from_episodes([{**episode(4), **one} for one in solved])
    assert rows(table)["infos"]["success"].tolist() == 2 * [False, False, False, True]
    with pytest.raises(BadData, match=r"unequal length: .*'success': 5"):
        from_episodes([{**episode(4), "success": np.zeros(5)}])


@pytest.mark.parametrize(
    ("read", "word", "said"),
    [
        (from_episodes, "buffer_size", "say capacity"),
        (from_episodes, "missing_end", "did you mean 'missing_ends'"),
        (from_npz, "table", "say into"),
        (from_npz, "batch_size", r"give it to sample\(batch_size\)"),
        (from_hdf5, "extras", "say extra"),
        (from_minari, "zzz", "it takes extra, into, missing_ends, .*, capacity, schema"),
    ],
)
def test_a_wrong_keyword_of_an_import_is_named_before_anything_is_read(read, word, said):
    with pytest.raises(TypeError, match=rf"^{read.__name__}\(\) has no {word}: {said}"):
        read("nowhere" if read is not from_episodes else [], **{word: 1})
