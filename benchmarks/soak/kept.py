"""Kills of a feeder with kept tables, under load of eight writers and two learners. Times the
longest pause of its clients.

Plays the test of ``tests/feeder/test_kept_feeder.py`` that is marked soak.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import ROOT, Contender, Figures, Metric, Row, Target

ROUNDS = 1000
PATIENCE_S = 7200.0
"""For all rounds: several times what an idle machine takes."""


def kills(seconds: float) -> Figures:
    """Play all rounds, or the share of them that the seconds are of what the row asks for."""
    rounds = max(4, round(ROUNDS * seconds / PATIENCE_S))
    with TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        command = [
            sys.executable, "-m", "pytest", "-q", "-m", "soak", "-p", "no:cacheprovider",
            str(ROOT / "tests/feeder/test_kept_feeder.py"),
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


NAME = "async_loader, 6 kept tables"

ROW = Row(
    "kept",
    f"{ROUNDS} kills of a feeder with kept tables: acknowledged rows are there once",
    (
        Metric("failed", "rounds that found something, 0 or 1", digits=0),
        Metric("rounds", "rounds", "higher", digits=0),
        Metric("pause_s", "the longest pause of a client after a restart, s", digits=2),
    ),
    (Contender(NAME, "project", kills),),
    (
        Target("nothing acknowledged is lost, nothing is there twice", "failed", 0, NAME),
        Target("clients go on within 2 s", "pause_s", 2, NAME),
    ),
    seconds=PATIENCE_S,
    repeats=1,
)
