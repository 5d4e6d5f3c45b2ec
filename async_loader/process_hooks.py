"""Everything that runs and has to end with the process, and what a fork does to it. Starts nothing itself.

# NOTE [exit]
multiprocessing ends its daemonic children when a process exits, be it the main one (by atexit) or a `Process` (which runs no
atexit at all). Workers are such children, and their crew would take that for deaths and start others. So loaders are closed
by a finalizer of multiprocessing, which runs before it looks for children, in both.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from multiprocessing import util  # registers its own exit function, before ours
from typing import Any, Protocol

forking = threading.local()
"""``forking.worker`` is true in a thread while it forks one of our own workers, which reads no batches."""

_FIRST = 1000
"""Before other finalizers of multiprocessing, which close queues that jobs may use."""

_EXIT_TIMEOUT_S = 3.0  # at the interpreter's exit, also after Ctrl-C: nobody wants to wait for a source that blocks


class ProcessResource(Protocol):
    """Threads, processes and slots that belong together."""

    def close(self, timeout_s: float) -> Any:
        """End everything within ``timeout_s``."""

    def retire_leased(self) -> None:
        """Before and after a fork: never write again where the child may still read."""

    def after_fork_in_child(self) -> None:
        """In the child: close what would keep the parent's ends open, and do nothing else ever."""


_live: weakref.WeakSet[ProcessResource] = weakref.WeakSet()
_at_exit: list[Any] = []


def add(living: ProcessResource) -> None:
    """From here on it is closed at exit, and told of forks. Held weakly."""
    _live.add(living)
    if not _at_exit or not _at_exit[0].still_active():  # a forked Process begins with none
        _at_exit[:] = [util.Finalize(None, _close_all, exitpriority=_FIRST)]


def _close_all() -> None:
    for living in list(_live):
        living.close(_EXIT_TIMEOUT_S)


def _around_fork_in_parent() -> None:
    """Before, so that nobody gets the slots while the child is made; after, for what was lent in between."""
    if not getattr(forking, "worker", False):
        for living in list(_live):
            living.retire_leased()


def _after_fork_in_child() -> None:
    for living in list(_live):
        with contextlib.suppress(Exception):
            living.after_fork_in_child()


atexit.register(_close_all)
os.register_at_fork(before=_around_fork_in_parent, after_in_parent=_around_fork_in_parent, after_in_child=_after_fork_in_child)
