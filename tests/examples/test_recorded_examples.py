"""Short runs of the examples whose environments record themselves."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip(
    "gymnasium", reason='gymnasium is not installed: pip install "async_loader[demo]"'
)

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *options: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def number(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    assert found, text
    return int(found[1].replace(",", ""))


@pytest.mark.slow
def test_a_script_of_cleanrl_keeps_every_transition():
    pytest.importorskip(
        "stable_baselines3", reason='stable-baselines3: pip install "async_loader[sb3]"'
    )
    said = run("cleanrl_dqn.py", "--steps", "1400")
    assert number(said, r"([\d,]+) transitions in the buffer") == 1_400


@pytest.mark.slow
def test_hindsight_goals_are_learned_from():
    said = run("her_reach.py", "--steps", "300", "--warmup", "100", "--tests", "2")
    assert number(said, r"([\d,]+) steps recorded") == 300


def sac(*options: str) -> tuple[int, int]:
    said = run("sac_mujoco.py", "--steps", "400", "--warmup", "100", *options)
    return number(said, r"([\d,]+) steps, "), number(said, r"([\d,]+) updates")


@pytest.mark.slow
def test_the_sac_makes_an_update_a_step():
    steps, updates = sac("--env", "Pendulum-v1")
    assert steps >= 400
    assert abs(updates - (steps - 100)) <= 40  # batches made ahead, and the limiter's error buffer


def test_half_cheetah_is_played_where_mujoco_is_installed():
    pytest.importorskip(
        "mujoco", reason='mujoco is not installed: pip install "async_loader[mujoco]"'
    )
    assert sac()[0] >= 400
