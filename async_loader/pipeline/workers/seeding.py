"""The global random generators of a worker process, seeded for each part of a batch. Never
called in the loader's process.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np

from async_loader import tensors
from async_loader.source import Seed


def seed_globals(seed: Seed) -> None:
    """Seed them for one chunk of one batch: the same seed gives the same chunk in any worker."""
    state = np.random.SeedSequence(seed).generate_state(2)
    random.seed(int(state[0]))
    np.random.seed(state[1])
    torch = tensors.loaded_torch()
    if torch is not None:
        # The CPU's generator alone: torch.manual_seed goes through every device's and costs 150
        # times as much.
        torch.default_generator.manual_seed(int(state[0]))
    else:
        _later.seed(int(state[0]))


class _WhenTorchComes(MetaPathFinder):
    """Seeds torch's generator when a job is the first to import torch: before that there was
    none to seed.
    """

    def __init__(self) -> None:
        self._state = 0

    def seed(self, state: int) -> None:
        self._state = state
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_seed(module: ModuleType) -> None:
                load(module)
                module.default_generator.manual_seed(self._state)

            spec.loader.exec_module = load_and_seed  # type: ignore[method-assign]
        return spec


_later = _WhenTorchComes()
