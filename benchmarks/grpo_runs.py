"""`python -m benchmarks.grpo_runs`: exact answers of examples/grpo_arithmetic.py over wall clock.

Each run is a process of its own; the seeds follow one another, and each runs all kinds in turn. The
record is benchmarks/results/grpo_runs.json; --draw draws docs/figures/grpo_runs.png anew from it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import ROOT

RECORD = ROOT / "benchmarks" / "results" / "grpo_runs.json"
PICTURE = ROOT / "docs" / "figures" / "grpo_runs.png"
KINDS = {
    "plain queue": ["--plain-queue"],
    "max_lag=4": ["--max-lag", "4"],
    "max_lag=1": ["--max-lag", "1"],
}
SEEDS, UPDATES = 5, 250
LIMIT_S = 600


def run(kind: str, seed: int) -> dict[str, Any]:
    """Return one run: points of seconds, update, share of exact answers, largest lag."""
    with TemporaryDirectory() as folder:
        out, load = Path(folder) / "run.json", os.getloadavg()[0]
        command = [sys.executable, str(ROOT / "examples" / "grpo_arithmetic.py"), "--no-kill"]
        options = ["--seed", str(seed), "--updates", str(UPDATES), "--out", str(out)]
        subprocess.run(["nice", "-n", "5", *command, *KINDS[kind], *options], check=True,
                       timeout=LIMIT_S)  # fmt: skip
        points = json.loads(out.read_text())
    loads = [round(load, 1), round(os.getloadavg()[0], 1)]
    return {"kind": kind, "seed": seed, "load": loads, "points": points}


def draw(record: dict[str, Any]) -> None:
    """Draw each run, and the lag of what was trained."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for number, kind in enumerate(KINDS):
        for i, one in enumerate(one for one in record["runs"] if one["kind"] == kind):
            at, _, exact, lag = zip(*one["points"], strict=True)
            label = kind if i == 0 else None
            left.plot(at, exact, color=f"C{number}", linewidth=1, alpha=0.8, label=label)
            right.plot(at, lag, color=f"C{number}", linewidth=1, alpha=0.8)
    left.set(xlabel="seconds", ylabel="exact answers", ylim=(0, 1))
    right.set(xlabel="seconds", ylabel="versions behind, at most", yscale="symlog")
    left.legend()
    seeds = len({one["seed"] for one in record["runs"]})
    figure.suptitle(f"GRPO on sums of two digits, {seeds} seeds, {record['cpus']} shared cores")
    figure.savefig(PICTURE, dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Run, record and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args()
    if asked.draw:
        return draw(json.loads(RECORD.read_text()))
    record: dict[str, Any] = {
        "date_of_run": datetime.now(UTC).date().isoformat(),
        "cpus": len(os.sched_getaffinity(0)), "updates": UPDATES, "runs": [],
    }  # fmt: skip
    for seed in range(asked.seeds):
        for kind in KINDS:
            record["runs"].append(run(kind, seed))
            RECORD.write_text(json.dumps(record) + "\n")
            draw(record)
    return None


if __name__ == "__main__":
    main()
