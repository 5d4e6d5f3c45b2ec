"""Rounds by their seeds: ``python tests/feeder/chaos/play.py 17``, or ``17 20`` for four of them.
Prints what happened.

With ``--json`` the last line is what `scripts/bench soak` records.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
FOLDERS = (str(HERE), str(HERE.parents[1]))
sys.path[:0] = FOLDERS

from plan import plan_of  # noqa: E402
from round import AT_ONCE, Outcome, play_many  # noqa: E402
from zygote import Zygote  # noqa: E402


def said(outcome: Outcome) -> str:
    """A round in a line."""
    plan, seen = outcome.plan, outcome.seen
    if seen is None:
        return f"seed {plan.seed}: {plan.mode}, {outcome.seconds:.1f} s"
    rows, lost = (
        sum(getattr(one, name) for one in seen.actors.values()) for name in ("sent", "lost")
    )
    return (
        f"seed {plan.seed}: {plan.mode}, {outcome.seconds:.1f} s, {rows} rows, {lost} lost, "
        f"{seen.batches} batches"
    )


def main(first: int, last: int, at_once: int, figures: bool) -> int:
    """How many rounds found something."""
    zygote, counts, began = Zygote("roles", folders=FOLDERS), Counter(), time.monotonic()
    counts.update(dict.fromkeys(("failed", "rows", "rows_lost", "batches", "faults"), 0))
    slowest = 0.0
    try:
        for outcome in play_many(
            zygote, (plan_of(seed) for seed in range(first, last + 1)), at_once
        ):
            print(said(outcome), flush=True)
            if outcome.wrong:
                print(outcome, flush=True)
            seen = outcome.seen
            counts.update(rounds=1, failed=bool(outcome.wrong), faults=len(outcome.plan.acts))
            if seen is not None:
                counts.update(batches=seen.batches)
                counts.update(rows=sum(one.sent for one in seen.actors.values()))
                counts.update(rows_lost=sum(one.lost for one in seen.actors.values()))
                slowest = max(slowest, seen.slowest_s)
    finally:
        zygote.close()
    if figures:
        print(json.dumps({**counts, "late_s": slowest, "took_s": time.monotonic() - began}))
    return counts["failed"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    sys.exit(
        min(
            1,
            main(
                asked.first,
                asked.first if asked.last is None else asked.last,
                asked.at_once,
                asked.json,
            ),
        )
    )
