"""The record of whole runs of Stable-Baselines3, and the guide that shows it."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import sb3_runs


def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sb3_runs.RECORD.read_text())
    return found


def test_the_summary_is_that_of_the_runs_and_the_guide_shows_it():
    found = record()
    assert found["summary"] == sb3_runs.summary(found["runs"])
    page = sb3_runs.PAGE.read_text()
    assert page.split(sb3_runs.BEGIN)[1].split(sb3_runs.END)[0].strip() == sb3_runs.section(
        found["summary"]
    )
