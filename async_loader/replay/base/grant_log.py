"""The rows that one writer of another process was granted and has published, as words for kernels.

Private to the table's process, and used under the table's lock: a kernel that commits rows also
notes them here, so that no interruption comes between the two.
"""

from __future__ import annotations

import numpy as np

# Offsets in bytes.
RING = 0  # the address of its publish ring
COMMITTED = 8  # records that were committed
STEPPED = 16  # steps among them
HELD = 24  # rows that it was granted and that were neither committed nor given up
WRONG = 32  # 1: it has published an invalid record, and no more are committed
EXTENTS = 40  # the address of a ring of extents: first id, rows that are left
PLACES = 48  # of that ring
OLDEST = 56  # extents that are used up
NEWEST = 64  # extents that there ever were
WORDS = 9

_FIRST_PLACES = 8


class GrantLog:
    """The log of one writer.

    Parameters
    ----------
    ring : int
        Its address.
    """

    def __init__(self, ring: int) -> None:
        self._words = np.zeros(WORDS, np.int64)
        self.address = int(self._words.ctypes.data)
        self._words[RING // 8] = ring
        self._keep(np.zeros((_FIRST_PLACES, 2), np.int64))

    def _keep(self, extents: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> None:
        self._extents = extents
        self._words[EXTENTS // 8], self._words[PLACES // 8] = extents.ctypes.data, len(extents)

    def granted(self, first: int, count: int) -> None:
        """Note one more extent of granted rows."""
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
