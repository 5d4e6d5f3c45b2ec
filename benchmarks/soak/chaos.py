"""Rounds of faults between a feeder and its clients, of other seeds than those of the tests.

Times nothing.

Plays ``tests/feeder/chaos``: servers, actors and learners are killed and stopped behind a proxy
that drops, delays, cuts and forgets. A round that finds something is named on stderr, with how to
play it again.
"""

import json
import subprocess
import sys

from benchmarks.harness import ROOT, Contender, Figures, Metric, Row, Target

FIRST, ROUNDS = 30, 500
PATIENCE_S = 1500.0
"""For all rounds: several times the duration on an idle machine."""


def rounds(seconds: float) -> Figures:
    """Play all rounds, or the share of them that the seconds are of what the row asks for;
    what was seen, summed up.
    """
    import psutil

    last = FIRST + max(1, round(ROUNDS * seconds / PATIENCE_S)) - 1
    command = [
        sys.executable,
        str(ROOT / "tests/feeder/chaos/play.py"),
        str(FIRST),
        str(last),
        "--json",
    ]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S + 60, check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode:
        print(*[line for line in lines if not line.startswith("{")], sep="\n", file=sys.stderr)
    left = [
        one
        for one in psutil.Process().children(recursive=True)
        if one.status() != psutil.STATUS_ZOMBIE
    ]
    return {**json.loads(lines[-1]), "processes_left": len(left)}


NAME = "async_loader, feeder behind a proxy"

ROW = Row(
    "chaos",
    f"{ROUNDS} seeded rounds of faults: what was promised is there, once",
    (
        Metric("failed", "rounds that found something", digits=0),
        Metric("rounds", "rounds", "higher", digits=0),
        Metric("faults", "faults", "higher", digits=0),
        Metric("rows", "rows sent", "higher", digits=0),
        Metric("rows_lost", "rows told to be lost", digits=0),
        Metric("batches", "batches used", "higher", digits=0),
        Metric("late_s", "seconds that a call exceeded its deadline by, at most", digits=2),
        Metric("processes_left", "processes left", digits=0),
        Metric("took_s", "took s", digits=0),
    ),
    (Contender(NAME, "project", rounds),),
    (
        Target(
            "no round finds a row lost, doubled or torn, or a wait without an end",
            "failed",
            0,
            NAME,
        ),
        Target("no process is left", "processes_left", 0, NAME),
    ),
    seconds=PATIENCE_S,
    repeats=1,
)
