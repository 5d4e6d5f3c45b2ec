"""Hostile connections to every socket of a feeder, beside honest clients. Times nothing.

Plays ``tests/feeder/fuzz``: what connects sends random, damaged and hostile bytes, over tcp and
ipc, on every plane and to the socket for shared memory. What was found is named on stderr, with how
to play it again.
"""

import json
import subprocess
import sys

from benchmarks.harness import ROOT, Contender, Figures, Metric, Row, Target

INPUTS = 100_000
SEED = 7
PATIENCE_S = 1800.0
"""For all inputs: several times what an idle machine takes."""


def connections(seconds: float) -> Figures:
    """Play all inputs, or the share of them that the seconds are of what the row asks for."""
    count = max(1000, round(INPUTS * seconds / PATIENCE_S))
    command = [
        sys.executable,
        str(ROOT / "tests/feeder/fuzz/play.py"),
        str(count),
        str(SEED),
        "--json",
    ]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S + 60, check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode:
        print(*lines[:-1], f"again: {' '.join(command[1:])}", sep="\n", file=sys.stderr)
    return dict(json.loads(lines[-1]))


NAME = "async_loader, feeder over tcp and ipc"

ROW = Row(
    "connections",
    f"{INPUTS:,} hostile connections: no server ends, honest clients are served",
    (
        Metric("found", "things that were found", digits=0),
        Metric("inputs", "inputs", "higher", digits=0),
        Metric("honest_rows", "honest rows, all there", "higher", digits=0),
        Metric("growth_mib", "a server grew by MiB in 10,000 inputs", digits=2),
        Metric("took_s", "took s", digits=0),
    ),
    (Contender(NAME, "project", connections),),
    (
        Target(
            "no server ends, no acknowledged row is lost, no honest client fails", "found", 0, NAME
        ),
        Target(
            "a server grows by <= 1 MiB in 10,000 inputs, after the first 10,000",
            "growth_mib",
            1,
            NAME,
        ),
    ),
    seconds=PATIENCE_S,
    repeats=1,
)
