"""Files of D4RL's and Minari's layouts, small ones made here; what is wrong with a file is said."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

from async_loader import ReplayBuffer, Sequences
from async_loader.cli import app
from async_loader.offline import (
    BadData,
    from_episodes,
    from_hdf5,
    from_minari,
    from_npz,
    to_minari,
    to_npz,
)

LENGTHS, TRUNCATED = (4, 1, 6, 3), (False, True, True, False)
STEPS = sum(LENGTHS)
WIDE = {"COLUMNS": "80"}


def episodes() -> list[dict]:
    rng = np.random.default_rng(0)
    return [
        {
            "observations": rng.normal(size=(steps + 1, 3)).astype(np.float32),
            "actions": rng.normal(size=(steps, 2)).astype(np.float32),
            "rewards": rng.normal(size=steps),
            "terminations": (np.arange(steps) == steps - 1) & (not truncated),
            "truncations": (np.arange(steps) == steps - 1) & truncated,
        }
        for steps, truncated in zip(LENGTHS, TRUNCATED, strict=True)
    ]


def d4rl(path, **changed):
    h5py = pytest.importorskip("h5py")
    made = episodes()
    obs = [one["observations"] for one in made]
    arrays = {
        "observations": np.concatenate([one[:-1] for one in obs]),
        "next_observations": np.concatenate([one[1:] for one in obs]),
        "actions": np.concatenate([one["actions"] for one in made]),
        "rewards": np.concatenate([one["rewards"] for one in made]),
        "terminals": np.concatenate([one["terminations"] for one in made]),
        "timeouts": np.concatenate([one["truncations"] for one in made]),
        "infos/qpos": np.arange(STEPS * 2.0).reshape(STEPS, 2),
        **changed,
    }
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def minari_file(folder):
    """A data set as Minari writes it."""
    minari = pytest.importorskip("minari")
    from gymnasium.spaces import Box
    from minari.data_collector import EpisodeBuffer

    made = episodes()
    buffers = [
        EpisodeBuffer(id=i, infos={"x": np.arange(len(one["rewards"]) + 1)}, **one)
        for i, one in enumerate(made)
    ]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        minari.create_dataset_from_buffers(
            "made-v0",
            buffer=buffers,
            observation_space=Box(-9, 9, (3,), np.float32),
            action_space=Box(-9, 9, (2,), np.float32),
        )
    return folder / "made-v0" / "data" / "main_data.hdf5"


def rows(table):
    return table.get(np.arange(100))


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def test_d4rls_layout_gives_the_same_table_as_its_episodes(tmp_path):
    table = from_hdf5(d4rl(tmp_path / "a.hdf5"))
    assert same(rows(table), rows(from_episodes(episodes())))


def test_a_table_is_written_as_its_steps_whatever_its_view_shows(tmp_path):
    schema = {"obs": "float32", "discount": "float32", "truncated": "bool"}
    table = ReplayBuffer(9, schema, view=Sequences(2))
    with table.writer() as writer:
        for t in range(4):
            writer.append(obs=t, discount=1, truncated=t == 3)
    to_npz(table, tmp_path)
    again = rows(from_npz(tmp_path, schema=schema))
    assert again["obs"].tolist() == [0, 1, 2, 3]
    assert again["discount"].tolist() == [1] * 4


BAD = {
    "unequal": ({"actions": np.zeros((STEPS - 1, 2))}, None, "action", "incomplete"),
    "text": ({"actions": np.full(STEPS, b"abc", dtype="S3")}, 0, "action", r"dtype \|S3"),
    "two ends": ({"terminals": np.zeros((STEPS, 2))}, 0, "terminated", "one bool for each"),
    "no flag": ({"terminals": np.full(STEPS, 0.5)}, 0, "terminated", "beside 0 and 1"),
    "no time": ({"timeouts": np.full(STEPS, np.nan)}, 0, "truncated", "beside 0 and 1"),
    "loose": ({"next_observations": np.zeros((STEPS, 3), "f4")}, 0, "next_obs", "follow"),
}


@pytest.mark.parametrize("what", list(BAD))
def test_a_bad_d4rl_file_is_refused_by_file_episode_and_field(tmp_path, what):
    changed, episode, field, text = BAD[what]
    path = d4rl(tmp_path / "bad.hdf5", **changed)
    mine = ReplayBuffer(50)
    for options in ({}, {"capacity": 50}, {"into": mine}):
        with pytest.raises(BadData, match=text) as found:
            from_hdf5(path, **options)
        assert (found.value.file, found.value.episode, found.value.field) == (
            str(path), episode, field,
        )  # fmt: skip
        assert str(path) in str(found.value)


@pytest.mark.filterwarnings("ignore")
def test_a_data_set_goes_through_minari_itself_and_comes_back_equal(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    spaces = pytest.importorskip("gymnasium").spaces
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    rng = np.random.default_rng(0)
    box, screen = spaces.Box(-9, 9, (2,), np.float32), spaces.Box(0, 255, (40, 40, 3), np.uint8)
    made = [
        {
            "obs": {
                "both": (rng.normal(size=(4, 2)).astype("f4"), rng.integers(0, 3, 4)),
                "screen": rng.integers(0, 255, (4, 40, 40, 3), np.uint8),
            },
            "action": rng.integers(0, 3, 3),
            "reward": rng.normal(size=3),
            "terminated": i % 2 == 0,
            "truncated": i % 2 == 1,
        }
        for i in range(4)
    ]
    table = from_episodes(made)
    written = to_minari(
        table,
        "kinds-v0",
        observation_space=spaces.Dict(both=spaces.Tuple([box, spaces.Discrete(3)]), screen=screen),
        action_space=spaces.Discrete(3),
    )
    assert minari.load_dataset("kinds-v0").total_steps == 12
    for source in (written, "kinds-v0", tmp_path / "kinds-v0"):
        again = from_minari(source)
        one, other = rows(again), rows(table)
        for name in ("action", "reward", "terminated", "truncated"):
            assert np.array_equal(one[name], other[name])
        for name in ("obs", "next_obs"):
            assert np.array_equal(one[name]["screen"], other[name]["screen"])
            for mine, theirs in zip(one[name]["both"], other[name]["both"], strict=True):
                assert np.array_equal(mine, theirs)
    some = minari.load_dataset("kinds-v0").filter_episodes(lambda one: bool(one.terminations[-1]))
    assert len(from_minari(some)) == 6
    with pytest.raises(BadData, match="list_local_datasets"):
        from_minari("nothing/here-v0")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npz", "small npz", "hdf5"])
def test_a_file_with_any_bytes_changed_is_read_or_refused_as_bad_data(tmp_path, kind):
    file = tmp_path / f"one.{kind.split()[-1]}"
    if "npz" in kind:
        save = np.savez_compressed if "small" in kind else np.savez
        save(file, **episodes()[0])
    else:
        d4rl(file)
    read = from_hdf5 if kind == "hdf5" else from_npz
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    used = np.flatnonzero(np.frombuffer(whole, np.uint8))
    refused = []
    for _ in range(200):
        changed = bytearray(whole)
        for at in rng.choice(used, 2):
            changed[at] = rng.integers(256)
        file.write_bytes(changed)
        try:
            read(file, capacity=50).close()
        except BadData as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert all(str(tmp_path) in one for one in refused)


# -- the command line ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["npz", "hdf5", "minari"])
def test_import_makes_a_checkpoint_that_inspect_describes(tmp_path, kind):
    source = tmp_path / "in"
    source.mkdir()
    if kind == "npz":
        to_npz(from_episodes(episodes()), source)
    else:
        source = d4rl(source / "all.hdf5") if kind == "hdf5" else minari_file(source)
    to = tmp_path / "checkpoint"
    done = CliRunner().invoke(app, ["import", str(source), "--to", str(to)], env=WIDE)
    assert (done.exit_code, done.output.split()[:5]) == (0, ["14", "steps", "of", "4", "episodes"])
    with ReplayBuffer.from_checkpoint(to) as table:
        assert same(rows(table), rows(from_episodes(episodes())))
    told = CliRunner().invoke(app, ["inspect", str(to), "--json"])
    facts = json.loads(told.output)
    assert (facts["steps"], facts["episodes"], facts["length"]["max"]) == (14, 4, 6.0)
    returns = [one["rewards"].sum() for one in episodes()]
    assert facts["return"]["mean"] == pytest.approx(np.mean(returns))
    shown = CliRunner().invoke(app, ["inspect", str(to)], env=WIDE).output
    assert max(map(len, shown.splitlines())) <= 80
    for word in ("next_obs", "float32", "length of episodes", "return of episodes"):
        assert word in shown
