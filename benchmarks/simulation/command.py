"""`./scripts/bench simulation`: take the costs, simulate, show tables, record."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from async_loader.scale.shard_map import MOST_SHARDS
from benchmarks.readme import RESULTS, number, replaced
from benchmarks.simulation import directory, limiter, page, sessions, sizing
from benchmarks.simulation.costs import Assumed, Costs

RECORD = RESULTS / "simulation.json"
SHARDS = (4, 16, MOST_SHARDS, 256, 1_000)
CLIENTS = (1_000, 10_000, 100_000)
SESSIONS = (sessions.LIMIT, 2_000, 4_000, 10_000, 100_000)
SEED, WIDTH = 0, 150


def main(arguments: list[str]) -> int:
    """Run the simulation; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench simulation",
        description="A cluster in simulated time: what saturates, and where.",
    )
    parser.add_argument(
        "--measure", action="store_true", help="measure the costs here; else they are the recorded"
    )
    parser.add_argument(
        "--record", action="store_true", help="write the record and the page's section"
    )
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    begin = time.monotonic()
    before = json.loads(RECORD.read_text()) if RECORD.exists() else None
    with console.status("") as status:
        if options.measure or before is None:
            from benchmarks.simulation.measure import measure

            about = _about(measure(lambda what: status.update(f"measuring: {what}")))
        else:
            about = {name: before[name] for name in ("date_of_run", "cpus", "machine", "measured")}
        record = {**about, **simulated(about["measured"], Assumed(), status.update)}
    for table in _tables(record):
        console.print(table)
    if options.record:
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        text = page.PAGE.read_text()
        page.PAGE.write_text(replaced(text, page.section(record), page.BEGIN, page.END))
        console.print(f"recorded: {os.path.relpath(RECORD)} and {os.path.relpath(page.PAGE)}")
    console.print(f"took {time.monotonic() - begin:.0f} s")
    return 0


def _about(measured: dict[str, Any]) -> dict[str, Any]:
    return {
        "date_of_run": datetime.now(UTC).date().isoformat(),
        "cpus": len(os.sched_getaffinity(0)),
        "machine": f"{platform.system()} {platform.machine()}",
        "measured": measured,
    }


def simulated(
    measured: Mapping[str, Any], assumed: Assumed, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return what the simulation finds with measured costs, in plain values."""
    costs = Costs.of(measured)
    found: dict[str, Any] = {"seed": SEED, "assumed": assumed.plain(), "directory": [], "most": []}
    for shards in SHARDS:
        most: dict[str, Any] = {"shards": shards}
        for name, scenario in directory.SCENARIOS.items():
            say(f"directory: {shards:,} shards, {name}")
            for clients in CLIENTS:
                model = directory.DirectoryModel(costs, assumed, shards, clients, SEED)
                load = model.run(scenario)
                plain = {**asdict(load), "saturated": load.saturated}
                found["directory"].append({"scenario": name, **_rounded(plain)})
            most[name] = directory.most_clients(costs, assumed, shards, scenario, SEED)
        found["most"].append(most)
    found["check"] = checked(costs, assumed, measured)
    found["sessions"] = []
    for clients in SESSIONS:
        say(f"sessions: {clients:,} clients")
        plain = asdict(sessions.ReopeningModel(costs, assumed, clients, SEED).run())
        plain["open_s"] = plain["open_s"] if math.isfinite(plain["open_s"]) else None
        plain["memory_bytes"] = clients * costs.session_bytes
        found["sessions"].append(_rounded(plain))
    found["most_sessions"] = {
        "half": sessions.most_clients(costs, assumed, 0.5, SEED),
        "all": sessions.most_clients(costs, assumed, 0.99, SEED),
    }
    found["limiter"] = []
    for shards in SHARDS:
        say(f"limiter: {shards:,} shards")
        found["limiter"].append(_limiter(costs, assumed, shards))
    found["sizing"] = [_rounded(asdict(one)) for one in sizing.sizes(costs, assumed)]
    return found


def checked(costs: Costs, assumed: Assumed, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return how long news takes to 1,000 clients, as measured on Ray and as simulated."""
    model = directory.DirectoryModel(costs, assumed, MOST_SHARDS, 1_000, SEED)
    news_s = model.run(directory.DirectoryModel.change).news_s
    real_s = float(measured["news_many_s"]["value"])
    return {"measured_s": real_s, "simulated_s": float(f"{news_s:.4g}")}


def _limiter(costs: Costs, assumed: Assumed, shards: int) -> dict[str, Any]:
    work = limiter.Workload()
    alone, balanced = (
        limiter.LimiterModel(costs, assumed, shards, work, on, SEED).run(
            limiter.RUN_S, limiter.WARM_S
        )
        for on in (False, True)
    )
    return {
        "shards": shards,
        "round_s": float(f"{balanced.round_s:.4g}"),
        "alone": _rounded(asdict(alone)),
        "balanced": _rounded(asdict(balanced)),
        "least_window_s": limiter.least_window_s(costs, assumed, shards),
    }


def _rounded(plain: dict[str, Any]) -> dict[str, Any]:
    """Return floats with four significant digits."""
    return {
        name: float(f"{value:.4g}") if isinstance(value, float) else value
        for name, value in plain.items()
    }


def _tables(record: Mapping[str, Any]) -> list[Table]:
    load = _table("Directory", "scenario", "shards", "clients", "busy", "longest wait, s",
                  "news after, s", "late", "saturated")  # fmt: skip
    for one in record["directory"]:
        load.add_row(
            one["scenario"], f"{one['shards']:,}", f"{one['clients']:,}",
            f"{one['utilisation']:.1%}", number(one["longest_wait_s"]),
            number(one["news_s"]), f"{one['late']:,}", "yes" if one["saturated"] else "",
        )  # fmt: skip
    most = _table(
        "The most clients that do not saturate the directory", "shards", *directory.SCENARIOS
    )
    for one in record["most"]:
        cells = (page.most_text(one[name]) for name in directory.SCENARIOS)
        most.add_row(f"{one['shards']:,}", *cells)
    opened = _table("Sessions of a shard", "clients", "heartbeats", "all back, s", "attempts")
    for one in record["sessions"]:
        back = "not in 60" if one["open_s"] is None else number(one["open_s"])
        attempts = number(one["attempts"])
        opened.add_row(f"{one['clients']:,}", f"{one['resting']:.1%}", back, attempts)
    limits = _table("Limiter", "shards", "balance", "learner", "slowest writers",
                    "ratio of the whole off by", "of the worst shard", "round, s")  # fmt: skip
    for one in record["limiter"]:
        for name in ("alone", "balanced"):
            seen = one[name]
            limits.add_row(
                f"{one['shards']:,}", "yes" if seen["balanced"] else "no",
                *(f"{seen[key]:.1%}" for key in ("learner", "writers", "whole", "worst")),
                number(seen["round_s"]),
            )  # fmt: skip
    return [load, most, opened, limits]


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for one in others:
        table.add_column(one, justify="right")
    return table
