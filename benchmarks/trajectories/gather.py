"""What a draw of sequences takes beside a gather of the same rows by id, in turns."""

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure import read

MOST_TURNS = 200


def over_gather(buffer: Any, take: Callable[[], Any], seconds: float) -> float:
    """Return the median over turns of the ratio."""
    ratios: list[float] = []
    buffer.get(take()["step_index"].reshape(-1))  # load what it needs
    end = time.perf_counter() + seconds
    while len(ratios) < MOST_TURNS and (not ratios or time.perf_counter() < end):
        begin = time.perf_counter()
        batch = take()
        drawn = time.perf_counter() - begin
        read(batch)
        ids = batch["step_index"].reshape(-1)
        begin = time.perf_counter()
        rows = buffer.get(ids)
        gathered = time.perf_counter() - begin
        read(rows)
        ratios.append(drawn / gathered)
    return statistics.median(ratios)
