"""A small run of the demo. CI checks through the command line that it learns to a return of 195."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from async_loader.cli import app
from async_loader.demo import run as run_module
from async_loader.demo.actor import Actor, Policy, make_envs, require_envs
from async_loader.demo.actors import Returns
from async_loader.demo.dqn import Learner, QNetwork, double_dqn_target
from async_loader.demo.report import LiveReport, QuietReport, summary_json, write_curve
from async_loader.demo.run import run
from async_loader.demo.settings import DqnSettings, Episode, Settings, Summary
from async_loader.errors import Broken, ConfigError, MissingExtra, Timeout
from async_loader.feeder.settings import ServerSettings
from tests.waiting_rig import until

PNG = b"\x89PNG\r\n\x1a\n"

EASY = Settings(
    target=10,
    window=2,
    max_seconds=300,
    warmup_steps=64,
    num_actors=1,
    dqn=DqnSettings(hidden=16, batch_size=32),
)


def summary_of(*returns: float) -> Summary:
    episodes = tuple(Episode(total, 100 * i, float(i)) for i, total in enumerate(returns, 1))
    return Summary(
        settings=Settings(),
        solved=False,
        mean_return=float(np.mean(returns)) if returns else 0.0,
        env_steps=100 * len(returns),
        batches=7,
        learner_wait_fraction=0.25,
        limiter_wait_fraction=0.2,
        seconds=2.0,
        start_seconds=3.0,
        waits_for="",
        inserts_per_s=2345.0,
        samples_per_insert=63.5,
        policy_lag=10,
        policy_lag_s=0.015,
        drawn_policy_lag=321.0,
        episodes=episodes,
    )


class Recorder:
    """A client, its table and its writer: publishes one policy,
    and keeps the steps that it is given.
    """

    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        self.steps: list[dict[str, object]] = []
        self.tensors = tensors

    def latest(self, name, newer_than=None, timeout_s=0.0):
        return (
            type("Published", (), {"tensors": self.tensors, "version": 7})
            if newer_than is None
            else None
        )

    def table(self, name):
        return self

    def writer(self, **options):
        return contextlib.nullcontext(self)

    def append(self, **step):
        self.steps.append(step)


class Toppled:
    """Two environments: the first falls at its second step, the second is cut off there.

    Observations count up.
    """

    num_envs = 2

    def __init__(self) -> None:
        self.now = 0

    def close(self) -> None:
        pass

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
        return (
            shown,
            np.ones(2),
            over & one,
            over & ~one,
            {"final_obs": final} if over.any() else {},
        )


def falling(num_envs: int) -> Toppled:
    return Toppled()


def tensors_of(network: QNetwork) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in network.state_dict().items()}


# The learner.


def test_the_target_is_the_target_networks_value_of_the_online_choice():
    goal = double_dqn_target(
        reward=torch.tensor([1.0]),
        terminated=torch.tensor([False]),
        next_online=torch.tensor([[3.0, 5.0]]),
        next_target=torch.tensor([[40.0, 20.0]]),
        discount=0.9,
    )
    assert goal.tolist() == pytest.approx([1 + 0.9 * 20])


def test_the_target_ends_at_termination_and_goes_on_at_truncation():
    # A truncated step is stored as not terminated: no other field tells the two apart.
    goal = double_dqn_target(
        reward=torch.tensor([1.0, 1.0]),
        terminated=torch.tensor([True, False]),
        next_online=torch.tensor([[0.0, 1.0], [0.0, 1.0]]),
        next_target=torch.tensor([[0.0, 50.0], [0.0, 50.0]]),
        discount=0.99,
    )
    assert goal.tolist() == pytest.approx([1.0, 1.0 + 0.99 * 50.0])


def test_an_update_moves_the_value_to_the_target_and_the_target_network_follows():
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

    before = error()
    online = learner.online.layers[0].weight.clone()
    target = learner.target.layers[0].weight.clone()
    learner.update(batch)
    assert torch.equal(online, target)
    torch.testing.assert_close(
        learner.target.layers[0].weight, target + 0.25 * (learner.online.layers[0].weight - target)
    )
    for _ in range(100):
        learner.update(batch)
    assert error() < before / 2
    assert learner.updates == 101


# The actors.


def test_an_actor_chooses_as_the_network_would():
    network, obs = QNetwork((2.0, 1.0, 0.5, 1.0), 2, 16), torch.randn(64, 4)
    with torch.no_grad():
        expected = network(obs).numpy()
    np.testing.assert_allclose(
        Policy(tensors_of(network), 3).values(obs.numpy()), expected, rtol=1e-4, atol=1e-5
    )


def test_the_last_observation_of_an_episode_is_stored_before_the_reset():
    told, client = [], Recorder(tensors_of(QNetwork((1.0,) * 4, 2, 8)))
    actor = Actor(0, replace(EASY, num_envs=2), Toppled(), client, told.append)
    with pytest.raises(OSError, match="the environment is gone"):
        actor.run()
    assert [(step["stream"], step["obs"][0], step["policy_version"]) for step in client.steps] == [
        (0, 0, 7), (1, 0, 7), (0, 1, 7), (1, 1, 7)
    ]  # fmt: skip
    ends = [(step["terminated"], step["truncated"]) for step in client.steps]
    assert ends == [(False, False), (False, False), (True, False), (False, True)]
    assert [
        None if step["final_obs"] is None else step["final_obs"][0] for step in client.steps
    ] == [None, None, 2, 2]
    assert [(one.env_steps, one.returns) for one in told] == [(4, (2.0, 2.0))]


def test_an_error_of_the_environment_is_raised_by_run():
    with pytest.raises(
        Broken, match=r"actor 0 \(process \d+\) failed: OSError: the environment is gone"
    ) as caught:
        run(replace(EASY, num_envs=2), QuietReport(), make=falling)
    assert "in step" in caught.value.__notes__[0]


def test_an_actor_that_is_killed_is_named_and_nothing_is_left():
    class Killing:
        @contextlib.contextmanager
        def watch(self, snapshot):
            os.kill(runs[0]._actors.pids[1], signal.SIGKILL)
            yield

    runs = []

    class Watched(run_module.Run):
        def __init__(self, *arguments):
            runs.append(self)
            super().__init__(*arguments)

    with pytest.raises(Broken, match=r"actor 1 \(process \d+\) was killed by SIGKILL"):
        Watched(replace(EASY, target=500, num_actors=2), lambda: 0.0).until_done(
            Killing(), make_envs
        )


def test_the_target_is_reached_by_the_mean_of_a_full_window():
    returns = Returns(window=2, target=10)
    assert not returns.reached
    for total in (30.0, 5.0):
        returns.add(Episode(total, 1, 1.0))
    assert returns.reached
    returns.add(Episode(1.0, 1, 1.0))
    assert (returns.mean, returns.reached) == (3.0, False)


def test_the_actors_and_the_feeder_need_no_torch():
    code = (
        "import async_loader.demo.actor, async_loader.feeder.serving, sys; sys.exit('torch' in "
        "sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_real_environment_is_truncated_after_500_steps():
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
    """A controller that never falls: push to where the pole is falling,
    corrected for where the cart is.
    """
    return (obs @ np.array([0.1, 0.5, 5.0, 1.0]) > 0).astype(np.int64)


# The run.


def test_a_run_that_reaches_its_target_says_so_and_draws_its_curve(tmp_path):
    seen = []

    class Looking:
        @contextlib.contextmanager
        def watch(self, snapshot):
            seen.append(snapshot())
            yield
            seen.append(snapshot())

    summary = run(replace(EASY, num_actors=2), Looking())
    assert summary.solved
    assert summary.mean_return >= EASY.target
    assert summary.env_steps >= 20
    assert 0 <= summary.limiter_wait_fraction <= summary.learner_wait_fraction <= 1
    assert [look.solved for look in seen] == [False, True]
    write_curve(summary, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(PNG)


def test_batches_are_learned_from_until_the_time_is_up():
    ticks = iter(range(1_000_000))
    settings = replace(EASY, target=500, max_seconds=100)
    ran = run_module.Run(settings, lambda: float(next(ticks)))
    summary = ran.until_done(QuietReport(), make_envs)
    assert not summary.solved
    assert summary.seconds >= 100
    assert summary.batches > 5
    # The limiter's bound: the samples for each step, plus how far either side may be ahead.
    samples = summary.batches * settings.dqn.batch_size
    ahead = run_module.table_of(settings)["limiter"]["error_buffer"]
    # Batches that are made ahead count as sampled, and the actor has a buffer of steps that are not
    # inserted yet.
    on_the_way = 6 * settings.steps_per_update + 2048 / 32
    most = samples / 8 + settings.warmup_steps + ahead / 4 + on_the_way
    # the actor's report of its steps arrives later
    inserted = ran._status["tables"]["replay"]["inserted"]
    assert settings.warmup_steps <= inserted <= most
    assert summary.env_steps <= most
    assert summary.inserts_per_s > 0
    assert 0 < summary.samples_per_insert <= 8
    assert 0 <= summary.policy_lag <= summary.batches
    assert 0 < summary.drawn_policy_lag <= summary.batches


def test_the_table_of_any_settings_is_one_that_a_feeder_takes():
    for settings in (
        Settings(),
        EASY,
        replace(EASY, steps_per_update=0.01),
        replace(EASY, steps_per_update=1000.0),
    ):
        ServerSettings.from_plain({"replay": run_module.table_of(settings)}).make_tables()[
            "replay"
        ].close()


def test_the_json_line_has_exactly_the_promised_keys():
    line = summary_json(summary_of(20.0, 30.0))
    assert "\n" not in line
    assert json.loads(line) == {
        "solved": False,
        "mean_return": 25.0,
        "env_steps": 200,
        "batches": 7,
        "learner_wait_fraction": 0.25,
        "limiter_wait_fraction": 0.2,
        "seconds": 2.0,
        "start_seconds": 3.0,
        "inserts_per_s": 2345.0,
        "samples_per_insert": 63.5,
        "policy_lag": 10,
        "policy_lag_s": 0.015,
        "drawn_policy_lag": 321.0,
    }


def test_the_report_shows_return_rates_and_waiting():
    text = io.StringIO()
    report = LiveReport(Console(file=text, width=100))
    with report.watch(lambda: summary_of(20.0, 30.0)):
        pass
    report.finish(summary_of(20.0, 30.0), "curve.png")
    for part in (
        "25.0",
        "200",
        "4 a second",
        "25.0%",
        "2,345/s",
        "63.5 times",
        "10",
        "15 ms",
        "321",
        "not solved after 2 s",
        "3 s of starting",
        "curve.png",
    ):
        assert part in text.getvalue()


WAITING = replace(summary_of(), waits_for="the actors", seconds=0.0)


def test_the_report_says_what_it_waits_for_until_there_is_a_batch():
    text = io.StringIO()
    LiveReport(Console(file=text, width=100)).finish(WAITING)
    assert "waits for" in text.getvalue()
    assert "the actors" in text.getvalue()
    LiveReport(Console(file=(later := io.StringIO()), width=100)).finish(summary_of(20.0))
    assert "waits for" not in later.getvalue()


@pytest.mark.parametrize(
    "console",
    [{}, {"force_terminal": True, "_environ": {"TERM": "dumb"}}],
    ids=["pipe", "dumb terminal"],
)
def test_where_a_table_cannot_be_redrawn_lines_are_printed(console):
    text, enough = io.StringIO(), threading.Event()
    looks = iter(range(1_000_000))

    def snapshot():
        if (look := next(looks)) == 5:
            enough.set()
        return WAITING if look < 3 else summary_of(20.0, 30.0)

    report = LiveReport(Console(file=text, width=100, **console), every_s=0.001)
    with report.watch(snapshot):
        assert enough.wait(60)
    lines = text.getvalue().splitlines()
    assert "waits for the actors" in text.getvalue()
    assert sum("return 25.0, 200 environment steps, 7 batches" in line for line in lines) >= 1


def test_a_run_that_is_stopped_says_how_far_it_went():
    text = io.StringIO()
    report = LiveReport(Console(file=text, width=100))
    report.stop()  # before the first snapshot
    assert text.getvalue() == ""
    with pytest.raises(KeyboardInterrupt), report.watch(lambda: summary_of(20.0, 30.0)):
        raise KeyboardInterrupt
    report.stop()
    assert "63.5 times" in text.getvalue()


def test_time_is_counted_from_the_first_batch_on_and_starting_has_an_end():
    class Empty:
        """A loader without batches."""

        looks = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.looks += 1
            raise Timeout("no batch")

    ticks = iter(range(1_000_000))
    one, loader = run_module.Run(replace(EASY, max_seconds=5), lambda: float(next(ticks))), Empty()
    with pytest.raises(Timeout):
        one._learn(loader)
    assert loader.looks > 5  # more seconds than the limit for learning


def test_a_curve_without_a_single_episode_is_still_a_png(tmp_path):
    write_curve(summary_of(), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("extra", ["gymnasium", "matplotlib"])
def test_a_missing_library_is_one_error_that_names_the_extra(monkeypatch, tmp_path, extra):
    for name in [name for name in sys.modules if name == extra or name.startswith(f"{extra}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(MissingExtra, match=r'pip install "async_loader\[demo\]"'):
        require_envs() if extra == "gymnasium" else write_curve(
            summary_of(), tmp_path / "curve.png"
        )
    if extra == "gymnasium":
        with pytest.raises(MissingExtra):
            make_envs(1)


@pytest.mark.parametrize(
    "bad",
    [
        {"target": 501},
        {"target": float("nan")},
        {"max_seconds": 0},
        {"seed": -1},
        {"seed": 2**32},
        {"num_actors": 100_000},
        {"num_envs": 10**9},
        {"num_envs": 0},
        {"num_actors": 0},
        {"publish_every": 0},
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


def test_the_command_exits_with_1_and_one_json_line_if_not_solved(tmp_path):
    curve = tmp_path / "curve.png"
    result = CliRunner().invoke(
        app, ["demo", "--json", "--max-seconds", "0.5", "--curve", str(curve)]
    )
    assert result.exit_code == 1
    assert json.loads(result.stdout)["solved"] is False
    assert len(result.stdout.strip().splitlines()) == 1
    assert curve.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("none/curve.png", "No such file or directory: make the folder"), ("", "Is a directory")],
)
def test_a_curve_that_cannot_be_written_is_refused_before_learning(
    tmp_path, monkeypatch, name, reason
):
    runs = []
    monkeypatch.setattr("async_loader.demo.run.run", lambda *_: runs.append(1))
    result = CliRunner().invoke(app, ["demo", "--curve", str(tmp_path / name)])
    assert (result.exit_code, runs) == (2, [])
    assert f"{tmp_path / name}: {reason}" in result.stderr
    assert "Starting" not in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [["--json"], []])
def test_a_curve_that_fails_loses_no_result(monkeypatch, options):
    summary = summary_of(20.0, 480.0)
    monkeypatch.setattr("async_loader.demo.run.run", lambda *_: summary)
    result = CliRunner().invoke(app, ["demo", "--curve", "/dev/full", *options])
    assert result.exit_code == 1
    if options:
        assert result.stdout == summary_json(summary) + "\n"
    else:
        assert "solved" in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("the curve was not written: /dev/full: No space left on device: free ")


def test_ctrl_c_at_a_terminal_ends_all_processes(tmp_path):
    """A terminal sends it to all processes of its group: actors ignore it,
    their parent ends them.
    """
    command = [
        sys.executable,
        "-m",
        "async_loader.cli",
        "demo",
        "--target",
        "500",
        "--curve",
        str(tmp_path / "curve.png"),
    ]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert "Starting a feeder and 2 actors" in child.stdout.readline()
        assert "learns CartPole-v1" in child.stdout.readline()
        os.killpg(child.pid, signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    assert child.returncode == 130
    assert errors == "stopped\n"
    # multiprocessing's own tracker ends after the others
    until(lambda: not group(child.pid))


def group(number: int) -> list[psutil.Process]:
    """Return the processes of a group."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) == number and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
