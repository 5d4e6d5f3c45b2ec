"""What a table's owner notes about one writer in another process, as words that kernels read and
write. Decides nothing.

Private to the owner, and under the table's lock: what a kernel adopts it also notes, so that
nothing comes between the two.
"""

from __future__ import annotations

import numpy as np

# Offsets in bytes.
LANE = 0  # the address of its lane
ADOPTED = 8  # records that were taken in
STEPPED = 16  # steps among them
HELD = 24  # rows that it was granted and that were neither adopted nor given up
WRONG = 32  # 1: it has published what cannot be, and nothing more is taken in
EXTENTS = 40  # the address of a ring of extents: first id, rows that are left
PLACES = 48  # of that ring
OLDEST = 56  # extents that are used up
NEWEST = 64  # extents that there ever were
WORDS = 9

_FIRST_PLACES = 8


class GrantLog:
    """The owner's end of it.

    Parameters
    ----------
    lane : int
        Its address.
    """

    def __init__(self, lane: int) -> None:
        self._words = np.zeros(WORDS, np.int64)
        self.address = int(self._words.ctypes.data)
        self._words[LANE // 8] = lane
        self._keep(np.zeros((_FIRST_PLACES, 2), np.int64))

    def _keep(self, extents: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> None:
        self._extents = extents
        self._words[EXTENTS // 8], self._words[PLACES // 8] = extents.ctypes.data, len(extents)

    def granted(self, first: int, count: int) -> None:
        """One more extent."""
        oldest, newest = int(self._words[OLDEST // 8]), int(self._words[NEWEST // 8])
        places = len(self._extents)
        if newest - oldest == places:
            wider = np.zeros((2 * places, 2), np.int64)
            there = np.arange(oldest, newest)
            wider[there % len(wider)] = self._extents[there % places]
            self._keep(wider)
        self._extents[newest % len(self._extents)] = first, count
        self._words[NEWEST // 8] += 1
        self._words[HELD // 8] += count

    @property
    def held(self) -> int:
        return int(self._words[HELD // 8])

    @property
    def stepped(self) -> int:
        return int(self._words[STEPPED // 8])

    @property
    def wrong(self) -> bool:
        return bool(self._words[WRONG // 8])
