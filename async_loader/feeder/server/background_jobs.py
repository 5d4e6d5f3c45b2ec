"""Saves and loads of tables, one at a time, on a thread beside the loop.

# NOTE [slow work]
A save writes gigabytes. The loop hands it to the thread, serves all clients meanwhile, and is woken
when it is done. A table that is being loaded rests until then: INSERTs for it are refused for now
and sent again, other messages are kept.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from async_loader.errors import Malformed
from async_loader.feeder.wire import ErrorCode
from async_loader.lifecycle import AutoResetEvent, join

MOST = 16
"""Jobs that wait or run, at most."""


@dataclass(slots=True, eq=False)
class BackgroundJob:
    """Work, and its result.

    Attributes
    ----------
    work : callable
        Called on the thread.
    done : callable
        Called by `BackgroundJobs.finish`, in the loop, with the result or the exception.
    """

    work: Callable[[], Any]
    done: Callable[[Any], None]
    result: Any = None


class BackgroundJobs:
    """The thread, which is started with the first job.

    Parameters
    ----------
    ring : callable
        Called on the thread after each job.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._waiting: deque[BackgroundJob] = deque()
        self._over: deque[BackgroundJob] = deque()
        self._count = 0
        self._gate = AutoResetEvent()
        self._end = False
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is not finished."""
        return self._count > 0

    def add(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Queue a job. Raises Malformed, LIMIT."""
        if self._count >= MOST:
            text = f"{MOST} saves and loads wait here, which is the limit: ask later"
            raise Malformed(text, ErrorCode.LIMIT)
        self._count += 1
        self._waiting.append(BackgroundJob(work, done))
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="async-loader-background-jobs", daemon=True
            )
            self._thread.start()
        self._gate.open()

    def finish(self) -> None:
        """Call ``done`` of the jobs that have ended. In the loop; cheap while there are none."""
        while self._over:
            job = self._over.popleft()
            self._count -= 1
            job.done(job.result)

    def _run(self) -> None:
        while True:
            self._gate.pass_through()
            while self._waiting:
                if self._end:
                    return
                job = self._waiting.popleft()
                try:
                    job.result = job.work()
                except BaseException as error:  # sent to the client that asked
                    job.result = error
                self._over.append(job)
                self._ring()
            if self._end:
                return

    def close(self, timeout_s: float) -> bool:
        """Begin no other job; return whether the running one ended in time. May be called again."""
        self._end = True
        self._gate.open()
        return self._thread is None or join(self._thread, timeout_s)
