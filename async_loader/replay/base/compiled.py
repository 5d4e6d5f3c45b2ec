"""Compiles kernels with numba, without Python objects, and caches them on disk where that is
possible.

Import kernels late: importing numba takes half a second, which an import of the package should not
cost.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from async_loader.process_hooks import SignalsDeferred, at_fork

F = TypeVar("F", bound=Callable[..., Any])
_REPLAY = Path(__file__).parent.parent
_KEPT = 4


def kernel(
    *, keeps_gil: bool = False, inline: bool = False, always: bool = False
) -> Callable[[F], F]:
    """Compile a function at its first call.

    Parameters
    ----------
    keeps_gil : bool
        For what takes some microseconds: letting go of the GIL costs little, but beside a learner
        that wants it, getting it back takes up to 5 ms.
    inline : bool
        For small functions that only kernels call.
    always : bool
        Of those, for the ones that are called for each row written: LLVM leaves calls of the larger
        ones, and each passes every array as seven words.
    """
    from numba import njit

    from async_loader.replay.base.kernel_cache import KernelCache

    _guard_forks()

    def compile_(function: F) -> F:
        options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True} if inline else {}
        if always:
            options["forceinline"] = True
        # Without numba's reference counts: each call of an inlined kernel would count its arrays up
        # and down, in two locked instructions, which is two thirds of writing a small row. So no
        # kernel can allocate an array.
        made: Any = njit(nogil=not keeps_gil, error_model="numpy", _nrt=False, **options)(function)
        if not inline:
            # as its enable_caching() does with FunctionCache
            made._cache = KernelCache(function, kernel_folder())
        _compile_whole(made)
        return cast(F, made)

    return compile_


def _compile_whole(made: Any) -> None:
    """Hold signals back while a kernel is compiled or loaded: an exception that interrupts numba
    has LLVM free memory twice.
    """
    compile_ = made.compile

    def whole(signature: object) -> Any:
        with SignalsDeferred():
            return compile_(signature)

    made.compile = whole


@functools.cache
def _guard_forks() -> None:
    """Forbid a fork while another thread compiles: the child would inherit numba's lock in the
    locked state.
    """
    from numba.core.compiler_lock import global_compiler_lock as lock

    at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


def served_mark() -> Path | None:
    """Return the file that says that every kernel of a served table is on disk; ``None`` without a
    folder. Loading them takes half a second, compiling them ten.
    """
    folder = kernel_folder()
    return None if folder is None else Path(folder) / "served"


@functools.cache
def kernel_folder() -> str | None:
    """Return the folder that compiled code is read from and written to; ``None``, with a warning,
    without such a folder. One that the build of the package has filled may be read-only.
    """
    wanted = os.environ.get("NUMBA_CACHE_DIR")
    failures = []
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    beside = _REPLAY / "__pycache__"
    for parent in (wanted,) if wanted else (beside, cache):
        try:
            return str(_prepared(Path(parent).expanduser(), _name()))
        except (OSError, RuntimeError) as error:  # read-only, full; no home
            failures.append(f"{parent}: {error}")
    if (beside / _name()).is_dir():
        return str(beside / _name())
    from async_loader.replay.base.kernel_cache import warn_once

    warn_once(f"no folder for compiled kernels can be written ({'; '.join(failures)})")
    return None


@functools.cache
def _name() -> str:
    """Return the name of the folder of compiled code, one for each state of the sources.

    numba notices that the file of a kernel has changed, and does not notice a change in another
    file whose functions the kernel calls.
    """
    sources = hashlib.sha256()
    for folder in ("base", "kernels", "samplers"):
        for path in sorted((_REPLAY / folder).glob("*.py")):
            sources.update(path.read_bytes())
    return f"async_loader-{sources.hexdigest()[:16]}"


def _prepared(parent: Path, name: str) -> Path:
    """Return ``parent / name``, which has compiled code or can be written. Raises OSError."""
    folder = parent / name
    if next(folder.glob("*.nbi"), None) is None:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        found = sorted(parent.glob("async_loader-*"), key=lambda path: path.stat().st_mtime)
        for old in found[:-_KEPT]:  # of earlier sources; other processes may use the newest few
            shutil.rmtree(old, ignore_errors=True)
    return folder
