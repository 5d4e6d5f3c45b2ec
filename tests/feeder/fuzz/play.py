"""``python tests/feeder/fuzz/play.py 100000 [SEED]``: hostile connections, and what they did to
honest ones and to memory.

With ``--json`` the last line is what `scripts/bench soak` records.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fuzzer import MIB, Fuzz


def main(count: int, seed: int, figures: bool) -> int:
    """How many things were found."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fuzz = Fuzz(folder, seed)
        rows = fuzz._servers
        fuzz.run(count)
    for one in fuzz.wrong:
        print(one)
    for key, value in sorted(fuzz.kinds.items()):
        print(f"{value:8d} {key}")
    for series in fuzz.rss:
        print(" ".join(f"{value / MIB:8.1f} MiB" for value in series))
    if figures:
        found = {
            "found": len(fuzz.wrong),
            "inputs": fuzz.inputs,
            "honest_rows": sum(one.written for one in rows),
            "growth_mib": fuzz.growth_mib,
            "took_s": time.monotonic() - began,
        }
        print(json.dumps(found))
    return len(fuzz.wrong)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sys.exit(bool(main(given.count, given.seed, given.json)))
