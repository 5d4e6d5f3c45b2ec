"""The calls that wait for a table to change, and the reasons."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from async_loader.errors import Timeout, WouldDeadlock
from async_loader.lifecycle import AutoResetEvent, Deadline
from async_loader.name_hints import stacklevel

WARN_AFTER_S = 10.0
_INSTEAD = "The call goes on waiting; with timeout_s= it raises Timeout instead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A call or a writer that waits.

    Attributes
    ----------
    what : str
        "insert" or "sample".
    who : str
        The thread's name.
    reason : str
        In numbers.
    waited_s : float
        For so long already.
    """

    what: str
    who: str
    reason: str
    waited_s: float


class Waiters:
    """Wakes waiting calls whenever the table changes.

    After each change of the table `ring` is called under the table's lock. A call that waits looks
    under the lock, and then waits without it.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        # By the object that waits: what wakes it, to do what, in which thread, why, since when.
        self._waiting: dict[
            object, tuple[Callable[[], None], str, str, Callable[[], str | None], float]
        ] = {}
        self.any_waits = False

    def ring(self) -> None:
        """Wake all waiting calls, after a change."""
        for wake, *_ in self._waiting.values():
            wake()

    @contextlib.contextmanager
    def ringing(
        self, key: object, wake: Callable[[], None], what: str, reason: Callable[[], str | None]
    ) -> Iterator[None]:
        """Call ``wake`` whenever the table changes, and list the call in `now`."""
        thread = threading.current_thread().name
        with self._lock:
            self.ring()  # another call may find that neither can go on
            self._waiting[key] = wake, what, thread, reason, time.monotonic()
            self.any_waits = True
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[key]
                self.any_waits = bool(self._waiting)

    def until(
        self,
        attempt: Callable[[], bool],
        what: str,
        reason: Callable[[], str | None],
        timeout_s: float | None,
    ) -> None:
        """Call ``attempt`` under the lock, again after every change of the table, until it returns
        True.

        Raises
        ------
        WouldDeadlock
            If the calling thread is the only one, so that nothing could end a wait without a bound.
        Timeout
            After ``timeout_s``, also in the only thread: the caller has said how long to wait, and
            a signal handler may end it. With ``None`` a warning after 10 s instead.
        """
        deadline, warned, since = Deadline(timeout_s), False, time.monotonic()
        with self._lock:
            if attempt():
                return
        event = AutoResetEvent()
        with self.ringing(event, event.open, what, reason):
            while True:
                with self._lock:
                    if attempt():
                        return
                    why = reason() or "another change"
                left = deadline.left()
                if left is None and threading.active_count() == 1:
                    raise WouldDeadlock(
                        f"cannot {what}: {why}. No other thread is there to do it, so waiting "
                        "would never end"
                    )
                if deadline.expired:
                    raise Timeout(f"{timeout_s:g} s have passed, and still cannot {what}: {why}")
                # From the first wait on, since tables change all the time.
                patience = max(0.0, since + WARN_AFTER_S - time.monotonic())
                event.pass_through(patience if left is None and not warned else left)
                if left is None and not warned and time.monotonic() - since >= WARN_AFTER_S:
                    warned = True
                    text = f"waiting to {what} for {WARN_AFTER_S:g} s: {why}. {_INSTEAD}"
                    warnings.warn(text, RuntimeWarning, stacklevel=stacklevel())

    def now(self) -> list[Waiting]:
        """List the waiting calls. Called under the lock."""
        now = time.monotonic()
        found = [
            (what, who, reason(), now - since)
            for _, what, who, reason, since in self._waiting.values()
        ]
        return [
            Waiting(what=what, who=who, reason=why, waited_s=since)
            for what, who, why, since in found
            if why is not None
        ]
