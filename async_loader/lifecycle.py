"""Starting, waiting and ending: Deadline, EndFlag, EventFd, Patience.

Waits here are on file descriptors and have an end; there is no polling and no sleeping.
"""

from __future__ import annotations

import contextlib
import math
import numbers
import os
import select
import socket
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final, Self

from async_loader.errors import AsyncLoaderError, Closed, ConfigError, Timeout
from async_loader.process_hooks import SignalsDeferred

LONGEST_S: Final = 1e6
"""The longest finite limit, 11 days: poll and join accept no more than some millions of seconds."""

GAVE_UP: Final = "the deadline passed while waiting for "
"""How a `Timeout` of a `Patience` begins; what the wait was for follows."""


def seconds(name: str, value: object) -> float:
    """Check a timeout: 0 tries once, ``math.inf`` never times out.

    Every public call with a timeout checks it here first.

    Raises
    ------
    ConfigError
        For NaN, for a negative number, and for anything but a real number.
    """
    if type(value) is float and value >= 0.0:
        return value
    number: Any = value
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and number >= 0:
        return math.inf if number > LONGEST_S else float(number)  # no float has hundreds of digits
    raise ConfigError(
        f"{name}={value!r}: give seconds, 0 (try once) or more; math.inf waits for ever"
    )


def seconds_or_none(name: str, value: object) -> float | None:
    """Like `seconds`; ``None`` stays ``None``, whose meaning the caller documents."""
    return None if value is None else seconds(name, value)


