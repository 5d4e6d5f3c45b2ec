"""Ranges and histograms of numbers, some of which may be NaN or infinite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

_BARS = 10


def histogram(values: npt.NDArray[Any]) -> dict[str, Any] | None:
    """Return the range of the finite numbers, their middle, and how many are in each part of the
    range; ``None`` without any.

    A number that is too large for a float is ``None``: JSON has none for it.
    """
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        said = {
            "min": float(values.min()),
            "mean": float(values.mean()),
            "median": float(np.median(values)),
            "max": float(values.max()),
        }
        try:
            counts, edges = np.histogram(values, min(_BARS, len(np.unique(values))))
        except ValueError:  # a range too narrow for these parts, or beyond the largest float
            counts, edges = np.array([len(values)]), np.array([said["min"], said["max"]])
    finite = {name: value if math.isfinite(value) else None for name, value in said.items()}
    return {**finite, "counts": counts.tolist(), "edges": edges.tolist()}
