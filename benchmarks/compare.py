"""`./scripts/bench compare --base REV`:
our contenders of this checkout beside those of an earlier commit.

The base is checked out in a git worktree of its own and runs its own benchmark modules, so that a
contender may call a public interface that has changed since. Contenders are matched by row module
and name. Within a repeat the two sides run one after the other, and each repeat begins with the
other side: what slows the machine for a while slows both. A contender whose median ratio misses the
tolerance is measured once more with as many repeats, and both measurements together decide.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import environments
from benchmarks.harness import ROOT, Metric, NotMeasured, run_contender

SUITES = ("loader", "replay", "feeder", "doors")
REPEATS = 5
TOLERANCE = 0.05
_LISTING = """
import importlib, json, sys
found = []
for suite in sys.argv[1:]:
    for name in importlib.import_module(f"benchmarks.{suite}").ROWS:
        module = f"benchmarks.{suite}.{name}"
        row = importlib.import_module(module).ROW
        metric = row.metrics[0]
        found += [
            dict(suite=suite, module=module, row=row.key, contender=one.name,
                 environment=one.environment, metric=metric.key, label=metric.label,
                 better=metric.better, digits=metric.digits, seconds=row.seconds, once=one.once)
            for one in row.contenders if one.name.startswith("async_loader")
        ]
