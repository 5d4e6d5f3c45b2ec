"""The memory that one writer and the table's owner share. Waits for nothing; see NOTE [lane]."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.replay import words
from async_loader.shm.segment import Segment

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Lane:
    """One end of it; the other is in another process.

    Parameters
    ----------
    segment : Segment
        All zeros when it is new.
    """

    def __init__(self, segment: Segment) -> None:
        from async_loader.replay.kernels import lanes  # late: see compiled.py

        self.segment = segment
        self._kernels = lanes
        self._block = segment.bytes(0, words.NBYTES)
        self.address = int(self._block.ctypes.data)

    @classmethod
    def create(cls) -> Lane:
        return cls(Segment.create(words.NBYTES, "a writer's lane", commit=False))

    def close(self) -> None:
        del self._block
        self.address = 0
        self.segment.close()

    # -- the writer ------------------------------------------------------------------------------------------------------

    def claim(self, pid: int) -> int:
        """0 if this process is the first; otherwise the pid of the one that was."""
        return int(self._kernels.claim(self.address + words.CLAIMED, pid))

    def room(self, written: int) -> int:
        """Records that can be written before the owner has to adopt some."""
        return words.SIZE - written + int(self._kernels.freed(self.address))

    def state(self) -> int:
        """Whether the owner has closed it, and how."""
        return int(self._block[words.CLOSED])

    # -- the owner -------------------------------------------------------------------------------------------------------

    def give(self, permits: int) -> None:
        self._kernels.give(self.address, permits)

    def take_back(self) -> int:
        """Permits that the writer has not taken, and now cannot."""
        return int(self._kernels.take_back(self.address))

    def shut(self, state: int) -> None:
        self._kernels.close_lane(self.address, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return Lane, (self.segment,)