class Deadline:
    """A moment on the monotonic clock after which a wait gives up.

    Parameters
    ----------
    timeout_s : float | None
        Seconds from now, checked by `seconds`; ``None``, ``math.inf`` and more than `LONGEST_S`
        mean no deadline.
    clock : callable
        Returns seconds; passed in so that tests need not wait.
    """

    __slots__ = ("_at", "_clock")

    def __init__(
        self, timeout_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        limit = None if timeout_s is None else seconds("timeout_s", timeout_s)
        self._at = None if limit is None or limit > LONGEST_S else clock() + limit

    def left(self) -> float | None:
        """Return the seconds until the deadline, never below zero; ``None`` without a deadline."""
        return None if self._at is None else max(0.0, self._at - self._clock())

    def left_or_inf(self) -> float:
        """As `left`, for a call that takes ``None`` for a default of its own."""
        left = self.left()
        return math.inf if left is None else left

    @property
    def expired(self) -> bool:
        return self._at is not None and self._clock() >= self._at


def readable(fds: Iterable[int], left_s: float | None) -> set[int]:
    """Wait until a descriptor is readable or hung up and return all such; empty on timeout."""
    if not hasattr(select, "poll"):  # Windows
        return set(select.select(list(fds), [], [], left_s)[0])
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    timeout_ms = None if left_s is None else max(0, int(left_s * 1000 + 0.999))
    return {fd for fd, _ in poll.poll(timeout_ms)}


class EventFd:
    """A descriptor that is readable once rung.

    Clear it under the lock that guards the state, check, then wait: no wake-up is lost.
    """

    def __init__(self) -> None:
        self._pair: tuple[socket.socket, ...] = ()  # not on Linux
        with SignalsDeferred():  # an interrupted call would leave a descriptor that no object owns
            if hasattr(os, "eventfd"):
                self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                return
            self._pair = socket.socketpair()
        for end in self._pair:
            end.setblocking(False)
        self._fd = self._pair[0].fileno()

    def fileno(self) -> int:
        return self._fd

    def ring(self) -> None:
        """Make it readable; nothing if it is closed, or is being closed by another thread."""
        fd = self._fd
        if fd >= 0:
            with contextlib.suppress(OSError):
                if self._pair:
                    self._pair[1].send(b"1")
                else:
                    os.eventfd_write(fd, 1)

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            if self._pair:
                self._pair[0].recv(1 << 16)
            else:
                os.eventfd_read(self._fd)

    def close(self) -> None:
        """Close the descriptor. No thread may wait on it any more."""
        # first: an interrupt between here and the end cannot make a number be closed twice
        fd, self._fd = self._fd, -1
        for end in self._pair:
            end.close()
        if fd >= 0 and not self._pair:
            os.close(fd)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing() and hasattr(self, "_fd"):
            self.close()


class EndFlag(EventFd):
    """Raised once, never lowered, and visible to every thread and process that polls it.

    The descriptor is written and never read, so it stays readable for all waiters. It is no end of
    a pipe, which a process forked by other code could hold open.
    """

    def __init__(self) -> None:
        super().__init__()
        self._raised = False
        self._wake: list[Callable[[], None]] = []

    def on_set(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` when the flag is raised, for waits that use no descriptor.

        It may run in a finalizer.
        """
        self._wake.append(wake)

    def set(self) -> None:
        """Raise the flag.

        Every call repeats all steps: Ctrl-C may have interrupted an earlier one half-way.
        """
        self._raised = True
        for wake in self._wake:
            wake()
        if self._fd >= 0:
            self.ring()

    def is_set(self) -> bool:
        return self._raised


class AutoResetEvent:
    """An event that is set and awaited without a system call. Any thread may set it, any number of
    times; one waiter resets it.

    Check, then pass, then check again: it stays open until a thread passes, so no wake-up is lost.
    Unlike a Condition, which is left with its lock unlocked if Ctrl-C arrives in the middle of
    ``wait``, it holds no lock while it waits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        with contextlib.suppress(RuntimeError):  # opened by another thread in this moment
            if self._lock.locked():
                self._lock.release()

    def pass_through(self, left_s: float | None = None) -> None:
        """Wait until the event is open or the time is over, and close it."""
        self._lock.acquire(timeout=-1 if left_s is None else min(left_s, threading.TIMEOUT_MAX))


class ClosedAtExit:
    """What closes itself at the end of a ``with`` block."""

    @abstractmethod
    def close(self) -> Any:
        """End."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self.close()
        except AsyncLoaderError:
            if not any(raised):  # else it would hide why
                raise


class WaitClosed(Closed):
    """The loader ended while a source waited: of no task, as an error of the user's code is."""


class WaitTimeout(Timeout):
    """The deadline of a `Patience` passed: of no task either."""


class Patience:
    """Limits on a source's waits inside ``plan``: a deadline and an end flag.

    Parameters
    ----------
    end : EndFlag | None
    deadline : Deadline | None
    on_wait : callable | None
        Called before each wait, so that other parts can check whether it can ever end.

    Attributes
    ----------
    waiting : bool
        A wait is in progress: set before ``on_wait`` is called, reset before the source checks
        again.
    waited_s : float
        Time in all waits so far.
    reason : str
        What the wait that is in progress, or the last one, is for.
    """

    def __init__(
        self,
        end: EndFlag | None = None,
        deadline: Deadline | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        self.end = end
        self.deadline = deadline or Deadline(None)
        self.waiting = False
        self.waited_s = 0.0
        self.reason = ""
        self._on_wait = on_wait

    def wait(self, bell: EventFd, reason: str = "data") -> None:
        """Wait until the event descriptor is rung.

        Raises
        ------
        Closed
            The end flag was raised.
        Timeout
            The deadline passed; the message carries ``reason``.
        """
        fds = [bell.fileno()] if self.end is None else [bell.fileno(), self.end.fileno()]
        self.waiting, self.reason = True, reason
        begun = time.perf_counter()
        try:
            if self._on_wait is not None:
                self._on_wait()
            ready = readable(fds, self.deadline.left())
        finally:
            self.waiting = False
            self.waited_s += time.perf_counter() - begun
        if self.end is not None and self.end.is_set():
            raise WaitClosed(f"closed while waiting for {reason}")
        if not ready:
            raise WaitTimeout(f"{GAVE_UP}{reason}")


def join(thread: threading.Thread, timeout_s: float | None) -> bool:
    """Wait until the thread has ended and return True if it has. Never waits for an unstarted
    thread or the caller's own.
    """
    if thread.ident is None or thread is threading.current_thread():
        return True
    thread.join(None if timeout_s is None else min(timeout_s, LONGEST_S))
    return not thread.is_alive()
