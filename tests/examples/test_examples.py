"""Short runs of the examples. That they learn takes minutes: docs/examples.md has the curves."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from zygote import Zygote

from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import ServerSettings

ROOT = Path(__file__).parents[2]


def needs(*modules: str) -> None:
    for module in modules:
        pytest.importorskip(module, reason=f"{module} is not installed")


OURS = {"dqn_atari", "feeder_dqn", "grpo_arithmetic", "ppo_feeder", "r2d2"}
"""Examples of nothing but the package: without a warning, but of a long wait under load."""


STRICT = ("-W", "error", "-W", "ignore:waiting for")


def command(name: str, *options: str) -> list[str]:
    strict = STRICT if name in OURS else ()
    return [sys.executable, *strict, str(ROOT / f"examples/{name}.py"), *options]


@pytest.fixture(scope="module")
def zygotes() -> Iterator[tuple[Zygote, Zygote]]:
    """With and without warnings as errors."""
    modules = ("torch", "async_loader.feeder.server", "loaded_kernels")
    folders = (str(ROOT / "tests"),)
    if importlib.util.find_spec("gymnasium"):
        modules += ("gymnasium",)
    made = tuple(Zygote(*modules, folders=folders, options=one) for one in (STRICT, ()))
    yield made
    for one in made:
        one.close()


@pytest.fixture
def run(zygotes: tuple[Zygote, Zygote]) -> Callable[..., str]:
    """Return what an example prints, which ends with this code."""

    def run(name: str, *options: str, code: int = 0) -> str:
        path = ROOT / f"examples/{name}.py"
        done, said, errors = zygotes[name not in OURS].run(path, *options, limit_s=280)
        assert done == code, errors[-3000:]
        return said

    return run


def number(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    assert found, f"{pattern} is not in\n{text}"
    return float(found[1].replace(",", ""))


@pytest.mark.slow
@pytest.mark.parametrize(("target", "solved"), [(10, True), (501, False)])
def test_the_demo_says_whether_it_reached_its_target(run, target, solved):
    needs("gymnasium")
    options = ["--actors", "1", "--max-seconds", "200" if solved else "1", "--target", str(target)]
    found = json.loads(run("cartpole_demo", "--json", *options, code=not solved))
    assert found["solved"] is solved
    assert found["env_steps"] >= 1_000
    assert 0 <= found["learner_wait_fraction"] <= 1
    assert found["drawn_policy_lag"] >= 0


@pytest.mark.slow
def test_the_batches_of_two_ranks_have_no_row_in_common():
    python, *script = command("ddp_cluster", "--batches", "4", "--batch-size", "16")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    said = subprocess.check_output([python, *torchrun, *script], text=True, timeout=280)
    assert "128 rows for 2 ranks" in said
    assert "batches are disjoint: True; models are equal: True" in said


PONG = ["--envs", "2", "--capacity", "2000", "--warmup", "64"]


@pytest.mark.slow
def test_some_seconds_of_pong_end_in_a_report_of_plausible_rates(run):
    needs("ale_py")
    report = run("dqn_atari", *PONG, "--seconds", "5")

    def figure(what):
        return number(report, rf"{re.escape(what)}\W+([\d.,]+)")

    assert 0.5 < figure("environment steps/s") < 50_000
    assert 0.1 < figure("gradient steps/s") < 5_000
    # What it started with and the batches made ahead weigh on the mean of a short run, but no more
    # than the limiter allows: twice the error buffer of 4 batches and 4 inserts, the steps that
    # wait for their successors, and 5 batches.
    sampled = 32 * number(report, r"([\d,]+) in [\d.]+ s, batches of 32") - 5 * 32
    slack = 2 * 160 + 8 * 8 + 5 * 32
    most = 8 * sampled / (sampled - slack) if sampled > slack else math.inf
    least = 8 * sampled / (sampled + slack)
    assert least - 0.01 <= figure("samples per insert") <= most + 0.01
    assert 0 <= figure("learner waits") <= 100
    assert figure("stale priorities") <= 100
    table, stacks = map(int, re.findall(r"([\d,]+) MB", report))
    assert 6 < stacks / table < 8.1  # two stacks of four, but for the spare rows


@pytest.mark.slow
def test_ctrl_c_ends_pong_with_a_report_and_exit_code_0():
    needs("ale_py")
    started = command("dqn_atari", *PONG, "--seconds", "600")
    child = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert "Ctrl-C ends it" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        out, errors = child.communicate(timeout=60)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == 0, errors
    assert "stopped" in out


@pytest.mark.slow
def test_actors_and_learner_keep_to_the_limiters_ratio(run):
    needs("gymnasium")
    said = run("feeder_dqn", "--actors", "1", "--updates", "60")
    updates, steps, ratio, lag = map(float, re.findall(r"[\d.]+", said))
    assert updates == 60
    # samples: of the updates, with batches made ahead; of the limiter
    least, most, buffer = 60 * 128, 72 * 128, 8 * 128
    # of a stream: its newest step counts for the limiter, and as inserted when the next one comes
    waiting = 1
    assert 500 + (least - buffer) / 32 - waiting <= steps <= 500 + (most + buffer) / 32
    assert least / steps - 1 <= ratio <= most / steps + 1
    assert 0 <= lag <= 60


@pytest.mark.slow
def test_actors_and_learner_meet_at_a_feeder_of_another_address(run):
    needs("gymnasium")
    settings = ServerSettings.from_plain({"replay": 50_000})
    server = FeederProcess(msgspec.structs.replace(settings, bind="tcp://127.0.0.2:0"))
    thread = threading.Thread(target=server.run)
    thread.start()
    away = ["--actors", "1", "--no-learner", "--address", server.address]
    actors = subprocess.Popen(command("feeder_dqn", *away))
    try:
        said = run("feeder_dqn", "--actors", "0", "--updates", "30", "--address", server.address)
    finally:
        actors.send_signal(signal.SIGINT)
        actors.wait(60)
        server.stop()
        thread.join()
        server.close()
    assert said.startswith("30 updates, ")


@pytest.mark.slow
def test_a_data_set_is_written_imported_and_learned_from(run):
    needs("gymnasium", "h5py", "minari")
    said = run("offline_minari", "--updates", "20", "--episodes", "3")
    assert "data: 600 steps" in said
    assert re.search(r"return before -\d+, after 20 updates -\d+", said)


@pytest.mark.slow
def test_rollouts_are_at_most_one_version_old(run, tmp_path):
    needs("gymnasium")
    curve = tmp_path / "curve.json"
    said = run("ppo_feeder", "--steps", "3072", "--every", "3", "--curve", str(curve))
    assert "policy lag: 1 version at most" in said
    written = json.loads(curve.read_text())
    assert written["lags"] == [0, 1]
    assert [steps for steps, _ in written["points"]] == [1536, 3072]
    assert all(8 <= mean <= 500 for _, mean in written["points"])


@pytest.mark.slow
def test_each_prompt_is_trained_once_though_a_generator_and_the_learner_are_killed(run, tmp_path):
    curve = tmp_path / "curve.json"
    said = run("grpo_arithmetic", "--updates", "24", "--max-lag", "2", "--out", str(curve))
    found = re.search(r"(\d+) drawn = (\d+) trained \+ (\d+) filtered \+ (\d+) given up", said)
    drawn, *ways = map(int, found.groups())
    assert drawn == 24 * 8 == sum(ways)
    assert ways[0] > 0
    points = json.loads(curve.read_text())
    assert [step for _, step, _, _ in points] == list(range(10, 10 * len(points) + 1, 10))
    assert all(0 <= exact <= 1 and lag <= 2 for _, _, exact, lag in points)


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--memoryless"]])
def test_some_updates_of_r2d2_end_in_a_curve(run, tmp_path, more):
    needs("gymnasium")
    curve = tmp_path / "curve.json"
    said = run("r2d2", "--steps", "4200", *more, "--every", "4096", "--curve", str(curve))
    assert "mean return" in said
    written = json.loads(curve.read_text())
    assert written["memoryless"] == bool(more)
    ((step, mean),) = written["points"]
    assert step == 4096
    assert 8 <= mean <= 500


RECORDED = {
    "cleanrl_dqn": (["--steps", "1400"], r"([\d,]+) transitions in the buffer", 1_400),
    "her_reach": (
        ["--steps", "300", "--warmup", "100", "--tests", "2"],
        r"([\d,]+) steps recorded",
        300,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_an_environment_that_records_itself_loses_no_step(run, name):
    needs("gymnasium", *(["stable_baselines3"] if name == "cleanrl_dqn" else []))
    options, pattern, steps = RECORDED[name]
    assert number(run(name, *options), pattern) == steps


@pytest.mark.slow
def test_a_run_that_is_killed_ends_with_the_weights_of_one_that_is_not(run):
    needs("gymnasium")
    said = run("killed_dqn", "--updates", "1000", "--within", "3", "--kills", "2", "--least", "0")
    assert "killed" in said


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Pendulum-v1", None], ids=["pendulum", "half cheetah"])
def test_the_sac_makes_an_update_a_step(run, env):
    needs("gymnasium", *(["mujoco"] if env is None else []))
    options = ["--steps", "400", "--warmup", "100", *(["--env", env] if env else [])]
    said = run("sac_mujoco", *options)
    steps, updates = number(said, r"([\d,]+) steps, "), number(said, r"([\d,]+) updates")
    assert steps >= 400
    assert abs(updates - (steps - 100)) <= 40  # batches made ahead, and the limiter's error buffer


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Of the small products of these programs, a team of threads makes the work of ten."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_both_buffers_of_sb3_give_the_same_returns(capsys, one_torch_thread):
    needs("stable_baselines3")
    main = runpy.run_path(str(ROOT / "examples" / "sb3_sac.py"))["main"]
    main(steps=80, episodes=1)
    ours = capsys.readouterr().out
    main(steps=80, episodes=1, theirs=True)
    theirs = capsys.readouterr().out
    assert "80 transitions" in ours
    assert ours.splitlines()[0] == theirs.splitlines()[0]


@pytest.mark.slow
def test_the_code_of_the_guide_to_sb3_runs(one_torch_thread):
    needs("stable_baselines3")
    text = (ROOT / "docs" / "guides" / "sb3.md").read_text()
    blocks = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for code in blocks:
        exec(compile(code, "sb3.md", "exec"), {})
