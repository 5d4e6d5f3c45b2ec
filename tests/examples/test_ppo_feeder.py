"""The example with rollouts in a queue in short. That it learns takes minutes: docs/examples.md has
the curve.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gymnasium", reason='gymnasium is not installed: pip install ".[demo]"')

EXAMPLE = Path(__file__).parents[2] / "examples" / "ppo_feeder.py"


@pytest.mark.slow
def test_rollouts_are_at_most_one_version_old(tmp_path):
    curve = tmp_path / "curve.json"
    command = [sys.executable, "-W", "error", str(EXAMPLE), "--steps", "3072", "--every", "3"]
    command += ["--curve", str(curve)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert "policy lag: 1 version at most" in done.stdout
    written = json.loads(curve.read_text())
    assert written["lags"] == [0, 1]
    assert [steps for steps, _ in written["points"]] == [1536, 3072]
    assert all(8 <= mean <= 500 for _, mean in written["points"])
