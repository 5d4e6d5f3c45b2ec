"""The record of a suite of which some rows are measured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.harness import Contender, Measured, Metric, Outcome, Row, Target


def row(key: str, *contenders: str) -> Row:
    return Row(
        key,
        f"row {key}",
        (Metric("us", "us"),),
        tuple(Contender(name, "project", lambda _: {}) for name in contenders),
        (Target("as fast", "us", 1.0, contenders[0], (contenders[1],)),),
    )


ROWS = [row("1", "async_loader", "peer"), row("2", "async_loader", "peer")]


def outcome(of: Row, ours: float, theirs: float) -> Outcome:
    figures = ({"us": ours}, {"us": theirs})
    measured = zip(of.contenders, figures, strict=False)
    return Outcome(of, tuple(Measured(contender, [one]) for contender, one in measured))


def about(day: str, **versions: str) -> dict[str, Any]:
    return {"date_of_run": day, "versions": {"project": versions}, "cpus": 2, "repeats": 1}


def figures(path: Path) -> list[tuple[str, str, float, str]]:
    document = json.loads(path.read_text())
    return [
        (one["row"], one["date_of_run"], one["targets"][0]["figure"], one["targets"][0]["outcome"])
        for one in document["rows"]
    ]


def test_a_row_measured_again_replaces_itself_alone(tmp_path: Path):
    path = tmp_path / "suite.json"
    report.record(path, "suite", about("2026-01-01"), [outcome(one, 2, 1) for one in ROWS])
    later = about("2026-02-02")
    written, kept = report.earlier(path, later, ROWS)
    assert set(kept) == {"1", "2"}
    del written["2"]
    report.record(path, "suite", later, [kept["1"], outcome(ROWS[1], 1, 3)], written)
    assert figures(path) == [
        ("1", "2026-01-01", 0.5, "missed"),
        ("2", "2026-02-02", 3.0, "held"),
    ]


def test_rows_measured_with_other_versions_are_not_put_together(tmp_path: Path):
    path = tmp_path / "suite.json"
    report.record(path, "suite", about("2026-01-01", torch="1"), [outcome(ROWS[0], 1, 1)])
    with pytest.raises(ValueError, match="record all rows again"):
        report.earlier(path, about("2026-02-02", torch="2"), ROWS)
