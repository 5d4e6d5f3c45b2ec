"""Ranges and histograms of numbers, some of which may be NaN or infinite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

_BARS = 10


def finite(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the finite ones of some numbers."""
    found: npt.NDArray[Any] = values[np.isfinite(values)]
    return found


def summary(values: npt.NDArray[Any]) -> dict[str, float | None] | None:
    """Return the range of the finite numbers, and their middle; ``None`` without any.

    A number that is too large for a float is ``None``: JSON has none for it.
    """
    values = finite(values)
    if not len(values):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        said = {
            "min": float(values.min()),
            "mean": float(values.mean()),
            "median": float(np.median(values)),
            "max": float(values.max()),
        }
    return {name: value if math.isfinite(value) else None for name, value in said.items()}


def bars(values: npt.NDArray[Any]) -> tuple[list[int], list[float]]:
    """Return how many of the finite numbers are in each part of their range, and its edges.

    There is at least one.
    """
    values = finite(values)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            counts, edges = np.histogram(values, min(_BARS, len(np.unique(values))))
    except ValueError:  # a range too narrow for these parts, or beyond the largest float
        return [len(values)], [float(values.min()), float(values.max())]
    return counts.tolist(), edges.tolist()
