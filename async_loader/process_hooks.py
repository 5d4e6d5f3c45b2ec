"""Hooks for process exit and fork:
closes registered loaders at exit and adjusts them around a fork.

# NOTE [exit]
multiprocessing ends its daemonic children when a process exits, be it the main one (by atexit) or a
`Process` (which runs no atexit at all). Workers are such children, and their pool would take that
for deaths and start others. So loaders are closed by a finalizer of multiprocessing, which runs
before it looks for children, in both.
A thread may go on when the main thread has ended. Then `concurrent.futures` can no longer be
imported, which torch does: so it is imported here.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - before the main thread ends: see NOTE [exit]
import contextlib
import logging
import os
import sys
import threading
import weakref
from multiprocessing import util  # registers its own exit function, before ours
from typing import Any, NoReturn, Protocol

forking = threading.local()
"""``forking.worker`` is True in a thread while it forks a worker of this package,
which reads no batches.
"""

_FIRST = 1000
"""Runs before other finalizers of multiprocessing, which close queues that jobs may use."""

AFTER = _FIRST - 1
"""Runs after loaders were closed."""
_EXIT_TIMEOUT_S = 3.0  # at the interpreter's exit, also after Ctrl-C, also if a source blocks


STAGES = tuple(
    f"async-loader-{stage}" for stage in ("producer", "worker-pool", "streamer", "worker-")
)
"""How the names of loaders' threads begin, which never add data to a source. Threads that take in
rows, of other processes or of a feeder, do not count.
"""


class ProcessResource(Protocol):
    """Threads, processes and slots that are closed together."""

    def close(self, timeout_s: float) -> Any:
        """End everything within ``timeout_s``."""

    def retire_leased(self) -> None:
        """Before and after a fork: never write again to slots that the child may still read."""

    def after_fork_in_child(self) -> None:
        """In a forked child: close inherited descriptors. The object is unusable from here on."""


_live: weakref.WeakSet[ProcessResource] = weakref.WeakSet()
_at_exit: list[Any] = []


def add(living: ProcessResource) -> None:
    """Close this object at exit and call it around forks. Held weakly."""
    _live.add(living)
    if not _at_exit or not _at_exit[0].still_active():  # a forked Process begins without finalizers
        _at_exit[:] = [util.Finalize(None, _close_all, exitpriority=_FIRST)]


def end_process(code: int) -> NoReturn:
    """End this process at once; what it holds has been closed.

    The interpreter's own end takes a quarter of a second where kernels are loaded.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a pipe that is not read any more
            stream.flush()
    os._exit(code)


def tell_ready(pipe: int) -> None:
    """Write to the pipe of the process that started this one, which may have ended; close it."""
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, b"\1")
    os.close(pipe)


def _close_all() -> None:
    for living in list(_live):
        living.close(_EXIT_TIMEOUT_S)


def _around_fork_in_parent() -> None:
    """Before the fork, so that no thread gets the slots meanwhile; after it, for slots leased in
    between.
    """
    if not getattr(forking, "worker", False):
        for living in list(_live):
            living.retire_leased()


def _after_fork_in_child() -> None:
    for living in list(_live):
        with contextlib.suppress(Exception):
            living.after_fork_in_child()


atexit.register(_close_all)
os.register_at_fork(
    before=_around_fork_in_parent,
    after_in_parent=_around_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
