"""`./scripts/bench SUITE`: parse, make the environments, run, report. Judges nothing itself.

`./scripts/bench compare` pairs this checkout with an earlier commit: see `benchmarks.compare`.
"""

import argparse
import importlib
import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import environments, report
from benchmarks.gains import gain
from benchmarks.harness import ROOT, Outcome, Row, run_row

RESULTS, PICTURES = ROOT / "benchmarks" / "results", ROOT / "docs" / "figures"
SUITES = (
    "loader", "replay", "trajectories", "feeder", "rollouts", "scale", "doors", "gpu", "soak",
)  # fmt: skip
REPEATS = 3
WIDTH = 170
"""Width of tables in a file or a pipe."""
BUSY = 0.5
NOISE = "times say little now; CPU time and what is left behind still hold"
HURRY = 0.3
"""With --quick this share of the seconds is measured, once:
to check that everything runs, not for figures.
"""


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Side-by-side benchmarks; see benchmarks/."
    )
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument(
        "--rows", help="only these rows, by key: 1,11,start; recorded if --record is given"
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="put the rows of --rows in the place of those on record; the others stay",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        help=f"how often each contender is run (default {REPEATS}; some rows say fewer)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="once and briefly; no results are recorded unless --out is given",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="where SUITE.json and SUITE.png go (default benchmarks/results and docs/figures)",
    )
    parser.add_argument(
        "--here",
        action="store_true",
        help="run every contender with this interpreter, as on a machine without a network; those "
        "whose library it lacks are not measured",
    )
    parser.add_argument(
        "--note", help="a sentence for the record, which the page of benchmarks shows with it"
    )
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a target is missed or was not measured"
    )
    return parser.parse_args()


def main() -> int:
    """Run one suite; return the exit code."""
    options, begin = _parse(), time.monotonic()
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    suite = importlib.import_module(f"benchmarks.{options.suite}")
    rows = {
        name: importlib.import_module(name).ROW
        for name in (f"benchmarks.{options.suite}.{row}" for row in suite.ROWS)
    }
    every = list(rows.values())
    if options.rows:
        wanted = options.rows.split(",")
        if unknown := set(wanted) - {row.key for row in rows.values()}:
            sys.exit(
                f"no row {', '.join(unknown)} in {options.suite}: it has "
                f"{', '.join(row.key for row in rows.values())}"
            )
        rows = {module: row for module, row in rows.items() if row.key in wanted}
    names = sorted({contender.environment for row in rows.values() for contender in row.contenders})
    pythons: dict[str, Any] = {
        name: Path(sys.executable)
        if options.here
        else environments.interpreter(name, console.print)
        for name in names
    }
    repeats, hurry = (1, HURRY) if options.quick else (options.repeats or REPEATS, 1.0)
    about = {**_about(pythons, repeats, options.quick), **getattr(suite, "about", dict)()}
    if options.note:
        about["note"] = options.note
    if about["load_before"] > BUSY * about["cpus"]:
        console.print(
            f"[yellow]the machine is busy (load {about['load_before']:.1f} on {about['cpus']} "
            f"CPUs): {NOISE}[/yellow]"
        )
    out = options.out or RESULTS
    written, kept = {}, {}
    if options.rows and options.record:
        written, kept = report.earlier(out / f"{options.suite}.json", about, every)
    made = {}
    for module, row in rows.items():
        made[row.key] = _run(console, row, module, pythons, repeats, hurry)
        report.show(console, made[row.key], gain(options.suite, row.key))
    if options.out or options.record or not (options.quick or options.rows):
        draw: Callable[..., None] = getattr(suite, "draw", report.draw)
        outcomes = [one for row in every if (one := made.get(row.key) or kept.get(row.key))]
        written = {key: row for key, row in written.items() if key not in made}
        report.record(out / f"{options.suite}.json", options.suite, about, outcomes, written)
        picture = (options.out or PICTURES) / f"{options.suite}.png"
        draw(picture, about, outcomes)
        console.print(
            f"recorded: {options.suite}.json in {os.path.relpath(out)}, {os.path.relpath(picture)}"
        )
    console.print(f"took {time.monotonic() - begin:.0f} s")
    verdicts = [verdict for outcome in made.values() for verdict in outcome.verdicts()]
    return int(options.check and not all(verdict.held for verdict in verdicts))


def _run(
    console: Console, row: Row, module: str, pythons: dict[str, Any], repeats: int, hurry: float
) -> Outcome:
    with console.status(f"row {row.key}") as status:
        for said in run_row(row, module, pythons, repeats, hurry):
            if isinstance(said, Outcome):
                return said
            status.update(f"row {row.key}: {said}")
    raise AssertionError("a row ends with its outcome")


def _about(pythons: dict[str, Any], repeats: int, quick: bool) -> dict[str, Any]:
    return {
        "date_of_run": datetime.now(UTC).date().isoformat(),
        "cpus": len(os.sched_getaffinity(0)),
        "machine": f"{platform.system()} {platform.machine()}",
        "load_before": os.getloadavg()[0],
        "versions": {name: environments.versions(name, python) for name, python in pythons.items()},
        "repeats": repeats,
        "quick": quick,
        "method": "each contender in a process of its own, A B C A B C; every byte of every batch "
        "read inside the timed loop; "
        "ratios are medians of the ratios within a repeat; learners run torch with one thread",
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["compare"]:
        from benchmarks import compare

        sys.exit(compare.main(sys.argv[2:]))
    sys.exit(main())
