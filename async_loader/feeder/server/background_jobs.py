"""Saves and loads of tables, one at a time, on a thread beside the loop; and its calls of the loop.

# NOTE [slow work]
A save writes gigabytes. The loop hands it to a thread, serves all clients meanwhile, and is woken
when it is done. A table that is being loaded rests until then: INSERTs for it are refused for now
and sent again, other messages are kept.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from async_loader.errors import Closed, Malformed, Timeout
from async_loader.feeder.wire import ErrorCode
from async_loader.lifecycle import join

T = TypeVar("T")
MOST = 16
"""Jobs that wait or run, at most."""


class BackgroundJobs:
    """A thread for each job, the first of which runs.

    Parameters
    ----------
    ring : callable
        Wakes the loop. Called on the thread after each job.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._over: Future[Any] | None = None
        self._thread: threading.Thread | None = None
        self._end = False

    @property
    def busy(self) -> bool:
        """Whether a job is not finished."""
        return bool(self._jobs)

    def add(
        self, work: Callable[[], Any], done: Callable[[Any], None], bounded: bool = True
    ) -> None:
        """Queue a job: ``work`` is called on a thread, ``done`` in the loop with what it returned
        or raised.

        Raises Malformed, LIMIT, if it is ``bounded``.
        """
        if bounded and len(self._jobs) >= MOST:
            text = f"{MOST} saves and loads wait here, which is the limit: ask later"
            raise Malformed(text, ErrorCode.LIMIT)
        self._jobs.append((work, done))
        if len(self._jobs) == 1:
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(
            target=self._run, args=self._jobs[0], name="async-loader-background-jobs", daemon=True
        )
        self._thread.start()

    def _run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        over: Future[Any] = Future()
        try:
            over.set_result(work())
        except BaseException as error:  # sent to the client that asked
            over.set_result(error)
        self._over = over
        self._ring()

    def finish(self) -> None:
        """Call ``done`` of a job that has ended, and begin the next. In the loop; cheap."""
        while self._over is not None:
            result, self._over = self._over.result(), None
            assert self._thread is not None
            self._thread.join()  # it has nothing left to do but ring
            _, done = self._jobs.popleft()
            if self._jobs and not self._end:
                self._start()
            done(result)

    def close(self, timeout_s: float) -> bool:
        """Begin no other job; return whether the running one ended in time. May be called again."""
        self._end = True
        return self._thread is None or join(self._thread, timeout_s)


class LoopCalls:
    """Calls of other threads, which the loop makes when it comes round: all of one moment, without
    a lock.

    Parameters
    ----------
    ring : callable
        Wakes the loop.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._closed = False

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
        self._waiting.append((asked, call))
        if self._closed:
            self.close()
        self._ring()
        try:
            return asked.result(timeout_s)
        except TimeoutError:
            asked.cancel()
            raise Timeout(f"the server's loop did not answer within {timeout_s:g} s") from None

    def make(self) -> None:
        """Make the calls that wait. In the loop; cheap."""
        while self._waiting:
            asked, call = self._waiting.popleft()
            if not asked.set_running_or_notify_cancel():  # its thread has given up
                continue
            try:
                asked.set_result(call())
            except Exception as error:  # for the thread that asked: the loop goes on
                asked.set_exception(error)

    def close(self) -> None:
        """Refuse all calls, also later ones."""
        self._closed = True
        while self._waiting:
            asked, _ = self._waiting.popleft()
            if asked.set_running_or_notify_cancel():
                asked.set_exception(Closed("the server has ended"))
