"""The global random generators of a worker process, seeded for each part of a batch. Never
called in the loader's process.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from async_loader import tensors
from async_loader.source import Seed


def seed_globals(seed: Seed) -> None:
    """Seed them for one chunk of one batch: the same seed gives the same chunk in any worker.

    torch's own is left out while the worker has not imported torch.
    """
    state = np.random.SeedSequence(seed).generate_state(2)
    random.seed(int(state[0]))
    np.random.seed(state[1])
    torch = tensors.loaded_torch()
    if torch is not None:
        # The CPU's generator alone: torch.manual_seed goes through every device's and costs 150
        # times as much.
        torch.default_generator.manual_seed(int(state[0]))


def seed_as_torch(base: int, worker: int) -> None:
    """The global generators of a worker process exactly as torch's own workers have them."""
    torch: Any = sys.modules["torch"]
    random.seed(base + worker)
    torch.default_generator.manual_seed(base + worker)
    generate: Any = getattr(sys.modules["torch.utils.data._utils.worker"], "_generate_state", None)
    state = (
        generate(base, worker)
        if generate is not None
        else np.random.SeedSequence((base, worker)).generate_state(4)
    )
    np.random.seed(state)
