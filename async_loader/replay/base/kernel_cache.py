"""numba's cache on disk, in which a disk error costs time and nothing else. Import late."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

log = logging.getLogger("async_loader")
_told: set[str] = set()
REMEDY = (
    "every process that uses a table compiles them anew, which takes about 10 s: set "
    "NUMBA_CACHE_DIR to a folder that can be written and has 8 MiB of space"
)


class _Locator(_CacheLocator):  # type: ignore[misc]
    """The place of a kernel's code: a folder whose name has the hash of the sources.

    So a build can fill a folder that is then copied elsewhere. numba's own locators name the folder
    after the path of the sources.
    """

    folder = ""
    """Of all kernels of this process."""

    def __init__(self, place: str, py_file: str) -> None:
        self._place = place
        self._py_file = py_file  # which numba names where it refuses to store code

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator:
        return cls(f"{Path(py_file).parent.name}-{py_func.__code__.co_firstlineno}", py_file)

    def get_cache_path(self) -> str:
        return self.folder

    def get_source_stamp(self) -> str:
        return ""

    def get_disambiguator(self) -> str:
        return self._place


class _Code(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator,)


class KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's cache of one function.

    An entry that cannot be read is compiled; one that cannot be written is dropped.
    """

    _impl_class = _Code

    def __init__(self, function: Any, folder: str | None) -> None:
        _Locator.folder = folder or ""
        super().__init__(function)
        if folder is None:
            self.disable()
        self._generic = False

    def _index_key(self, sig: object, codegen: Any) -> Any:
        key = super()._index_key(sig, codegen)
        return (key[0], (key[1][0], "generic", ""), *key[2:]) if self._generic else key

    def load_overload(self, sig: object, target_context: Any) -> Any:
        """Return compiled code, ``None`` if no entry can be read."""
        found = None
        try:
            # first what the package was built with: it runs on every processor of this kind
            for self._generic in (True, False):
                found = found or super().load_overload(sig, target_context)
        except Exception as error:
            # a pickle of unknown content: a file cut short raises nearly anything
            warn_once(f"compiled kernels in {self.cache_path} cannot be read ({error!r})")
        self._generic = False
        if found is None and "compiling" not in _told:
            _told.add("compiling")
            fact = "compiling replay kernels for this processor, once: this takes about 10 s"
            log.info("%s", fact)
            if sys.stderr is not None and sys.stderr.isatty():
                sys.stderr.write(f"async_loader: {fact}\n")
        return found

    def save_overload(self, sig: object, data: object) -> None:
        """Store compiled code, if the disk allows."""
        try:
            super().save_overload(sig, data)
        except Exception as error:
            # no space, no quota, a folder that went away; an index cut short
            warn_once(f"compiled kernels cannot be kept in {self.cache_path} ({error!r})")
            self.disable()


def warn_once(fact: str) -> None:
    """Log a fact and its remedy once for each process, since one failure
    causes dozens of others.
    """
    if "failed" not in _told:
        _told.add("failed")
        log.warning("%s: %s", fact, REMEDY)
