"""Publications of one client under one name go one after the other.

A feeder puts the parts of a version together by client and name: parts of two publications that are
under way at once would be mixed, or refused.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from async_loader.errors import Timeout
from async_loader.lifecycle import Deadline


class PublishTurns:
    """Whose turn it is to publish, by name. Threads: any."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}

    @contextlib.contextmanager
    def turn(self, name: str, deadline: Deadline) -> Iterator[None]:
        """Publish within this block.

        Not in a forked process: the thread whose turn it is may not exist there.

        Raises
        ------
        Timeout
            The turn of another thread takes longer than the deadline.
        """
        lock, left = self._locks.setdefault(name, threading.Lock()), deadline.left_or_inf()
        if not lock.acquire(timeout=min(left, threading.TIMEOUT_MAX)):
            raise Timeout(
                f"weights {name!r} are still being published by another thread: the call may be "
                "made again"
            )
        try:
            yield
        finally:
            lock.release()
