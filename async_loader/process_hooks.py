"""Process exit, fork and signals: registered loaders are closed at exit and adjusted around a fork,
and signals whose handlers raise, above all Ctrl-C, are held back around code that an exception
would leave half done.

# NOTE [Ctrl-C]
Python runs signal handlers in the main thread, between two bytecodes, whichever thread the kernel
gave the signal to. A signal mask of one thread therefore defers nothing in a process that has two.
A critical section replaces the program's handler with a handler of ours: it records the signal, and
the program's own handler runs when the section ends.

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
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from multiprocessing import util
from types import FrameType
from typing import Any, NoReturn, Protocol

# signal.signal() and getsignal() of the standard library look for an enum member first, which costs
# more than the call.
_signal: Any = sys.modules["_signal"]

at_fork: Callable[..., None] = getattr(os, "register_at_fork", lambda **_: None)
"""Windows has no forks."""


def _named(*names: str) -> set[int]:
    return {int(getattr(signal, name)) for name in names if hasattr(signal, name)}


_NUMBERS = _named("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Signals for which programs install handlers that raise."""
_JOBS = _NUMBERS | _named("SIGQUIT", "SIGXCPU", "SIGVTALRM", "SIGPROF")
"""Signals that another process may have sent to all processes of a job."""


_section: SignalsDeferred | None = None
"""The outermost block of the main thread, the only one that runs handlers."""
_main = threading.main_thread().ident
_ident = threading.get_ident


class SignalsDeferred:
    """``with SignalsDeferred():`` no signal handler runs, and so none raises, within the block.

    Nests. For blocks that start or close what an exception would leave behind for ever. In other
    threads than the main one it does nothing.
    """

    __slots__ = ("_handlers", "_noted", "over")

    def __enter__(self) -> None:
        global _section
        if _section is not None or _ident() != _main:
            return
        self._handlers: dict[int, Callable[[int, Any], Any]] = {}
        self._noted: dict[int, None] = {}
        self.over = False
        getsignal = _signal.getsignal
        try:
            for number in _NUMBERS:
                handler = getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    _signal.signal(number, self._note)
        except BaseException:
            self._end()
            raise
        _section = self  # signals are only noted by now

    def __exit__(self, *_: object) -> None:
        global _section
        if _section is self:
            _section = None
            self._end()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.over:  # a handler of ours that could not be removed does no harm
            self._handlers[number](number, frame)
        else:
            self._noted[number] = None

    def _end(self) -> None:
        """Restore the program's handlers and deliver the recorded signals."""
        self.over = True
        for number, handler in self._handlers.items():
            if _signal.getsignal(number) == self._note:
                _signal.signal(number, handler)
        self._tell()

    def _tell(self) -> None:
        """Run the program's handlers for the recorded signals; all of them, even if one raises."""
        if self._noted:
            number, _ = self._noted.popitem()
            try:
                self._handlers[number](number, sys._getframe())
            finally:
                self._tell()


@contextlib.contextmanager
def signals_blocked() -> Iterator[set[int]]:
    """Start a process in this block; it calls `drop_signals` with the set that is yielded.

    In this process `SignalsDeferred` holds them back.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _JOBS)
    try:
        yield _JOBS - before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def drop_signals(blocked: Collection[int]) -> None:
    """Do nothing at signals from now on, in a process that serves another one, and let the blocked
    ones in: the parent ends it, also where a signal went to all processes of a job.
    """
    signal.set_wakeup_fd(-1)
    for number in _JOBS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _do_nothing)
            signal.siginterrupt(number, False)  # calls of the system begin anew by themselves
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)


def _do_nothing(number: int, frame: FrameType | None) -> None: ...


def _forget_signals() -> None:
    """Reset the state: the thread that deferred signals does not exist in the child."""
    global _section, _main
    section, _section, _main = _section, None, threading.main_thread().ident
    if section is not None:
        section.over = True


at_fork(after_in_child=_forget_signals)


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
at_fork(
    before=_around_fork_in_parent,
    after_in_parent=_around_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
