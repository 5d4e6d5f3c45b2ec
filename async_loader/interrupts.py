"""Deferral of signals whose handlers raise, above all Ctrl-C,
around code that an exception would leave half done.

# NOTE [Ctrl-C]
Python runs signal handlers in the main thread, between two bytecodes, whichever thread the kernel
gave the signal to. A signal mask of one thread therefore defers nothing in a process that has two.
A critical section replaces the program's handler with a handler of ours: it records the signal, and
the program's own handler runs when the section ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import Any

# signal.signal() and getsignal() of the standard library look for an enum member first, which costs
# more than the call.
_signal: Any = sys.modules["_signal"]

_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_NUMBERS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
"""Signals for which programs install handlers that raise."""
_JOBS = (*_NUMBERS, signal.SIGQUIT, signal.SIGXCPU, signal.SIGVTALRM, signal.SIGPROF)
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
_OTHERS = signal.valid_signals() - _FAULTS - {signal.SIGKILL, signal.SIGSTOP}
"""Signals that another process may have sent to all processes of a job."""


_handlers: dict[int, Callable[[int, Any], Any]] = {}
"""The program's, in place of which ours is installed, or was."""
_noted: dict[int, None] = {}
_held = False
"""Signals are deferred now, by the main thread: the only one that runs handlers."""
_main = threading.main_thread().ident
_ident = threading.get_ident


def _note(number: int, frame: FrameType | None) -> None:
    if _held:
        _noted[number] = None
    else:  # our handler is not installed in part only, or could not be removed
        _handlers[number](number, frame)


def _tell() -> None:
    """Run the program's handlers for the recorded signals; all of them, even if one raises."""
    if _noted:
        number, _ = _noted.popitem()
        try:
            _handlers[number](number, sys._getframe())
        finally:
            _tell()


class SignalsDeferred:
    """``with SignalsDeferred():`` no signal handler runs, and so none raises, within the block.

    Nests. For blocks that start or close what an exception would leave behind for ever. In other
    threads than the main one it does nothing.
    """

    __slots__ = ("_outermost",)

    def __enter__(self) -> None:
        global _held
        self._outermost = not _held and _ident() == _main
        if self._outermost:
            for number in _NUMBERS:
                handler = _signal.getsignal(number)
                if callable(handler) and handler is not _note:
                    _handlers[number] = handler
                    _signal.signal(number, _note)
            _held = True

    def __exit__(self, *_: object) -> None:
        global _held
        if self._outermost:
            _held = False
            for number, handler in _handlers.items():
                if _signal.getsignal(number) is _note:
                    _signal.signal(number, handler)
            _tell()


@contextlib.contextmanager
def signals_blocked() -> Iterator[set[int]]:
    """Start a process in this block; it calls `drop_signals` with the set that is yielded.

    In this process `SignalsDeferred` holds them back.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OTHERS)
    try:
        yield {int(number) for number in _OTHERS - before}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def drop_signals(blocked: Collection[int]) -> None:
    """Do nothing at signals from now on, in a process that serves another one, and let the blocked
    ones in. See NOTE [signals of a job].
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if number in _JOBS if handler == signal.SIG_DFL else callable(handler):
            signal.signal(number, signal.SIG_DFL if number in _FAULTS else _do_nothing)
            signal.siginterrupt(number, False)  # calls of the system begin anew by themselves
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    os.register_at_fork(after_in_child=_handle_by_default)


def _do_nothing(number: int, frame: FrameType | None) -> None: ...


def _handle_by_default() -> None:
    """In a process that is forked in turn: there signals do what they do to any process."""
    for number in signal.valid_signals():
        if signal.getsignal(number) is _do_nothing:
            of_python = signal.default_int_handler
            signal.signal(number, of_python if number == signal.SIGINT else signal.SIG_DFL)


def _after_fork_in_child() -> None:
    """Reset the state: the thread that deferred signals does not exist in the child."""
    global _held, _main
    _held, _main = False, threading.main_thread().ident
    _noted.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
