"""The INSERT of some steps, as a client sends it."""

from __future__ import annotations

import numpy as np

from async_loader.feeder.wire import Insert, RowLayout, Steps


def insert(layout: RowLayout, steps: Steps) -> Insert:
    packed = np.zeros(len(steps.streams), layout.packed)
    packed["stream"], packed["flags"] = steps.streams, steps.flags
    packed["priority"] = steps.priorities
    for i in layout.small:
        packed[f"f{i}"] = steps.columns[i]
    large = [np.ascontiguousarray(steps.columns[i]) for i in layout.large]
    return Insert(len(packed), [packed.view(np.uint8), *large])
