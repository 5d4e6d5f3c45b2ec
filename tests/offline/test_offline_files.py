"""Files of D4RL's and Minari's layouts, small ones made here; what is wrong with a file is said."""

from __future__ import annotations

import errno
import json
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

from async_loader import ReplayBuffer
from async_loader.cli import app
from async_loader.errors import ConfigError
from async_loader.offline import (
    BadData,
    commands,
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


def d4rl(path, *, leave_out=(), **changed):
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
            if name not in leave_out:
                file[name] = array
    return path


def minari_file(folder, *, leave_out=(), **changed):
    """A data set as Minari writes it; ``changed`` are arrays of episode 2."""
    minari, h5py = pytest.importorskip("minari"), pytest.importorskip("h5py")
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
    file = folder / "made-v0" / "data" / "main_data.hdf5"
    with h5py.File(file, "r+") as opened:
        for name in (*leave_out, *changed):
            del opened[f"episode_2/{name}"]
        for name, array in changed.items():
            opened[f"episode_2/{name}"] = array
    return file


def rows(table):
    return table.get(np.arange(100))


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def test_d4rls_layout_gives_the_same_table_as_its_episodes(tmp_path):
    table = from_hdf5(d4rl(tmp_path / "a.hdf5"))
    assert same(rows(table), rows(from_episodes(episodes())))


def test_without_next_observations_the_last_step_before_a_timeout_is_given_up(tmp_path):
    table = from_hdf5(d4rl(tmp_path / "a.hdf5", leave_out=["next_observations"]))
    shown, made = rows(table), episodes()
    assert len(table) == STEPS - 2
    kept = [made[0]["rewards"], made[2]["rewards"][:-1], made[3]["rewards"]]
    assert np.array_equal(shown["reward"], np.concatenate(kept))
    assert shown["truncated"].tolist() == [False] * 8 + [True] + [False] * 3
    assert np.array_equal(shown["next_obs"][8], made[2]["observations"][5])


def test_more_arrays_of_a_file_become_nested_fields(tmp_path):
    table = from_hdf5(d4rl(tmp_path / "a.hdf5"), extra=["infos/qpos"])
    assert np.array_equal(rows(table)["infos"]["qpos"], np.arange(STEPS * 2.0).reshape(-1, 2))
    table = from_minari(minari_file(tmp_path), extra=["infos/x"])
    wanted = np.concatenate([np.arange(1, steps + 1) for steps in LENGTHS])
    assert np.array_equal(rows(table)["infos"]["x"], wanted)


def test_a_file_that_ends_within_an_episode_is_refused_or_taken_as_cut_off(tmp_path):
    ended = np.zeros(STEPS, bool)
    ended[3] = True
    path = d4rl(tmp_path / "a.hdf5", terminals=ended, timeouts=~np.ones(STEPS, bool))
    nexts = np.roll(rows_of(path), -1, axis=0)
    path = d4rl(path, terminals=ended, timeouts=np.zeros(STEPS, bool), next_observations=nexts)
    with pytest.raises(BadData, match=r"episode 1, field 'truncated'.*missing_ends="):
        from_hdf5(path)
    table = from_hdf5(path, missing_ends="truncate")
    assert np.flatnonzero(rows(table)["truncated"]).tolist() == [STEPS - 1]


def rows_of(path):
    import h5py

    with h5py.File(path) as file:
        return file["observations"][()]


BAD = {
    "nan": ({"rewards": np.where(np.arange(STEPS) == 7, np.nan, 1.0)}, 2, "reward", "step 2"),
    "unequal": ({"actions": np.zeros((STEPS - 1, 2))}, None, "action", "incomplete"),
    "text": ({"actions": np.full(STEPS, b"abc", dtype="S3")}, 0, "action", r"dtype \|S3"),
    "two ends": ({"terminals": np.zeros((STEPS, 2))}, None, "terminated", "one bool for each"),
    "no flag": ({"terminals": np.full(STEPS, 0.5)}, None, "terminated", "other values than 0"),
    "no time": ({"timeouts": np.full(STEPS, np.nan)}, None, "truncated", "other values than 0"),
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


def test_a_file_that_is_cut_off_or_absent_or_empty_is_refused(tmp_path):
    whole = d4rl(tmp_path / "whole.hdf5").read_bytes()
    cut = tmp_path / "cut.hdf5"
    for size in (0, 100, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:size])
        with pytest.raises(BadData, match=r"cut\.hdf5.*again"):
            from_hdf5(cut)
    with pytest.raises(BadData, match="No such file"):
        from_hdf5(tmp_path / "absent.hdf5")
    pytest.importorskip("h5py").File(tmp_path / "empty.hdf5", "w").close()
    with pytest.raises(BadData, match=r"empty\.hdf5.*observations is missing, there are none"):
        from_hdf5(tmp_path / "empty.hdf5")


def test_a_data_set_of_minari_that_lacks_something_is_refused(tmp_path):
    for where in (minari_file(tmp_path), tmp_path / "made-v0"):
        assert same(rows(from_minari(where)), rows(from_episodes(episodes())))
    bad = minari_file(tmp_path / "lacks", leave_out=["actions"])
    with pytest.raises(BadData, match="episode 2: it cannot be read as an episode of Minari"):
        from_minari(bad)
    bad = minari_file(tmp_path / "nan", rewards=np.full(6, np.nan))
    with pytest.raises(BadData, match="step 0 has nan") as found:
        from_minari(bad)
    assert (found.value.episode, found.value.field) == (2, "reward")
    bad = minari_file(tmp_path / "cut")
    bad.write_bytes(bad.read_bytes()[:1000])
    with pytest.raises(BadData, match=r"cannot be read as .* Minari"):
        from_minari(bad)


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


def test_bad_npz_files_are_refused_by_name(tmp_path):
    to_npz(from_episodes(episodes()), tmp_path)
    with pytest.raises(ConfigError, match="npz files already"):
        to_npz(from_episodes(episodes()), tmp_path)
    third = tmp_path / "episode-00000002.npz"
    whole = third.read_bytes()
    third.write_bytes(whole[:-40])
    with pytest.raises(BadData, match=r"episode-00000002\.npz, episode 2: it cannot be read"):
        from_npz(tmp_path)
    objects = np.array([None, "a", 3], dtype=object)
    np.savez(third, obs=np.zeros((4, 3), "f4"), action=objects, reward=np.zeros(3))
    with pytest.raises(BadData, match="field 'action': it has dtype object"):
        from_npz(tmp_path / "*.npz")
    for path, text in ((tmp_path / "none", "no such folder"), (tmp_path / "x", "no npz files")):
        if path.name == "x":
            path.mkdir()
        with pytest.raises(BadData, match=text):
            from_npz(path)


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
    for word in ("next_obs", "float32", "length of episodes", "return of episodes", "index"):
        assert word in shown


def test_import_checks_its_target_before_it_reads_the_source(tmp_path, monkeypatch):
    reads = []
    monkeypatch.setitem(commands.FORMATS, "npz", lambda *_, **__: reads.append(1))
    (tmp_path / "file").touch()
    to = tmp_path / "file" / "x"
    done = CliRunner().invoke(app, ["import", "x.npz", "--to", str(to)])
    assert (done.exit_code, reads) == (2, [])
    assert done.stderr.startswith(f"--to {to}: Not a directory: ")


def test_import_to_a_full_disk_is_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "data")

    to_npz(from_episodes(episodes()), tmp_path / "in")
    monkeypatch.setattr(ReplayBuffer, "save", full)
    done = CliRunner().invoke(
        app, ["import", str(tmp_path / "in"), "--to", str(tmp_path / "deep" / "er")]
    )
    assert done.exit_code == 1
    assert done.stderr.startswith("data: No space left on device: free some of the disk")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("reward", "left"), [(np.nan, 4), (np.inf, 4), (-np.inf, 4), (1e308, 5), ("all nan", 0)]
)
def test_inspect_shows_a_table_with_returns_that_are_not_finite(tmp_path, reward, left):
    with ReplayBuffer(100, {"x": "f4", "reward": "f8", "terminated": "bool"}) as table:
        for t in range(30):
            odd = 10 <= t < 12 if reward == 1e308 else t in (4, 5)
            value = np.nan if reward == "all nan" else reward if odd else 1.0
            table.add(x=t, reward=value, terminated=t % 5 == 4)
        table.save(tmp_path / "saved")
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "saved")], env=WIDE)
    assert shown.exit_code == 0, shown.output
    assert f"{6 - left} more are not finite: NaN or infinite" in shown.output
    told = CliRunner().invoke(app, ["inspect", str(tmp_path / "saved"), "--json"])

    def refuse(name):
        raise AssertionError(name)

    facts = json.loads(told.output, parse_constant=refuse)
    assert (facts["episodes"], facts["returns_not_finite"]) == (6, 6 - left)
    assert (facts["return"] or {}).get("mean") == (5.0 if left else None)


