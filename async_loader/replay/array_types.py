"""The types of arrays that a table is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
"""Ids, rows, numbers of streams, flags; and the tables of fields of kernels."""

Floats = npt.NDArray[np.float64]
Weights = npt.NDArray[np.floating[Any]]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]
