"""What a writer asks for: rows and credits for its next steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from async_loader.replay.array_types import Ids

_MOST = 1024  # steps in one request of which some take more rows than one


@dataclass(frozen=True, slots=True)
class RowNeed:
    """Rows and credits for the next steps of a writer.

    Attributes
    ----------
    steps : int
        Steps for which it wants credits; 0: a row without a credit.
    left : int
        Rows that it has been granted and has not filled.
    rows : int64 array
        Rows that the first step takes, the first two, and so on; empty: one each.
    waits : bool
        Whether it goes on waiting if it cannot have them now.
    """

    steps: int
    left: int
    rows: Ids
    waits: bool

    @classmethod
    def of(cls, a: int, b: int, body: bytes) -> RowNeed:
        """Return what the numbers and the bytes of a message say."""
        left, *_ = numbers = np.frombuffer(body, np.int64)
        rows = numbers[1:] if len(numbers) > 1 else np.arange(1, abs(a) + 1)
        return cls(min(b, len(rows)), int(left), rows, a >= 0)

    @staticmethod
    def message(rows: Ids, steps: int, left: int, waits: bool) -> tuple[int, int, bytes]:
        """Return the numbers and the bytes of the message for these rows, as in `RowNeed`."""
        total = int(rows[-1])
        if steps and total == steps:
            rows = rows[:0]
        elif len(rows) > _MOST:
            rows, steps = rows[:_MOST], _MOST
            total = int(rows[-1])
        body = np.concatenate((np.array([left]), rows)).astype(np.int64).tobytes()
        return total if waits else -total, steps, body

    def wanted(self, steps: int) -> int:
        """Return how many rows the first ``steps`` steps take; with 0 the rows of the first."""
        return int(self.rows[max(1, steps) - 1])

    def fit(self, rows: int) -> int:
        """Return how many of the steps these rows are enough for."""
        return min(self.steps, int(np.searchsorted(self.rows, rows, "right")))