def test_the_commands_refuse_what_they_cannot_do(tmp_path):
    def refusal(*words):
        done = CliRunner().invoke(app, list(words), env=WIDE)
        assert done.exit_code in (1, 2)
        return done.output

    new = str(tmp_path / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "no such folder or file" in refusal("import", str(tmp_path / "no.npz"), "--to", new)
    assert "minari, hdf5, npz" in refusal("import", "x", "--to", new, "--format", "csv")
    assert "there already" in refusal("import", "x", "--to", str(tmp_path / "full"))
    assert "no checkpoint" in refusal("inspect", new)
    assert "tcp://host:port" in refusal("inspect", "tcp://127.0.0.1:5555/replay")
    assert not (tmp_path / "new").exists()


def test_extra_names_that_are_wrong_are_told_with_those_beside_them(tmp_path):
    file = d4rl(tmp_path / "a.hdf5")
    for read in (from_hdf5, from_minari):
        with pytest.raises(ConfigError, match=r"extra='infos/qpos'.*extra=\['infos/qpos'\]"):
            read(file, extra="infos/qpos")
    with pytest.raises(
        BadData, match=r"infos/qvel is missing, there are actions, infos, infos/qpos.*leave it out"
    ):
        from_hdf5(file, extra=["infos/qvel"])


def test_a_minari_data_set_without_spaces_is_refused_with_what_to_give():
    with pytest.raises(ConfigError, match="give env="):
        to_minari(from_episodes(episodes()), "made/here-v0")


def test_import_says_what_did_not_fit(tmp_path):
    to_npz(from_episodes(episodes()), tmp_path / "in")
    words = ["import", str(tmp_path / "in"), "--to", str(tmp_path / "to"), "--capacity", "9"]
    done = CliRunner().invoke(app, words, env=WIDE)
    with ReplayBuffer.from_checkpoint(tmp_path / "to") as table:
        left_out = 14 - len(table)
    assert f"{left_out} older steps did not fit --capacity 9" in " ".join(done.output.split())
