"""numba's cache on disk, in which a disk error costs time and nothing else. Import late."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    _CacheLocator,
)

log = logging.getLogger("async_loader")
_told: list[str] = []
_announced: list[str] = []
REMEDY = (
    "every process that uses a table compiles them anew, which takes about 10 s: set "
    "NUMBA_CACHE_DIR to a folder that can be written and has 8 MiB of space"
)


class _Locator(_CacheLocator):  # type: ignore[misc]
    """The place of a kernel's code: a folder whose name has the hash of the sources.

    So a build can fill a folder that is then copied elsewhere. numba's own locators name the folder
    after the path of the sources.
    """

    def __init__(self, place: str) -> None:
        self._place = place

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator:
        return cls(f"{Path(py_file).parent.name}-{py_func.__code__.co_firstlineno}")

    def ensure_cache_path(self) -> None:
        """Do nothing: `kernel_folder` has."""

    def get_cache_path(self) -> str:
        return ""  # KernelCache knows it

    def get_source_stamp(self) -> str:
        return ""

    def get_disambiguator(self) -> str:
        return self._place


class _Code(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator,)


class KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's cache of one function.

    An entry that cannot be read is compiled; one that cannot be written is dropped.

    Parameters
    ----------
    function : callable
        The kernel.
    folder : str or None
        The folder to write to. ``None``: to write nothing.
    built : str or None
        A folder to read from as well.
    """

    _impl_class = _Code

    def __init__(self, function: Any, folder: str | None, built: str | None) -> None:
        super().__init__(function)
        self._cache_path = folder or ""
        base = self._impl.filename_base
        self._files = [
            IndexDataCacheFile(cache_path=path, filename_base=base, source_stamp="")
            for path in dict.fromkeys((folder, built))
            if path is not None
        ]
        if folder is None:
            self.disable()
        else:
            self._cache_file = self._files[0]

    def load_overload(self, sig: object, target_context: Any) -> Any:
        """Return compiled code, ``None`` if no entry can be read."""
        target_context.refresh()
        for file in self._files:
            try:
                data = file.load(self._index_key(sig, target_context.codegen()))
                if data is not None:
                    return self._impl.rebuild(target_context, data)
            except Exception as error:
                # a pickle of unknown content: a file cut short raises nearly anything
                warn_once(
                    f"compiled kernels in {file._cache_path} cannot be read ({_reason(error)})"
                )
        _announce()
        return None

    def save_overload(self, sig: object, data: object) -> None:
        """Store compiled code, if the disk allows."""
        try:
            super().save_overload(sig, data)
        except Exception as error:
            # no space, no quota, a folder that went away; an index cut short
            warn_once(f"compiled kernels cannot be kept in {self.cache_path} ({_reason(error)})")
            self.disable()


def _announce() -> None:
    """Tell once for each process, in the log and on a terminal, what takes seconds."""
    if _announced:
        return
    fact = "compiling replay kernels for this processor, once: this takes about 10 s"
    _announced.append(fact)
    log.info("%s", fact)
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"async_loader: {fact}\n")


def warn_once(fact: str) -> None:
    """Log a fact and its remedy once for each process, since one failure
    causes dozens of others.
    """
    if not _told:
        _told.append(fact)
        log.warning("%s: %s", fact, REMEDY)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
