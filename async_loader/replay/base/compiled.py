"""Compiles kernels with numba, without Python objects, and caches them on disk where that is
possible.

Import kernels late: importing numba takes half a second, which an import of the package should not
cost.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from async_loader.interrupts import SignalsDeferred

F = TypeVar("F", bound=Callable[..., Any])
_REPLAY = Path(__file__).parent.parent
"""The folder of the kernels and of what they are built on."""
_KEPT = 4
_ALL_KERNELS = 8 << 20
"""Bytes that the folder of compiled code needs, rounded up."""


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
            made._cache = KernelCache(function, kernel_folder(), built_folder())
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

    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )


def is_kept() -> bool:
    """Return whether every kernel of a served table is on disk, for this processor. Loading them
    takes half a second, compiling them ten.
    """
    return any(
        folder is not None and (Path(folder) / _mark()).exists()
        for folder in (kernel_folder(), built_folder())
    )


def note_kept() -> None:
    """Record on disk that every kernel of a served table was compiled or loaded."""
    folder = kernel_folder()
    if folder is not None:
        with contextlib.suppress(OSError):  # without the record, the next process compiles early
            (Path(folder) / _mark()).touch()


@functools.cache
def _mark() -> str:
    """Return the name of that record: a program that serves nothing keeps only some kernels."""
    processor = hashlib.sha256()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        first = file.read().split(b"\n\n")[0]
        for line in first.splitlines():
            if line.startswith((b"model name", b"flags", b"Features")):
                processor.update(line)
    return f"served-{sys.implementation.cache_tag}-{processor.hexdigest()[:8]}"


@functools.cache
def _name() -> str:
    """Return the name of the folder of compiled code, one for each state of the sources.

    numba notices that the file of a kernel has changed, and does not notice a change in another
    file whose functions the kernel calls.
    """
    sources = hashlib.sha256()
    for folder in (
        _REPLAY,
        *sorted(
            below for below in _REPLAY.iterdir() if below.is_dir() and below.name != "__pycache__"
        ),
    ):
        for path in sorted(folder.glob("*.py")):
            sources.update(path.read_bytes())
    return f"async_loader-{sources.hexdigest()[:16]}"


def built_folder() -> str | None:
    """Return the folder that the build of the package fills with compiled code; ``None`` if the
    build did not. It may be read-only.
    """
    folder = _REPLAY / "__pycache__" / _name()
    return str(folder) if folder.is_dir() else None


@functools.cache
def kernel_folder() -> str | None:
    """Return the folder that compiled code is written to; `built_folder`, if no folder can be
    written; ``None``, with a warning, if neither is there.
    """
    wanted = os.environ.get("NUMBA_CACHE_DIR")
    failures = []
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    for parent in (wanted,) if wanted else (_REPLAY / "__pycache__", cache):
        try:
            return str(_prepared(Path(parent).expanduser(), _name()))
        except (OSError, RuntimeError) as error:  # read-only, full; no home
            failures.append(f"{parent}: {error}")
    if (built := built_folder()) is not None:
        return built
    from async_loader.replay.base.kernel_cache import warn_once

    warn_once(f"no folder for compiled kernels can be written ({'; '.join(failures)})")
    return None


def _prepared(parent: Path, name: str) -> Path:
    """Make ``parent / name``, check that it can be written, and that kernels fit on the disk.

    Raises
    ------
    OSError
        It cannot be made or written, or the disk is full.
    """
    folder = parent / name
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _prune(parent)
    os.utime(folder)
    with tempfile.TemporaryFile(dir=folder) as probe:
        if next(folder.glob("*.nbi"), None) is None:
            probe.write(bytes(_ALL_KERNELS))
            probe.flush()
    return folder


def _prune(folder: Path) -> None:
    """Remove the folders of earlier sources, except for the newest few, which other processes may
    use.
    """
    found = sorted(folder.glob("async_loader-*"), key=lambda path: path.stat().st_mtime)
    for old in found[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
