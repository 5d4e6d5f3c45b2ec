"""Rounds of kills that a test plays, marked soak: what its rows have in common. Times the longest
pause of those that go on.
"""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import ROOT, Contender, Figures, Metric, Row, Target

PATIENCE_S = 7200.0
"""For all rounds: several times what an idle machine takes."""


def _play(seconds: float, test: str, rounds: int) -> Figures:
    """Play all rounds, or the share of them that the seconds are of what the row asks for."""
    share = max(4, round(rounds * seconds / PATIENCE_S))
    with TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        command = [
            sys.executable, "-m", "pytest", "-q", "-m", "soak", "-p", "no:cacheprovider",
            str(ROOT / test),
        ]  # fmt: skip
        done = subprocess.run(
            command,
            env={
                **os.environ,
                "ASYNC_LOADER_SOAK_ROUNDS": str(share),
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


def row(
    key: str,
    title: str,
    name: str,
    test: str,
    rounds: int,
    pause: str,
    promise: str,
    goes_on: tuple[str, float],
) -> Row:
    """``goes_on``: a target, and the seconds of the longest pause that it allows."""
    text, limit = goes_on
    return Row(
        key,
        title,
        (
            Metric("failed", "rounds that found something, 0 or 1", digits=0),
            Metric("rounds", "rounds", "higher", digits=0),
            Metric("pause_s", pause, digits=2),
        ),
        (Contender(name, "project", partial(_play, test=test, rounds=rounds)),),
        (Target(promise, "failed", 0, name), Target(text, "pause_s", limit, name)),
        seconds=PATIENCE_S,
        repeats=1,
    )