print(json.dumps(found))
"""


@dataclass
class Pair:
    """One contender that both checkouts have, and its figures: (base, here) of each repeat."""

    listed: dict[str, Any]
    figures: list[tuple[float, float]] = field(default_factory=list)
    not_measured: str | None = None

    @property
    def metric(self) -> Metric:
        one = self.listed
        return Metric(one["metric"], one["label"], one["better"], one["digits"])

    @property
    def ratio(self) -> float | None:
        """Median over the repeats of the factor by which this checkout is better."""
        ratios = [self.metric.advantage(here, base) for base, here in self.figures]
        return statistics.median(ratios) if ratios else None

    def missed(self, tolerance: float) -> bool:
        ratio = self.ratio
        return ratio is None or ratio < 1 - tolerance


def main(arguments: Sequence[str]) -> int:
    """Compare; return 1 if a contender is slower than the tolerance allows or was not measured."""
    options = _parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 170)
    base = _checkout(options.base)
    pairs, new = _pairs(base, options)
    if not pairs:
        sys.exit("no contender of ours in these suites and rows stands in both checkouts")
    pythons = {one.listed["environment"]: None for one in pairs}
    found = {name: environments.interpreter(name, console.print) for name in pythons}
    with console.status("measuring") as status:
        for said in _measure(pairs, base, found, options):
            status.update(said)
    _show(console, pairs, options)
    for name in new:
        console.print(f"  new, not compared: {name}")
    if options.out:
        _record(options, pairs)
    return int(any(one.missed(options.tolerance) for one in pairs))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench compare", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--base", required=True, help="the commit to compare with")
    parser.add_argument("--suites", default=",".join(SUITES), help="default: %(default)s")
    parser.add_argument("--rows", help="only these rows, by key: 1,11,start")
    parser.add_argument("--contenders", help="only contenders whose name contains this text")
    parser.add_argument(
        "--all", action="store_true", help="also contenders that a row runs once, for information"
    )
    parser.add_argument("--repeats", type=int, default=REPEATS, help="default: %(default)s")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, help="measured in each run (default: what the row says)"
    )
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    return parser.parse_args(arguments)


def _checkout(revision: str) -> Path:
    """Return a worktree of ``revision``, made once and kept beside the benchmark environments."""
    commit = _git("rev-parse", "--verify", f"{revision}^{{commit}}")
    folder = environments.HOME / f"base-{commit[:12]}"
    if not (folder / "benchmarks").is_dir():
        folder.parent.mkdir(exist_ok=True)
        _git("worktree", "prune")
        _git("worktree", "add", "--detach", "--force", str(folder), commit)
    return folder


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        sys.exit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _listed(root: Path, suites: Sequence[str]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", _LISTING, *suites],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        sys.exit(f"the benchmarks of this checkout cannot be listed: {done.stderr.strip()[-400:]}")
    return list(json.loads(done.stdout))


def _pairs(base: Path, options: argparse.Namespace) -> tuple[list[Pair], list[str]]:
    """Return contenders of both checkouts, and the names of those that only this one has."""
    suites = options.suites.split(",")
    earlier = {(one["module"], one["contender"]): one for one in _listed(base, suites)}
    rows = None if options.rows is None else set(options.rows.split(","))
    pairs, new = [], []
    for one in _listed(ROOT, suites):
        if (rows is not None and one["row"] not in rows) or (one["once"] and not options.all):
            continue
        if options.contenders and options.contenders not in one["contender"]:
            continue
        before = earlier.get((one["module"], one["contender"]))
        if before is None or before["metric"] != one["metric"]:
            new.append(f"{one['row']}: {one['contender']}")
        else:
            pairs.append(Pair(one))
    return pairs, new


def _measure(
    pairs: Sequence[Pair], base: Path, pythons: dict[str, Path | str], options: argparse.Namespace
) -> Iterator[str]:
    """Run the repeats; the pairs that missed are run once more. Yields the current run."""
    for again in (False, True):
        for pair in pairs:
            if again and (pair.not_measured or not pair.missed(options.tolerance)):
                continue
            python = pythons[pair.listed["environment"]]
            if isinstance(python, str):
                pair.not_measured = python
                continue
            for repeat in range(options.repeats):
                yield (
                    f"{pair.listed['row']}: {pair.listed['contender']} "
                    f"({repeat + 1}/{options.repeats})"
                )
                try:
                    pair.figures.append(_one(pair, base, python, repeat % 2 == 1, options.seconds))
                except NotMeasured as reason:
                    pair.not_measured = str(reason)
                    break


def _one(
    pair: Pair, base: Path, python: Path, here_first: bool, seconds: float | None
) -> tuple[float, float]:
    one, figures = pair.listed, {}
    for root in (ROOT, base) if here_first else (base, ROOT):
        run = run_contender(
            python, one["module"], one["contender"], seconds or one["seconds"], root
        )
        figures[root] = float(run[one["metric"]])
    return figures[base], figures[ROOT]


def _show(console: Console, pairs: Sequence[Pair], options: argparse.Namespace) -> None:
    table = Table(
        title=f"this checkout beside {options.base}: above 1 it is better", title_justify="left"
    )
    for name, justify in (("row", "left"), ("contender", "left"), ("metric", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name in ("base", "here", "ratio", "least-greatest", "runs", ""):
        table.add_column(name, justify="right")
    for pair in pairs:
        first = (
            f"{pair.listed['suite']} {pair.listed['row']}",
            pair.listed["contender"],
            pair.metric.label,
        )
        if pair.ratio is None:
            table.add_row(*first, f"[red]not measured: {pair.not_measured}[/red]")
            continue
        digits = pair.metric.digits
        base, here = (statistics.median(side) for side in zip(*pair.figures, strict=True))
        ratios = [pair.metric.advantage(ours, theirs) for theirs, ours in pair.figures]
        word = "[red]slower[/red]" if pair.missed(options.tolerance) else "[green]held[/green]"
        table.add_row(
            *first, f"{base:,.{digits}f}", f"{here:,.{digits}f}", f"{pair.ratio:.3f}",
            f"{min(ratios):.2f}-{max(ratios):.2f}", str(len(ratios)), word,
        )  # fmt: skip
    console.print(table)


def _record(options: argparse.Namespace, pairs: Sequence[Pair]) -> None:
    document = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "base": _git("rev-parse", options.base),
        "here": _git("rev-parse", "HEAD"),
        "tolerance": options.tolerance,
        "method": "both checkouts in turns, each run in a process of its own; ratios are medians "
        "of the ratios within a repeat",
        "contenders": [
            {
                "suite": pair.listed["suite"],
                "row": pair.listed["row"],
                "contender": pair.listed["contender"],
                "metric": pair.metric.label,
                "ratio": pair.ratio,
                "held": not pair.missed(options.tolerance),
                "base_and_here": pair.figures,
                "not_measured": pair.not_measured,
            }
            for pair in pairs
        ],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")
