"""Rounds by their seeds: ``python tests/feeder/chaos/play.py 17``, or ``17 20`` for four of them. Prints what happened."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
FOLDERS = (str(HERE), str(HERE.parents[1] / "faults"))
sys.path[:0] = FOLDERS

from plan import plan_of  # noqa: E402
from round import play  # noqa: E402
from zygote import Zygote  # noqa: E402


def main(first: int, last: int) -> int:
    """How many rounds found something."""
    zygote, failed = Zygote("roles", folders=FOLDERS), 0
    try:
        for seed in range(first, last + 1):
            plan, began = plan_of(seed), time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    wrong, seen = play(zygote, Path(folder), plan)
                    rows = sum(one.sent for one in seen.actors.values())
                    lost = sum(one.lost for one in seen.actors.values())
                    counts = f"{rows} rows, {lost} lost, {seen.batches} batches"
                    print(f"seed {seed}: {plan.mode}, {time.monotonic() - began:.1f} s, {counts}")
                except AssertionError as error:
                    wrong = [str(error)]
            if wrong:
                failed += 1
                print(plan, *wrong[:20], sep="\n")
    finally:
        zygote.close()
    return failed


if __name__ == "__main__":
    numbers = [int(one) for one in sys.argv[1:]]
    sys.exit(min(1, main(numbers[0], numbers[-1])))
