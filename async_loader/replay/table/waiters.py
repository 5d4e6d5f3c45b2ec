"""Who waits for a table to change, and for what. Decides nothing about when to go on."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from async_loader.errors import Timeout, WouldDeadlock
from async_loader.lifecycle import AutoResetEvent, Deadline, EventFd
from async_loader.names import stacklevel

WARN_AFTER_S = 10.0
_INSTEAD = "with timeout_s= it raises Timeout instead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One who waits.

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
    """Threads at a gate of their own each, and bells that are rung, whenever the table changes.

    Whoever changes the table calls `ring` under the table's lock; whoever waits looks under the
    lock, and then waits without it.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._gates: list[AutoResetEvent] = []
        self._bells: list[EventFd] = []
        self._waiting: dict[object, tuple[str, str, Callable[[], str | None], float]] = {}
        self.anybody = False
        # called under the lock when somebody begins to wait; may ring
        self.on_wait: Callable[[], None] | None = None

    def ring(self) -> None:
        """Something has changed."""
        for gate in self._gates:
            gate.open()
        for bell in self._bells:
            bell.ring()

    @contextlib.contextmanager
    def ringing(self, bell: EventFd, what: str, reason: Callable[[], str | None]) -> Iterator[None]:
        """Ring the bell whenever the table changes; show up in `now` meanwhile."""
        with self._lock:
            self.listen(bell, what, reason)
            if self.on_wait is not None:
                self.on_wait()
        try:
            yield
        finally:
            with self._lock:
                self.ignore(bell)

    def listen(self, bell: EventFd, what: str, reason: Callable[[], str | None]) -> None:
        """As `ringing`, up to `ignore`, without telling `on_wait`. Called under the lock."""
        self._bells.append(bell)
        self._enter(bell, what, reason)

    def ignore(self, bell: EventFd) -> None:
        """The opposite of `listen`. Called under the lock."""
        self._bells.remove(bell)
        self._leave(bell)

    def others(self, key: object) -> bool:
        """Whether anybody else waits. Called under the lock."""
        return len(self._waiting) > (key in self._waiting)

    def until(
        self,
        attempt: Callable[[], bool],
        what: str,
        reason: Callable[[], str | None],
        timeout_s: float | None,
    ) -> None:
        """Call ``attempt`` under the lock until it says that it is done, after every change of the
        table.

        Raises
        ------
        WouldDeadlock
            If the calling thread is the only one, so that nothing could end the wait.
        Timeout
            After ``timeout_s``; with ``None`` a warning after 10 s instead.
        """
        deadline, warned = Deadline(timeout_s), False
        gate, since = AutoResetEvent(), time.monotonic()
        entered = False
        try:
            while True:
                with self._lock:
                    if attempt():
                        return
                    if not entered:
                        # a call that waits for the opposite may find that neither can go on
                        self.ring()
                        self._gates.append(gate)
                        self._enter(gate, what, reason)
                        entered = True
                        if self.on_wait is not None:
                            self.on_wait()
                    why = reason() or "another change"
                if deadline.left() is None and threading.active_count() == 1:
                    raise WouldDeadlock(
                        f"cannot {what}: {why}. No other thread is there to do it, so waiting "
                        "would never end"
                    )
                if deadline.expired:
                    raise Timeout(f"{timeout_s:g} s have passed, and still cannot {what}: {why}")
                left = deadline.left()
                # from the first wait on: tables change all the time
                patience = max(0.0, since + WARN_AFTER_S - time.monotonic())
                gate.pass_through(patience if left is None and not warned else left)
                if left is None and not warned and time.monotonic() - since >= WARN_AFTER_S:
                    warned = True
                    text = f"waiting to {what} for {WARN_AFTER_S:g} s: {why}. The call goes on waiting; "
                    warnings.warn(text + _INSTEAD, RuntimeWarning, stacklevel=stacklevel())
        finally:
            if entered:
                with self._lock:
                    self._gates.remove(gate)
                    self._leave(gate)

    def anyone(self, what: str) -> bool:
        """Whether a call or a writer waits to ``what``. Called under the lock."""
        return any(
            one == what and reason() is not None
            for one, _, reason, _ in list(self._waiting.values())
        )

    def now(self) -> list[Waiting]:
        """Who waits. Called under the lock."""
        now = time.monotonic()
        found = [
            (what, who, reason(), now - since)
            for what, who, reason, since in self._waiting.values()
        ]
        return [
            Waiting(what=what, who=who, reason=why, waited_s=since)
            for what, who, why, since in found
            if why is not None
        ]

    def _enter(self, key: object, what: str, reason: Callable[[], str | None]) -> None:
        self._waiting[key] = (what, threading.current_thread().name, reason, time.monotonic())
        self.anybody = True

    def _leave(self, key: object) -> None:
        del self._waiting[key]
        self.anybody = bool(self._waiting)
