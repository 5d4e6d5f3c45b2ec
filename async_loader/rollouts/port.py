"""How handles ask a table: in this process, under a lock. A feeder's client has another port."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from async_loader.errors import Closed, Timeout
from async_loader.lifecycle import AutoResetEvent, Deadline
from async_loader.name_hints import stacklevel
from async_loader.replay.table.waiters import WARN_AFTER_S
from async_loader.rollouts.batches import Pieces, joined
from async_loader.rollouts.requests import Answer, Arrays, Request, Requests

_NONE: Mapping[str, Any] = {}


class Port(Protocol):
    """Asks a table, wherever it is. Threads: any."""

    keeps: bool
    """Whether the table keeps the arrays that it is given."""
    most_bytes: int
    """Of one call."""
    timeout_s: float | None
    """Of a call that does not wait for the table."""

    def ask(
        self,
        name: str,
        arguments: Mapping[str, Any] = _NONE,
        arrays: Arrays | Pieces = _NONE,
        *,
        wait_s: float | None = None,
        wake: Callable[[], object] | None = None,
        hold_s: float = 0.0,
    ) -> Any:
        """Begin a call; `answer` or `cancel` has to follow.

        ``wake``: called when it is over. ``hold_s``: how long it may wait for an `extend`, unless
        another call follows.
        """

    def extend(self, pending: Any, arguments: Mapping[str, Any], pieces: Pieces) -> bool:
        """Have a `put` that was not sent yet commit another group; return whether it does."""

    def answer(self, pending: Any, timeout_s: float | None = None) -> Answer:
        """Wait for an answer. Raises Timeout, and what the call raises."""

    def tell(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Make a call whose answer is of no interest. Does not wait."""

    def drop(self, name: str, arguments: Mapping[str, Any]) -> None:
        """As `tell`, in a finalizer, which may run while this thread holds a lock: if one is held,
        the next call makes it.
        """

    def cancel(self, pending: Any) -> None:
        """Forget a call."""

    def why(self, pending: Any) -> str:
        """Return what a call waits for."""

    def explain(self, pending: Any) -> str:
        """As `why`, where it may take a moment."""

    def due_s(self) -> float:
        """Return the seconds after which `look` is to be called, if nothing is heard before."""

    def look(self) -> None:
        """Have deadlines noticed that have passed."""


class LocalPending:
    """A request of a table of this process."""

    def __init__(self, wake: Callable[[], object] | None) -> None:
        self.event = AutoResetEvent()
        self.wake = self.event.open if wake is None else wake
        self.request: Request | None = None

    @property
    def over(self) -> bool:
        return self.request is not None and self.request.over

    def done(self, request: Request) -> None:
        """Under the lock."""
        if request.answer is not None and isinstance(pieces := request.answer[1], Pieces):
            request.answer = request.answer[0], joined(pieces)[0]
        self.wake()

    def take(self) -> Answer:
        """Return the answer, or raise the error. It is `over`."""
        assert self.request is not None
        if self.request.error is not None:
            raise self.request.error
        assert self.request.answer is not None
        return self.request.answer


class LocalPort:
    """Drives a table under a lock, which is held for one call at a time."""

    keeps = True
    most_bytes = 1 << 62
    timeout_s: float | None = None

    def __init__(self, calls: Requests) -> None:
        self.calls, self.closed = calls, False
        self._lock = threading.Lock()
        self._waits: dict[LocalPending, Callable[[], object]] = {}
        self._due = math.inf
        self._dropped: deque[tuple[str, Mapping[str, Any]]] = deque()

    def ask(
        self,
        name: str,
        arguments: Mapping[str, Any] = _NONE,
        arrays: Arrays | Pieces = _NONE,
        *,
        wait_s: float | None = None,
        wake: Callable[[], object] | None = None,
        hold_s: float = 0.0,
    ) -> LocalPending:
        """See `Port`."""
        pending = LocalPending(wake)
        if isinstance(arrays, Pieces):
            arrays = joined(arrays)[0]
        with self._lock:
            if self.closed:
                raise Closed("this table of rollouts is closed")
            pending.request = self.calls.ask("local", name, arguments, arrays, wait_s, pending.done)
            if not pending.over:
                self._waits[pending] = pending.wake
            self._notify()
        while self._dropped:  # by this thread, or by another while this one had the lock
            self.tell(*self._dropped.popleft())
        return pending

    def extend(self, pending: Any, arguments: Mapping[str, Any], pieces: Pieces) -> bool:
        """See `Port`: it is sent."""
        return False

    def call(self, change: Callable[[Requests], Any]) -> Any:
        """Return what a function of the table returns, under the lock."""
        with self._lock:
            found = change(self.calls)
            self.calls.advance()
            self._notify()
        return found

    def answer(self, pending: LocalPending, timeout_s: float | None = None) -> Answer:
        """See `Port`."""
        deadline, since, warned = Deadline(timeout_s), time.monotonic(), False
        try:
            while not pending.over:
                if deadline.expired:
                    raise Timeout(
                        f"{timeout_s:g} s have passed while waiting for {self.why(pending)}"
                    )
                patience = math.inf
                if timeout_s is None and not warned:
                    patience = since + WARN_AFTER_S - time.monotonic()
                    if patience <= 0:
                        warned, patience = True, math.inf
                        text = f"waiting for {WARN_AFTER_S:g} s for {self.why(pending)}"
                        warnings.warn(text, RuntimeWarning, stacklevel=stacklevel())
                left = min(deadline.left_or_inf(), self.due_s(), patience)
                pending.event.pass_through(None if left == math.inf else left)
                self.look()
        finally:
            self.cancel(pending)
        return pending.take()

    def cancel(self, pending: LocalPending) -> None:
        """See `Port`."""
        with self._lock:
            self._waits.pop(pending, None)
            if pending.request is not None:
                self.calls.cancel(pending.request)

    def tell(self, name: str, arguments: Mapping[str, Any]) -> None:
        """See `Port`."""
        self.cancel(self.ask(name, arguments))

    def drop(self, name: str, arguments: Mapping[str, Any]) -> None:
        """See `Port`."""
        if self._lock.locked():
            self._dropped.append((name, arguments))
        else:
            self.tell(name, arguments)

    def why(self, pending: LocalPending) -> str:
        """See `Port`."""
        with self._lock:
            return "" if pending.request is None or pending.over else pending.request.why()

    explain = why

    def due_s(self) -> float:
        """See `Port`."""
        return max(0.0, self._due - self.calls.clock())

    def look(self) -> None:
        """See `Port`."""
        if self.closed or self._due > self.calls.clock():
            return
        with self._lock:
            self.calls.advance()
            self._notify()

    def close(self) -> None:
        """End all waits."""
        with self._lock:
            self.closed = True
            for request in list(self.calls.requests):
                request.error = Closed("this table of rollouts was closed")
                self.calls.cancel(request)
                request.done(request)

    def _notify(self) -> None:
        """Wake those whose wait is longer now than the next deadline."""
        due = self.calls.due()
        before, self._due = self._due, math.inf if due is None else due
        if self._due < before:
            for pending, wake in list(self._waits.items()):
                if pending.over:
                    del self._waits[pending]
                else:
                    wake()
