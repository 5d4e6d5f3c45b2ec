"""The Atari example in short: real Pong for some seconds.

That it learns is not claimed, and not tested.
"""

from __future__ import annotations

import math
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("ale_py", reason='ale-py is not installed: pip install "async_loader[atari]"')

EXAMPLE = Path(__file__).parents[2] / "examples" / "dqn_atari.py"
SHORT = ["--envs", "2", "--capacity", "2000", "--warmup", "64"]


def figure(report: str, what: str) -> float:
    """Return the number in a row of the report."""
    found = re.search(rf"{re.escape(what)}\W+([\d.,]+)", report)
    assert found, f"{what} is not in\n{report}"
    return float(found[1].replace(",", ""))


def test_some_seconds_of_pong_end_in_a_report_of_plausible_rates():
    command = [sys.executable, "-W", "error", str(EXAMPLE), *SHORT, "--seconds", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    report = done.stdout
    assert 0.5 < figure(report, "environment steps/s") < 50_000
    assert 0.1 < figure(report, "gradient steps/s") < 5_000
    # What it started with and the batches made ahead weigh on the mean of a short run, but no more
    # than the limiter allows: twice the error buffer of 4 batches and 4 inserts, the steps that
    # wait for their successors, and 5 batches.
    found = re.search(r"([\d,]+) in [\d.]+ s, batches of 32", report)
    assert found, report
    sampled, slack = 32 * int(found[1].replace(",", "")) - 5 * 32, 2 * 160 + 8 * 8 + 5 * 32
    most = 8 * sampled / (sampled - slack) if sampled > slack else math.inf
    assert (
        8 * sampled / (sampled + slack) - 0.01
        <= figure(report, "samples per insert")
        <= most + 0.01
    )
    assert 0 <= figure(report, "learner waits") <= 100
    assert figure(report, "stale priorities") <= 100
    table, stacks = map(int, re.findall(r"([\d,]+) MB", report))
    assert 6 < stacks / table < 8.1  # two stacks of four, but for the spare rows


def test_ctrl_c_ends_it_with_a_report_and_exit_code_0():
    command = [sys.executable, str(EXAMPLE), *SHORT, "--seconds", "600"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert "Ctrl-C ends it" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        out, errors = child.communicate(timeout=60)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == 0, errors
    assert "stopped" in out
