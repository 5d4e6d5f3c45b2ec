"""Two ranks of torchrun on two shards: their batches have no row in common."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp_cluster.py"


@pytest.mark.slow
def test_the_batches_of_two_ranks_have_no_row_in_common():
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *(str(EXAMPLE), "--batches", "4", "--batch-size", "16"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "128 rows for 2 ranks" in done.stdout
    assert "batches are disjoint: True; models are equal: True" in done.stdout
