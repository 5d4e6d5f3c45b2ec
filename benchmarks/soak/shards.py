"""Kills of a cluster's processes on a real Ray, under load. Times the learner's longest pause.

Plays the test of ``tests/scale/test_ray_cluster.py`` that is marked soak: a shard and all
processes of a node are killed in turn.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import ROOT, Contender, Figures, Metric, Row, Target

ROUNDS = 200
PATIENCE_S = 7200.0
"""For all rounds: several times what an idle machine takes."""


def kills(seconds: float) -> Figures:
    """Play all rounds, or the share of them that the seconds are of what the row asks for."""
    rounds = max(4, round(ROUNDS * seconds / PATIENCE_S))
    with TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        command = [
            sys.executable, "-m", "pytest", "-q", "-m", "soak", "-p", "no:cacheprovider",
            str(ROOT / "tests/scale/test_ray_cluster.py"),
        ]  # fmt: skip
        done = subprocess.run(
            command,
            env={
                **os.environ,
                "ASYNC_LOADER_SOAK_ROUNDS": str(rounds),
                "ASYNC_LOADER_SOAK_REPORT": str(found),
            },
            cwd=ROOT,
            stdout=sys.stderr,
            timeout=PATIENCE_S + 600,
            check=False,
        )
        pauses = json.loads(found.read_text()) if found.exists() else []
    return {
        "failed": float(done.returncode != 0),
        "rounds": float(len(pauses)),
        "pause_s": max(pauses, default=float("nan")),
    }


NAME = "async_loader, 2 shards on 3 nodes"

ROW = Row(
    "shards",
    f"{ROUNDS} kills of a cluster's processes: rows are there once, or counted as lost",
    (
        Metric("failed", "rounds that found something, 0 or 1", digits=0),
        Metric("rounds", "rounds", "higher", digits=0),
        Metric("pause_s", "the learner's longest pause, s", digits=2),
    ),
    (Contender(NAME, "project", kills),),
    (
        Target("nothing lost uncounted, nothing twice", "failed", 0, NAME),
        Target("learners go on within 5 s", "pause_s", 5, NAME),
    ),
    seconds=PATIENCE_S,
    repeats=1,
)
