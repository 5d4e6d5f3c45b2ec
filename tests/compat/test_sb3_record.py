"""The runs of algorithms of Stable-Baselines3 that are on record, and the page that shows them."""

import json

from benchmarks import sb3_runs

RECORD = json.loads(sb3_runs.RECORD.read_text())


def test_the_guide_shows_the_runs_on_record():
    assert RECORD["summary"] == sb3_runs.summary(RECORD["runs"])
    shown = sb3_runs.PAGE.read_text().split(sb3_runs.BEGIN)[1].split(sb3_runs.END)[0]
    assert shown.strip() == sb3_runs.table(RECORD["summary"])


def test_every_task_ran_with_every_seed_and_both_buffers():
    runs = {(one["algorithm"], one["seed"], one["buffer"]) for one in RECORD["runs"]}
    assert runs == {
        (task.algorithm, seed, buffer)
        for task in sb3_runs.TASKS
        for seed in range(sb3_runs.SEEDS)
        for buffer in sb3_runs.BUFFERS
    }


def test_returns_are_within_one_pooled_standard_deviation():
    for row in RECORD["summary"]:
        assert abs(row["return_ours"] - row["return_sb3"]) <= row["pooled_std"]
