"""How the server's process keeps what it has freed: messages of megabytes come and go all the time. Allocates nothing."""

from __future__ import annotations

import contextlib
import ctypes

_TRIM, _MMAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
_MMAP_BYTES = 32 << 20  # the most that glibc takes
KEPT_BYTES = 256 << 20
"""Of free memory at most at the end of the heap: as much as one session may have in flight."""


def keep_freed() -> None:
    """Let malloc give nothing below 32 MiB back to the system with each free: new pages cost more than what is written to them.

    For the whole process, so for one that is the server's own. Where there is no glibc nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP, _MMAP_BYTES)
        mallopt(_TRIM, KEPT_BYTES)
