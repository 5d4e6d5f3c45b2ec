"""A short run of the offline example: written through Minari, imported, trained."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("h5py")
pytest.importorskip("minari")

EXAMPLE = Path(__file__).parents[2] / "examples" / "offline_minari.py"


@pytest.mark.slow
def test_a_data_set_is_written_imported_and_learned_from():
    command = [sys.executable, str(EXAMPLE), "--updates", "20", "--episodes", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert "data: 600 steps" in done.stdout
    assert re.search(r"return before -\d+, after 20 updates -\d+", done.stdout)
