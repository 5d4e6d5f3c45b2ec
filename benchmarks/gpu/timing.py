"""The clock of a learner on an accelerator: nothing is over before the accelerator has done it.

Imports no contender.
"""

import os
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure import cpu_s

DEVICE = os.environ.get("ASYNC_LOADER_BENCH_DEVICE", "cuda")
"""Another device only tries the rows out where there is no accelerator."""
WARM_UP = 30
EVERY = 16
"""Steps between two looks at the clock, before each of which the accelerator is waited for."""

Batch = tuple[Any, Any, Any, Any, Any]
"""obs, action, reward, next_obs, terminated; in the accelerator's memory."""
Take = Callable[[], Batch]


def synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def read(batch: Any) -> None:
    """A kernel reads every byte of each tensor; nothing waits for it."""
    for tensor in batch:
        tensor.sum()


def time_steps(step: Callable[[], Any], seconds: float) -> dict[str, float]:
    """Means over ``seconds`` of a step and what it launched: microseconds, and those of the CPU by
    all processes.
    """
    for _ in range(WARM_UP):
        step()
    synchronize()
    count, cpu, start = 0, cpu_s(), time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        for _ in range(EVERY):
            step()
        synchronize()
        count += EVERY
    return {"us": (now - start) / count * 1e6, "cpu_us": (cpu_s() - cpu) / count * 1e6}
