"""The memory that one writer and the table's owner share. Waits for nothing; see NOTE [lane]."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.replay.base import ring_format
from async_loader.shm.segment import Segment

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class PublishRing:
    """One end of it; the other is in another process.

    Parameters
    ----------
    segment : Segment
        All zeros when it is new.
    """

    def __init__(self, segment: Segment) -> None:
        from async_loader.replay.kernels import publish_ring  # late: see compiled.py

        self.segment = segment
        self._kernels = publish_ring
        self._block = segment.bytes(0, ring_format.NBYTES)
        self.address = int(self._block.ctypes.data)

    @classmethod
    def create(cls) -> PublishRing:
        return cls(Segment.create(ring_format.NBYTES, "a writer's publish ring", commit=False))

    def close(self) -> None:
        del self._block
        self.address = 0
        self.segment.close()

    # -- the writer --------------------------------------------------------------------------------

    def claim(self, pid: int) -> int:
        """0 if this process is the first; otherwise the pid of the one that was."""
        return int(self._kernels.claim(self.address + ring_format.CLAIMED, pid))

    def room(self, written: int) -> int:
        """Records that can be written before the owner has to adopt some."""
        return ring_format.SIZE - written + int(self._kernels.freed(self.address))

    def state(self) -> int:
        """Whether the owner has closed it, and how."""
        return int(self._block[ring_format.CLOSED])

    # -- the owner ---------------------------------------------------------------------------------

    def give(self, permits: int) -> None:
        self._kernels.give(self.address, permits)

    def take_back(self) -> int:
        """InsertCredits that the writer has not taken, and now cannot."""
        return int(self._kernels.take_back(self.address))

    def shut(self, state: int) -> None:
        self._kernels.close_ring(self.address, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return PublishRing, (self.segment,)
