"""The recurrent example in short. That it solves its task takes minutes: docs/examples.md has the
curves.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gymnasium", reason='gymnasium is not installed: pip install ".[demo]"')

EXAMPLE = Path(__file__).parents[2] / "examples" / "r2d2.py"


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--memoryless"]])
def test_some_updates_end_in_a_curve(tmp_path, more):
    curve = tmp_path / "curve.json"
    command = [sys.executable, "-W", "error", str(EXAMPLE), "--steps", "4200", *more]
    command += ["--every", "4096", "--curve", str(curve)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert "mean return" in done.stdout
    written = json.loads(curve.read_text())
    assert written["memoryless"] == bool(more)
    ((step, mean),) = written["points"]
    assert step == 4096
    assert 8 <= mean <= 500
