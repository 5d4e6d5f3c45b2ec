"""A short run of the example with actors in processes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip(
    "gymnasium", reason='gymnasium is not installed: pip install "async_loader[demo]"'
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "feeder_dqn.py"


@pytest.mark.slow
def test_actors_and_learner_keep_to_the_limiters_ratio():
    command = [sys.executable, "-W", "error", str(EXAMPLE), "--actors", "1", "--updates", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    updates, steps, ratio, lag = map(float, re.findall(r"[\d.]+", done.stdout))
    assert updates == 60
    # samples: of the updates, with batches made ahead; of the limiter
    least, most, buffer = 60 * 128, 72 * 128, 8 * 128
    # of a stream: its newest step counts for the limiter, and as inserted when the next one comes
    waiting = 1
    assert 500 + (least - buffer) / 32 - waiting <= steps <= 500 + (most + buffer) / 32
    assert least / steps - 1 <= ratio <= most / steps + 1
    assert 0 <= lag <= 60
