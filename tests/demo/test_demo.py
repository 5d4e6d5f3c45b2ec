"""The demo in small. That it learns to 195 is for CI to see, through the command line."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from async_loader.cli import app
from async_loader.demo.collector import Collector, Pace, Policy, Returns, make_envs
from async_loader.demo.dqn import Learner, QNetwork, double_dqn_target
from async_loader.demo.report import LiveReport, QuietReport, summary_json, write_curve
from async_loader.demo.run import run
from async_loader.demo.settings import DqnSettings, Episode, Settings, Summary
from async_loader.errors import ConfigError, MissingExtra

PNG = b"\x89PNG\r\n\x1a\n"

EASY = Settings(target=10, window=2, max_seconds=30, warmup_steps=64, dqn=DqnSettings(hidden=16, batch_size=32))


def summary_of(*returns: float) -> Summary:
    episodes = tuple(Episode(total, 100 * i, float(i)) for i, total in enumerate(returns, 1))
    return Summary(
        settings=Settings(),
        solved=False,
        mean_return=float(np.mean(returns)) if returns else 0.0,
        env_steps=100 * len(returns),
        batches=7,
        learner_wait_fraction=0.25,
        seconds=2.0,
        episodes=episodes,
    )


class Recorder:
    """A buffer that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[dict[str, np.ndarray]] = []

    def extend(self, rows: dict[str, np.ndarray]) -> None:
        self.rows.append({name: np.array(column) for name, column in rows.items()})


class Toppled:
    """Two environments: the first falls at its second step, the second is cut off there. Observations count up."""

    num_envs = 2

    def __init__(self) -> None:
        self.now = 0

    def reset(self, *, seed: int) -> tuple[np.ndarray, dict[str, object]]:
        return np.zeros((2, 4), np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, ...]:
        self.now += 1
        if self.now > 2:
            raise OSError("the environment is gone")
        over = np.array([self.now == 2] * 2)
        seen = np.full((2, 4), self.now, np.float32)
        final = np.empty(2, object)
        final[:] = list(seen)
        shown = np.where(over[:, None], np.float32(-1), seen)
        one = np.array([True, False])
        return shown, np.ones(2), over & one, over & ~one, {"final_obs": final} if over.any() else {}


def collector_over(envs: object, buffer: Recorder, settings: Settings) -> tuple[Collector, Returns]:
    policy = Policy(QNetwork((1.0,) * 4, 2, 8), 2, 1.0, np.random.default_rng(0))
    pace = Pace(warmup_steps=1000, steps_per_update=1, slack=1000)
    returns = Returns(settings.window, settings.target)
    return Collector(settings, envs, policy, buffer, pace, returns, lambda: 1.0), returns


# The learner.


def test_the_target_takes_the_online_networks_choice_at_the_target_networks_price():
    goal = double_dqn_target(
        reward=torch.tensor([1.0]),
        terminated=torch.tensor([False]),
        next_online=torch.tensor([[3.0, 5.0]]),
        next_target=torch.tensor([[40.0, 20.0]]),
        discount=0.9,
    )
    assert goal.tolist() == pytest.approx([1 + 0.9 * 20])


def test_the_target_ends_at_termination_and_goes_on_at_truncation():
    # A truncated step is stored as not terminated: nothing else tells the two apart.
    goal = double_dqn_target(
        reward=torch.tensor([1.0, 1.0]),
        terminated=torch.tensor([True, False]),
        next_online=torch.tensor([[0.0, 1.0], [0.0, 1.0]]),
        next_target=torch.tensor([[0.0, 50.0], [0.0, 50.0]]),
        discount=0.99,
    )
    assert goal.tolist() == pytest.approx([1.0, 1.0 + 0.99 * 50.0])


def test_an_update_moves_the_value_towards_the_target_and_the_target_network_a_little_behind():
    torch.manual_seed(0)
    learner = Learner(2, DqnSettings(hidden=16, learning_rate=0.01, target_rate=0.25, discount=0.9))
    batch = {
        "obs": torch.randn(32, 4),
        "action": torch.randint(2, (32,)),
        "reward": torch.full((32,), 5.0),
        "next_obs": torch.randn(32, 4),
        "terminated": torch.ones(32, dtype=torch.bool),
    }

    def error() -> float:
        chosen = learner.online(batch["obs"]).gather(1, batch["action"][:, None])
        return (chosen - 0.5).abs().mean().item()

    before, online, target = error(), learner.online.layers[0].weight.clone(), learner.target.layers[0].weight.clone()
    learner.update(batch)
    assert torch.equal(online, target)
    torch.testing.assert_close(learner.target.layers[0].weight, target + 0.25 * (learner.online.layers[0].weight - target))
    for _ in range(100):
        learner.update(batch)
    assert error() < before / 2
    assert learner.updates == 101


# The collector.


def test_what_is_stored_where_an_episode_ends_is_the_observation_before_the_reset():
    buffer = Recorder()
    collector, returns = collector_over(Toppled(), buffer, replace(EASY, num_envs=2))
    collector.run()
    assert [rows["next_obs"][:, 0].tolist() for rows in buffer.rows] == [[1, 1], [2, 2]]
    assert [rows["obs"][:, 0].tolist() for rows in buffer.rows] == [[0, 0], [1, 1]]
    assert [rows["terminated"].tolist() for rows in buffer.rows] == [[False, False], [True, False]]
    assert [episode.total_reward for episode in returns.episodes] == [2, 2]


