"""Shared mappings whose address is a multiple of 2 MiB, so that the kernel can put huge pages under
them.

Rows that are drawn at random out of hundreds of megabytes cost a page walk each as long as they lie
in pages of 4 KiB.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import time
import weakref
from typing import Any

import numpy as np

_LARGEST = (32 << 20) - (64 << 10)
"""glibc adapts to blocks of up to 32 MB."""

_told = False


def keep_freed_memory() -> None:
    """Let batches up to 32 MB be made in memory that an earlier one has left, instead of in new
    pages each time.

    glibc gives freed memory back to the system at once until it has seen that such blocks come and
    go: the largest block of its own mapping that was freed so far is what it keeps from then on. So
    this has it see one, of which no page is ever touched. A batch of 1.8 MB made of 64 frames cost
    80 us a frame before and 40 us after. Other C libraries take no notice.
    """
    global _told
    if not _told:
        _told = True
        np.empty(_LARGEST, np.uint8)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as in glibc's malloc.h
_MMAP_BYTES = 32 << 20  # the most that glibc takes
KEPT_BYTES = 256 << 20
"""Free memory at the end of the heap at most: as much as one session of a feeder may have in
flight.
"""


def keep_freed() -> None:
    """Let malloc keep blocks below 32 MiB when they are freed: new pages cost more than filling
    them.

    For the whole process: call it where the process does nothing else. A no-op without glibc.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


HUGE = 2 << 20
"""Bytes of a huge page, and the alignment made by `aligned`."""

# MADV_COLLAPSE, Linux 6.1: acts at once, whatever the machine's setting for shared memory
_COLLAPSE = 25
_PROT_NONE, _MAP_FIXED, _MAP_NORESERVE = 0, 0x10, 0x4000
_FAILED = ctypes.c_void_p(-1).value
# zeroing a page takes about a millisecond; if the kernel has to move memory first, huge pages do
# not pay
_SLOW_S, _SLOW = 0.02, 3


def aligned(fd: int, nbytes: int) -> Any:
    """The file mapped shared, readable and writable, as a buffer that unmaps itself with the last
    view of it.

    ``None`` if that fails or would be of no use: the caller then maps it with `mmap`.
    """
    if nbytes < HUGE:
        return None
    libc = _libc()
    start = libc.mmap(
        None,
        nbytes + HUGE,
        _PROT_NONE,
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE,
        -1,
        0,
    )
    if start == _FAILED:
        return None
    begin = -(-start // HUGE) * HUGE
    whole = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    mapped = libc.mmap(
        begin, whole, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, fd, 0
    )
    if mapped == _FAILED:
        libc.munmap(start, nbytes + HUGE)
        return None
    for first, last in ((start, begin), (begin + whole, start + nbytes + HUGE)):
        if last > first:
            libc.munmap(first, last - first)
    buffer = (ctypes.c_ubyte * nbytes).from_address(begin)
    weakref.finalize(buffer, libc.munmap, begin, whole).atexit = False
    return buffer


class HugePages:
    """Puts huge pages under a mapping, part by part, before it is written for the first time. Gives
    up where they cost time.

    Parameters
    ----------
    address : int
        Address of the mapping. Does nothing unless it is a multiple of 2 MiB.
    nbytes : int
    """

    def __init__(self, address: int, nbytes: int) -> None:
        self._address = address
        self._wanted = 0 if address % HUGE else nbytes // HUGE
        self._done = bytearray(self._wanted)
        self._slow = 0

    @property
    def wanted(self) -> bool:
        """Whether there may be memory left to convert."""
        return self._wanted > 0

    def under(self, begin: int, end: int) -> int:
        """See to the bytes from ``begin`` to ``end``, and to what shares a huge page with them;
        where that ends.
        """
        last = -(-end // HUGE)
        for i in range(begin // HUGE, min(self._wanted, last)):
            if self._done[i]:
                continue
            self._done[i] = 1
            started = time.monotonic()
            done = collapse(self._address + i * HUGE)
            self._slow += time.monotonic() - started > _SLOW_S
            if not done or self._slow >= _SLOW:
                self._wanted = 0
                break
        return last * HUGE


def collapse(address: int) -> bool:
    """Put one huge page under these 2 MiB and keep their contents;
    return True if the kernel did.
    """
    ctypes.string_at(address, 1)  # the kernel refuses a range without any page
    return not _libc().madvise(address, HUGE, _COLLAPSE)


def advise(address: int, nbytes: int, advice: int) -> None:
    """Tell the kernel how mapped memory will be used: ``mmap.MADV_RANDOM``, ``MADV_WILLNEED``.

    ``address`` is a multiple of the page size. It is advice: nothing is raised.
    """
    _libc().madvise(address, nbytes, advice)


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc
