"""What a table costs that outlives its process: one feeder with a kept table and one in memory, of
the same steps, in turn.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import Contender, Figures, Metric, Row, Target

ROWS, BATCH, FILL = 64, 256, 20_000
SCHEMAS: dict[str, dict[str, Any]] = {
    "small": {"obs": {"dtype": "float32", "shape": [17]}, "reward": "float32"},
    "frames": {"obs": {"dtype": "uint8", "shape": [84, 84]}, "reward": "float32"},
}
CAPACITY = {"small": 100_000, "frames": 20_000}
TURN_S = 0.25


def _rate(call: Callable[[], object], rows: int) -> float:
    """Return the rows a second of a call, over one turn."""
    began = now = time.perf_counter()
    count = 0
    while now < began + TURN_S:
        call()
        count, now = count + rows, time.perf_counter()
    return count / (now - began)


def _pairs(calls: Mapping[str, Callable[[], object]], rows: int, seconds: float) -> float:
    """Return the median of kept over memory, in pairs whose order alternates."""
    found, end = list[float](), time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 2:
        names = ["memory", "kept"][:: 1 if len(found) % 2 else -1]
        rates = {name: _rate(calls[name], rows) for name in names}
        found.append(100 * rates["kept"] / rates["memory"])
    return median(found)


def cost(seconds: float) -> Figures:
    """Measure inserts that are acknowledged, and samples, of both kinds of steps."""
    from async_loader.feeder import connect

    figures: Figures = {}
    memory = Path("/dev/shm")
    home = memory if memory.is_dir() else None
    for kind, schema in SCHEMAS.items():
        with tempfile.TemporaryDirectory(dir=home) as folder:
            table = {"capacity": CAPACITY[kind], "schema": schema, "sampler": "prioritized"}
            tables = {"memory": table, "kept": table | {"keep": folder}}
            with connect("embedded", tables=tables) as client:
                obs = schema["obs"]
                rows = {
                    "obs": np.zeros((ROWS, *obs["shape"]), obs["dtype"]),
                    "reward": np.zeros(ROWS, np.float32),
                }
                writers = {name: client.table(name).writer() for name in tables}

                def insert(name: str, writers: Any = writers, rows: Any = rows) -> None:
                    for _ in range(16):
                        writers[name].extend(rows)
                    writers[name].flush(60.0)

                for name in tables:
                    for _ in range(CAPACITY[kind] // ROWS // 16 + 1):  # no page is new below
                        insert(name)
                inserts = {name: lambda name=name: insert(name) for name in tables}
                samples = {
                    name: lambda name=name: client.table(name).sample(BATCH) for name in tables
                }
                each = seconds / 4
                figures[f"{kind}_inserts"] = _pairs(inserts, 16 * ROWS, each)
                figures[f"{kind}_samples"] = _pairs(samples, BATCH, each)
                for one in writers.values():
                    one.close()
    return figures


NAME = "kept, in % of memory"

ROW = Row(
    "kept",
    "a table that outlives its process, in % of one that does not",
    tuple(
        Metric(f"{kind}_{what}", f"{what} of {kind}, %", "higher", digits=1)
        for kind in SCHEMAS
        for what in ("inserts", "samples")
    ),
    (Contender(NAME, "project", cost),),
    (
        Target("inserts of small rows cost at most 3%", "small_inserts", 97, NAME),
        Target("inserts of frames cost at most 3%", "frames_inserts", 97, NAME),
        Target("samples of small rows cost at most 1%", "small_samples", 99, NAME),
        Target("samples of frames cost at most 1%", "frames_samples", 99, NAME),
    ),
    seconds=60.0,
    repeats=1,
)
