"""Decoded frames in shared memory: each process that decodes one puts it there for all.

# NOTE [slot locks]
A slot holds one frame, and a word that says which. A process that reads or writes it holds a lock
of the kernel on a byte of the segment (an open file description lock), which the kernel releases
when the process ends: a worker that is killed while it writes leaves a slot that says it is empty.
A lock that another process holds is not waited for: the frame is decoded again, or not kept.
"""

from __future__ import annotations

import fcntl
import os
import struct
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError
from async_loader.shm.limits import human
from async_loader.shm.segment import Segment

Frame = npt.NDArray[np.uint8]
_WAYS = 8
"""Slots that a frame may lie in."""
_PAGE = 4096
_FLOCK = "hhqqi4x"
_SET_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None)


class FrameCache:
    """A bounded cache of frames by number, for the processes that get a copy of it.

    One thread of each process at a time. Cost: about 5 us, and copying the frame.

    Parameters
    ----------
    nbytes : int
        Of shared memory at most; pages are taken as they are used.
    frame_bytes : int
        Of the largest frame.

    Raises
    ------
    ConfigError
        If it cannot hold `_WAYS` frames.
    OutOfMemory
    """

    def __init__(self, nbytes: int, frame_bytes: int) -> None:
        slots = (nbytes - _PAGE) // (frame_bytes + 8)
        if slots < _WAYS:
            raise ConfigError(
                f"cache={human(nbytes)}: a frame takes {human(frame_bytes)}, and it holds "
                f"{_WAYS} at least: give {human(_WAYS * (frame_bytes + 8) + _PAGE)} or more"
            )
        self._begin(
            Segment.create(nbytes, "the cache of decoded frames", commit=False), slots, frame_bytes
        )

    def _begin(self, segment: Segment, slots: int, frame_bytes: int) -> None:
        self._segment, self._frame_bytes = segment, frame_bytes
        self._sets = slots // _WAYS
        self._numbers = segment.bytes(0, 8 * slots).view(np.int64)
        self._frames = segment.bytes(8 * slots, slots * frame_bytes).reshape(slots, frame_bytes)
        self._fd, self._pid, self._next = -1, 0, 0
        self.hits = self.misses = 0

    def get(self, number: int, into: npt.NDArray[Any]) -> bool:
        """Copy a frame, ``into [height, width, 3]``. Return False if it is not there."""
        first = number % self._sets * _WAYS
        for way in np.flatnonzero(self._numbers[first : first + _WAYS] == number + 1).tolist():
            slot = first + way
            if not self._lock(slot, fcntl.F_RDLCK):
                continue
            try:
                if self._numbers[slot] == number + 1:
                    into[...] = self._frames[slot, : into.nbytes].reshape(into.shape)
                    self.hits += 1
                    return True
            finally:
                self._lock(slot, fcntl.F_UNLCK)
        self.misses += 1
        return False

    def put(self, number: int, frame: Frame) -> None:
        """Keep a frame, in place of another if all of its slots are taken."""
        first = number % self._sets * _WAYS
        held = self._numbers[first : first + _WAYS]
        if (held == number + 1).any():
            return
        empty = np.flatnonzero(held == 0)
        self._next = (self._next + 1) % _WAYS
        slot = first + (int(empty[0]) if len(empty) else self._next)
        if not self._lock(slot, fcntl.F_WRLCK):
            return
        try:
            self._numbers[slot] = 0
            self._frames[slot, : frame.nbytes] = frame.reshape(-1)
            self._numbers[slot] = number + 1
        finally:
            self._lock(slot, fcntl.F_UNLCK)

    def _lock(self, slot: int, kind: int) -> bool:
        """Take or release the lock of a slot. Return False if another process holds it."""
        if _SET_LOCK is None:
            return False  # nothing is kept
        if self._pid != os.getpid():  # a child of a fork has locks of its own
            self._fd = os.open(f"/proc/self/fd/{self._segment.fileno()}", os.O_RDWR | os.O_CLOEXEC)
            self._pid = os.getpid()
            weakref.finalize(self, _close, self._fd, self._pid)
        try:
            fcntl.fcntl(self._fd, _SET_LOCK, struct.pack(_FLOCK, kind, os.SEEK_SET, slot, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        slots = len(self._numbers)
        return _attached, (self._segment, slots, self._frame_bytes)


def _attached(segment: Segment, slots: int, frame_bytes: int) -> FrameCache:
    cache = FrameCache.__new__(FrameCache)
    cache._begin(segment, slots, frame_bytes)
    return cache


def _close(fd: int, pid: int) -> None:
    if pid == os.getpid():
        os.close(fd)
