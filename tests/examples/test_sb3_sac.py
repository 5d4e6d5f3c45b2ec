"""The example with Stable-Baselines3, and the code of its guide, in short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("stable_baselines3")

ROOT = Path(__file__).parents[2]


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_buffers_give_the_same_returns():
    example = str(ROOT / "examples" / "sb3_sac.py")
    short = ["--steps", "120", "--episodes", "1"]
    ours, theirs = run(example, *short), run(example, *short, "--theirs")
    assert "120 transitions" in ours
    assert ours.splitlines()[0] == theirs.splitlines()[0]


def test_the_code_of_the_guide_runs():
    text = (ROOT / "docs" / "guides" / "sb3.md").read_text()
    blocks = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for code in blocks:
        run("-c", code)