def test_an_error_of_the_environment_reaches_whoever_called_run(monkeypatch):
    class Falling(Toppled):
        class single_action_space:
            n = 2

        def close(self) -> None:
            pass

    monkeypatch.setattr("async_loader.demo.run.make_envs", lambda num_envs: Falling())
    with pytest.raises(OSError, match="the environment is gone"):
        run(replace(EASY, num_envs=2), QuietReport())


def test_the_real_environment_is_watched_for_500_steps_and_then_cut_off_not_terminated():
    with contextlib.closing(make_envs(2)) as envs:
        obs, _ = envs.reset(seed=0)
        for _ in range(499):
            obs, _, terminated, truncated, info = envs.step(_balance(obs))
            assert not terminated.any()
            assert not truncated.any()
        last = obs
        obs, _, terminated, truncated, info = envs.step(_balance(obs))
        assert truncated.all()
        assert not terminated.any()
        assert np.abs(np.stack(info["final_obs"]) - last).max() < 1
        assert np.abs(obs).max() <= 0.05


def _balance(obs: np.ndarray) -> np.ndarray:
    """A controller that never falls: push to where the pole is falling, corrected for where the cart is."""
    return (obs @ np.array([0.1, 0.5, 5.0, 1.0]) > 0).astype(np.int64)


def test_neither_thread_runs_away_from_the_other():
    pace = Pace(warmup_steps=10, steps_per_update=2, slack=4)
    for _ in range(7):
        assert pace.wait_to_collect()
        pace.collected(2)
    assert pace.wait_to_learn()
    for _ in range(3):
        pace.learned()
    pace.end()
    assert (pace.env_steps, pace.updates) == (14, 3)
    assert not pace.wait_to_collect()
    assert not pace.wait_to_learn()


# The run.


def test_a_run_that_reaches_its_target_says_so_and_draws_its_curve(tmp_path):
    seen = []

    class Looking:
        @contextlib.contextmanager
        def watch(self, snapshot):
            seen.append(snapshot())
            yield
            seen.append(snapshot())

    summary = run(EASY, Looking())
    assert summary.solved
    assert summary.mean_return >= EASY.target
    assert summary.env_steps >= 20
    assert 0 <= summary.learner_wait_fraction <= 1
    assert [look.solved for look in seen] == [False, True]
    write_curve(summary, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(PNG)


def test_batches_are_learned_from_until_the_time_is_up():
    ticks = iter(range(10_000))
    summary = run(replace(EASY, target=500, max_seconds=40), QuietReport(), clock=lambda: float(next(ticks)))
    assert not summary.solved
    assert summary.batches > 0
    assert summary.env_steps >= EASY.warmup_steps
    assert summary.seconds >= 40


def test_the_json_line_has_exactly_the_promised_keys():
    line = summary_json(summary_of(20.0, 30.0))
    assert "\n" not in line
    assert json.loads(line) == {
        "solved": False,
        "mean_return": 25.0,
        "env_steps": 200,
        "batches": 7,
        "learner_wait_fraction": 0.25,
        "seconds": 2.0,
    }


def test_the_report_shows_return_rates_and_waiting():
    text = io.StringIO()
    report = LiveReport(Console(file=text, width=100))
    with report.watch(lambda: summary_of(20.0, 30.0)):
        pass
    report.finish(summary_of(20.0, 30.0), "curve.png")
    for part in ("25.0", "100 a second", "4 a second", "25.0%", "not solved", "curve.png"):
        assert part in text.getvalue()


def test_a_curve_without_a_single_episode_is_still_a_png(tmp_path):
    write_curve(summary_of(), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("extra", ["gymnasium", "matplotlib"])
def test_a_missing_library_is_one_error_that_names_the_extra(monkeypatch, tmp_path, extra):
    for name in [name for name in sys.modules if name == extra or name.startswith(f"{extra}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(MissingExtra, match=r'pip install "async_loader\[demo\]"'):
        make_envs(1) if extra == "gymnasium" else write_curve(summary_of(), tmp_path / "curve.png")


@pytest.mark.parametrize(
    "bad",
    [
        {"target": 501},
        {"target": float("nan")},
        {"max_seconds": 0},
        {"seed": -1},
        {"num_envs": 0},
        {"num_workers": -1},
        {"window": 0},
        {"warmup_steps": 10},
        {"capacity": 500},
        {"steps_per_update": 0},
    ],
)
def test_bad_settings_are_refused_by_name(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Settings(**bad)


@pytest.mark.parametrize(
    "bad",
    [
        {"discount": 1.0},
        {"obs_scale": (1.0, 0.0)},
        {"batch_size": 0},
        {"final_epsilon": -0.1},
        {"learning_rate": 1e-9},
        {"target_rate": 2},
    ],
)
def test_bad_learning_settings_are_refused_by_name(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        DqnSettings(**bad)


def test_the_command_ends_with_1_and_one_json_line_when_nothing_was_learned(tmp_path):
    curve = tmp_path / "curve.png"
    result = CliRunner().invoke(app, ["demo", "--json", "--max-seconds", "0.5", "--curve", str(curve)])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["solved"] is False
    assert len(result.stdout.strip().splitlines()) == 1
    assert curve.read_bytes().startswith(PNG)
