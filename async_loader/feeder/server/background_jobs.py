"""Saves and loads of tables, one at a time, on a thread beside the loop; and its calls of the loop.

See NOTE [slow work] in dispatch.py.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from async_loader.errors import Closed, Timeout
from async_loader.lifecycle import join

T = TypeVar("T")


class BackgroundJobs:
    """A thread for each job, the first of which runs; and calls of other threads, which the loop
    makes when it comes round.

    Parameters
    ----------
    ring : callable
        Wakes the loop.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether a job is not finished."""
        return bool(self._jobs)

    def add(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Queue a job: ``work`` is called on a thread, ``done`` in the loop with what it returned
        or raised.
        """
        self._jobs.append((work, done))
        if len(self._jobs) == 1:
            self._start()

    def _start(self) -> None:
        work, done = self._jobs[0]

        def run() -> None:
            result: Any
            try:
                result = work()
            except BaseException as error:  # sent to the client that asked
                result = error
            self._post(lambda: self._over(done, result))

        self._thread = threading.Thread(
            target=run, name="async-loader-background-jobs", daemon=True
        )
        self._thread.start()

    def _over(self, done: Callable[[Any], None], result: Any) -> None:
        self._jobs.popleft()
        if self._jobs and not self._closed:
            self._start()
        done(result)

    def _post(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._ring()

    def finish(self) -> None:
        """Make the calls that wait, of jobs that have ended too. In the loop; cheap."""
        while self._calls:
            self._calls.popleft()()

    def ask(self, call: Callable[[], T], timeout_s: float) -> T:
        """Return what ``call`` returns in the loop. Any thread but the loop's.

        Raises
        ------
        Closed
            The server has ended.
        Timeout
            The loop did not come round: it is busy, or was not started.
        """
        asked: Future[T] = Future()

        def answer() -> None:
            if asked.set_running_or_notify_cancel():  # else its thread has given up
                try:
                    asked.set_result(call())
                except Exception as error:  # for the thread that asked: the loop goes on
                    asked.set_exception(error)

        if self._closed:
            raise Closed("the server has ended")
        self._post(answer)
        try:
            return asked.result(timeout_s)
        except TimeoutError:
            asked.cancel()
            raise Timeout(f"the server's loop did not answer within {timeout_s:g} s") from None

    def close(self, timeout_s: float) -> bool:
        """Begin no other job; return whether the running one ended in time. May be called again."""
        self._closed = True
        return self._thread is None or join(self._thread, timeout_s)
