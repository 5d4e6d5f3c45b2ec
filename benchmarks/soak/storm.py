"""10,000 times Ctrl-C at random moments of next, close and the constructor.

Times nothing.

Plays ``tests/faults/storm_play.py``, of other seeds than the test of a few hundred signals.
"""

import json
import subprocess
import sys

from benchmarks.harness import ROOT, Contender, Figures, Metric, Row, Target

SEED, SIGNALS = 101, 10_000
PATIENCE_S = 1800.0
"""For all signals: several times the duration on an idle machine."""


def storm(seconds: float) -> Figures:
    """Strike all signals, or the share of them that the seconds are of what the row asks for;
    what was seen.
    """
    signals = max(100, round(SIGNALS * seconds / PATIENCE_S))
    command = [sys.executable, str(ROOT / "tests/faults/storm_play.py"), str(SEED), str(signals)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S + 60, check=False
    )
    seen = json.loads(done.stdout.splitlines()[-1]) if not done.returncode else {}
    return {
        "failed": int(done.returncode != 0),
        "signals": seen.get("signals", 0),
        "within": seen.get("within the call", 0),
        "batches": seen.get("batches taken", 0),
        "left": sum(
            seen.get(f"{what} left", 0) for what in ("processes", "descriptors", "threads")
        ),
    }


NAME = "async_loader, Ctrl-C at random moments"

ROW = Row(
    "storm",
    f"{SIGNALS:,} times Ctrl-C: nothing comes twice, nothing wedges, nothing is left",
    (
        Metric("failed", "runs that found something", digits=0),
        Metric("signals", "signals", "higher", digits=0),
        Metric("within", "of these within a call", "higher", digits=0),
        Metric("batches", "batches taken, in order", "higher", digits=0),
        Metric("left", "processes, descriptors, threads left", digits=0),
    ),
    (Contender(NAME, "project", storm),),
    (
        Target("batches come in order and none twice, and no call wedges", "failed", 0, NAME),
        Target("nothing is left", "left", 0, NAME),
    ),
    seconds=PATIENCE_S,
    repeats=1,
)
