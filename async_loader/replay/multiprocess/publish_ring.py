"""The memory that one writer and the table's process share. See NOTE [publish ring]."""

from __future__ import annotations

from typing import Any

from async_loader.replay.base import ring_format
from async_loader.shm.segment import Segment


class PublishRing:
    """One end of the ring; the other is in another process.

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
        """Claim the handle. Return 0, or the pid of the process that has claimed it before."""
        return int(self._kernels.claim(self.address + ring_format.CLAIMED, pid))

    def room(self, written: int) -> int:
        """Return how many records can be written before the table's process has to commit some."""
        return ring_format.SIZE - written + int(self._kernels.freed(self.address))

    def state(self) -> int:
        """Return whether the table's process has closed the ring, and how."""
        return int(self._block[ring_format.CLOSED])

    # -- the table's process -----------------------------------------------------------------------

    def give(self, credits: int) -> None:
        self._kernels.give(self.address, credits)

    def take_back(self) -> int:
        """Take back the credits that the writer has not used. Return how many."""
        return int(self._kernels.take_back(self.address))

    def shut(self, state: int) -> None:
        self._kernels.close_ring(self.address, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return PublishRing, (self.segment,)
