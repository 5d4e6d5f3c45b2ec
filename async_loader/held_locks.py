"""Locks that are not taken twice: a call out of a signal handler fails where it would never end.

# NOTE [calls of handlers]
Python runs a signal's handler in the main thread, on top of the call that it interrupts. If that
call holds a lock, and the handler makes a call that takes it too, a plain lock would never be free:
its holder goes on when the handler has returned. A reentrant lock alone would let the handler into
state that is changed half. So these locks know their holder, and `unheld`, which is asked before
one is taken, raises WouldDeadlock in its thread. The same is true of waits for other threads, which
may need a lock that this thread holds: `check_wait`.
``with unheld(lock):`` and not a context manager in Python: Ctrl-C between two lines of one would
leave the lock taken.

# NOTE [locks within locks]
A lock that another thread takes while it holds one is taken with signals deferred: ``with
SignalsDeferred(), lock:``. Otherwise a handler could interrupt its holder and wait for the other
lock, whose holder waits for this one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from async_loader.errors import WouldDeadlock

HeldLock: TypeAlias = threading.RLock
"""A lock made by `held_lock`; to be taken by ``with unheld(lock):``."""

_locks: set[weakref.ref[Any]] = set()
"""The locks that a thread does not hold while it waits."""
_is_owned: Any = type(threading.RLock())._is_owned  # type: ignore[attr-defined]
_referent: Any = weakref.ref.__call__
_REMEDY = (
    "nothing was done: let the handler raise an exception or set a flag, and make the call after it"
)


def held_lock(lock: HeldLock | None = None, *, while_waiting: bool = False) -> HeldLock:
    """Return a new lock, which may be given.

    ``while_waiting``: its holder may wait for other threads.
    """
    lock = threading.RLock() if lock is None else lock
    if not while_waiting:
        # built-in: Ctrl-C in a function in Python would be lost
        _locks.add(weakref.ref(lock, _locks.discard))
    return lock


def unheld(lock: HeldLock) -> HeldLock:
    """Return the lock, to be taken.

    Raises
    ------
    WouldDeadlock
        The calling thread holds it, in a call that the present one has interrupted.
    """
    if lock._is_owned():  # type: ignore[attr-defined]
        raise held_error()
    return lock


def held_error() -> WouldDeadlock:
    """Return what `unheld` raises, for calls that cannot pay 0.1 us: these ask `is_held_of`."""
    return WouldDeadlock(
        "this call came from a signal handler (or a finalizer) that interrupted another call "
        f"of the same object, which cannot go on before this one has ended; {_REMEDY}"
    )


def is_held_of(lock: HeldLock) -> Callable[[], bool]:
    """Return a built-in function that returns whether the calling thread holds the lock."""
    is_held: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]
    return is_held


def check_wait() -> None:
    """Raise WouldDeadlock in the main thread if it holds a lock, which others may need.

    Before every wait for another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    # as one expression of built-in functions: there may be thousands
    if any(map(_is_owned, filter(None, map(_referent, list(_locks))))):
        raise WouldDeadlock(
            "this call waits for other threads, and came from a signal handler (or a finalizer) "
            f"that interrupted a call which they may have to wait for; {_REMEDY}"
        )
