"""A short run of the demo. CI runs it to a return of 195 through `scripts/demo`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip(
    "gymnasium", reason='gymnasium is not installed: pip install "async_loader[demo]"'
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "cartpole_demo.py"


@pytest.mark.parametrize(("target", "solved"), [(10, True), (501, False)])
def test_the_demo_says_whether_it_reached_its_target(target: int, solved: bool) -> None:
    command = [sys.executable, str(EXAMPLE), "--json", "--actors", "1", "--max-seconds"]
    limit = "200" if solved else "1"
    done = subprocess.run(
        [*command, limit, "--target", str(target)], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == (0 if solved else 1), done.stderr
    found = json.loads(done.stdout)
    assert found["solved"] is solved
    assert found["env_steps"] >= 1_000
    assert 0 <= found["learner_wait_fraction"] <= 1
    assert found["drawn_policy_lag"] >= 0
