"""The record of whole runs of Stable-Baselines3, and the guide that shows it."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import sb3_runs

LEAST = {"DQN": 450.0, "SAC": -200.0, "TD3": -200.0}
"""Final returns below which an algorithm has not learned its task."""


def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sb3_runs.RECORD.read_text())
    return found


def test_the_record_has_each_algorithm_with_both_buffers_and_five_seeds():
    found = [(one["algorithm"], one["buffer"], one["seed"]) for one in record()["runs"]]
    assert sorted(found) == sorted(
        (task.algorithm, buffer, seed)
        for task in sb3_runs.TASKS
        for buffer in sb3_runs.BUFFERS
        for seed in range(sb3_runs.SEEDS)
    )


def test_the_summary_is_that_of_the_runs_and_the_guide_shows_it():
    found = record()
    assert found["summary"] == sb3_runs.summary(found["runs"])
    page = sb3_runs.PAGE.read_text()
    assert page.split(sb3_runs.BEGIN)[1].split(sb3_runs.END)[0].strip() == sb3_runs.section(
        found["summary"]
    )


def test_the_algorithms_learn_as_well_here_and_the_buffer_takes_half_the_time_at_most():
    for row in record()["summary"]:
        assert row["return_ours"] >= LEAST[row["algorithm"]]
        assert abs(row["return_ours"] - row["return_sb3"]) <= row["pooled_std"]
        assert row["buffer_time_ratio"] <= 0.5
