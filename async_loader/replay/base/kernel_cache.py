"""numba's cache on disk, in which a disk error costs time and nothing else. Import late."""

from __future__ import annotations

import logging
from typing import Any

from numba.core.caching import FunctionCache

log = logging.getLogger("async_loader")
_told: list[str] = []
REMEDY = (
    "every process that uses a table compiles them anew, which takes about 10 s: set "
    "NUMBA_CACHE_DIR to a folder that can be written and has 8 MiB of space"
)


class KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's cache of one function.

    An entry that cannot be read is compiled; one that cannot be written is dropped.
    """

    def load_overload(self, sig: object, target_context: object) -> Any:
        """Return compiled code, ``None`` if no entry can be read."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:
            # a pickle of unknown content: a file cut short raises nearly anything
            warn_once(f"compiled kernels in {self.cache_path} cannot be read ({_reason(error)})")
            return None

    def save_overload(self, sig: object, data: object) -> None:
        """Store compiled code, if the disk allows."""
        try:
            super().save_overload(sig, data)
        except Exception as error:
            # no space, no quota, a folder that went away; an index cut short
            warn_once(f"compiled kernels cannot be kept in {self.cache_path} ({_reason(error)})")
            self.disable()


def keep(dispatcher: Any) -> None:
    """Cache a kernel's compiled code on disk, in numba's current CACHE_DIR."""
    try:
        # as its enable_caching() does with FunctionCache
        dispatcher._cache = KernelCache(dispatcher.py_func)
    except (OSError, RuntimeError) as error:
        # RuntimeError: numba found no folder that can be written
        warn_once(f"compiled kernels cannot be kept ({_reason(error)})")


def warn_once(fact: str) -> None:
    """Log a fact and its remedy once for each process, since one failure
    causes dozens of others.
    """
    if not _told:
        _told.append(fact)
        log.warning("%s: %s", fact, REMEDY)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
