"""From the write of the last field, in one process, to the batch in a learner that waits."""

import multiprocessing
import time
from typing import Any

import numpy as np

from benchmarks.feeder.processes import child
from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.measure import read
from benchmarks.rollouts import ours
from benchmarks.rollouts.tokens import FIELDS
from benchmarks.rollouts.workloads import SIZE, Work

WORK = Work(SIZE, FIELDS, 1000)
REST_S = 0.005
"""Until the learner waits."""
LIMIT_S = 30.0


def through_feeder(seconds: float) -> Figures:
    """One batch is one group: the grader's last reward completes it."""
    with ours.serving(WORK, late=True) as (table, address), child((), _grade, address) as grader:
        turns = ours.Turns(table, WORK)

        def turn() -> float:
            turns.put()
            turns.get()
            end = time.monotonic()
            written = grader.hear(LIMIT_S)
            turns.publish()
            return float(end - written)

        return quantiles(seconds, turn)


def _grade(pipe: Any, address: str) -> None:
    from async_loader import connect

    with connect(address) as client:
        for member in client.table("bench").members(["tokens"], ["reward"], ahead=SIZE):
            last = member.number == SIZE - 1
            if last:
                time.sleep(REST_S)
            at = time.monotonic()
            member.update(reward=1.0)
            if last:
                pipe.send(at)


def through_queue(seconds: float, values: Any = None) -> Figures:
    """The same group as one object, which the learner waits for."""
    values = values or {**WORK.values, "reward": np.ones(SIZE, np.float32)}
    groups: Any = multiprocessing.Queue()
    told: Any = multiprocessing.Queue()
    process = multiprocessing.Process(target=_send, args=(told, groups, values), daemon=True)
    process.start()

    def turn() -> float:
        told.put(True)
        at, group = groups.get(timeout=LIMIT_S)
        read(group)
        return time.monotonic() - float(at)

    try:
        return quantiles(seconds, turn)
    finally:
        process.kill()
        process.join()


def _send(told: Any, groups: Any, values: Any) -> None:
    while told.get():
        time.sleep(REST_S)
        groups.put((time.monotonic(), values))


def quantiles(seconds: float, turn: Any) -> Figures:
    """Return those of what turns say, in milliseconds."""
    for _ in range(5):
        turn()
    found, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        found.append(turn() * 1e3)
    half, most = np.quantile(found, (0.5, 0.99))
    return {"p50": float(half), "p99": float(most)}


OURS = "async_loader"
ROW = Row(
    "handover",
    "rollouts: from the last field's write to the batch in a learner that waits",
    (Metric("p50", "ms, p50", digits=2), Metric("p99", "ms, p99", digits=2)),
    (
        Contender(OURS, "project", through_feeder),
        Contender("multiprocessing.Queue", "project", through_queue),
    ),
    (Target("p50 <= 1 ms", "p50", 1, OURS),),
)
