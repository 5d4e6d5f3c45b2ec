"""The cuda queue: batches on the device, in order, between the streamer and the consumer.

Touches no device.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from async_loader.errors import Broken, Closed, Timeout
from async_loader.lifecycle import AutoResetEvent, Deadline
from async_loader.pipeline.batch import Failure
from async_loader.pipeline.train_queue import Progress
from async_loader.source import END


class CudaQueue(Progress):
    """In-process; the streamer puts and never waits (the credits bound what is under way), the
    consumer gets.

    It answers, first match: Closed, Broken, the urgent items, the others in their order, END for
    ever.
    """

    def __init__(self) -> None:
        super().__init__()
        # reentrant: a signal handler may close the loader while we hold it
        self._lock = threading.RLock()
        self._changed = AutoResetEvent()
        self._items: deque[Any] = deque()
        self._urgent: deque[Any] = deque()
        self._found: Any = None  # what `drop` lets go of
        self._ended = False
        self._closed = False
        self._broken: Broken | None = None

    def put(self, item: object) -> None:
        """The next in order; END may be put too and stays the answer once reached."""
        with self._lock:
            if item is END:
                self._ended = True
            elif not self._closed:
                self._items.append(item)
        self._changed.open()

    def put_urgent(self, item: object) -> None:
        """Ahead of everything that is queued, in the order of the urgent ones."""
        with self._lock:
            if not self._closed:
                self._urgent.append(item)
        self._changed.open()

    def break_(self, error: Broken) -> None:
        """Nothing more can come: every `get` raises this from here on. The first reason stays."""
        with self._lock:
            self._broken = self._broken or error
        self._changed.open()

    def close(self) -> None:
        """Drop what is queued, with its device memory; `get` raises Closed from here on."""
        with self._lock:
            self._closed = True
            dropped = (self._items, self._urgent, self._found)
            self._items, self._urgent, self._found = deque(), deque(), None
        self._changed.open()
        del dropped  # outside the lock: this may run finalizers

    def front(self) -> Any:
        """Return the next batch if it is there and nothing else is to be looked at, else ``None``:
        `wait` says more.

        It stays in the queue until `drop`; see NOTE [taken once] in train_queue.py.
        """
        with self._lock:
            if (
                self._urgent
                or self._closed
                or self._broken
                or not self._items
                or isinstance(self._items[0], Failure)
            ):
                return None
            self._found = self._items[0]
            return self._found

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, and nothing else is to be looked at."""
        return not (
            self._items or self._urgent or self._ended or self._closed or self._broken is not None
        )

    def drop(self) -> None:
        """Let go of what `front` or `wait` found last.

        Safe to repeat: a call that was interrupted is made again.
        """
        found = self._found
        if found is not None:
            for items in (self._urgent, self._items):
                if items and items[0] is found:
                    items.popleft()
            self._pass(getattr(found, "seq", -1))
            self._found = None

    def wait(self, deadline: Deadline) -> Any:
        """Return the next item, or END, which stays the answer once reached. It stays in the queue
        until `drop`.

        Raises
        ------
        Timeout
            Nothing came before the deadline; the next call waits for the same batch.
        Closed
            The queue was closed.
        Broken
            The streamer cannot go on.
        """
        return self._wait(deadline, take=False)

    def get(self, deadline: Deadline) -> Any:
        """As `wait`, and takes what it returns out of the queue.

        For threads in which no signal is handled; any number.
        """
        return self._wait(deadline, take=True)

    def _wait(self, deadline: Deadline, *, take: bool) -> Any:
        while True:
            with self._lock:
                found = self._look()
                if take:
                    self.drop()
                more = bool(self._items or self._urgent or self._ended)
            if self._closed or self._broken is not None or (found is not None and more and take):
                self._changed.open()  # for other threads that wait
            self.check()
            if found is not None:
                return found
            left = deadline.left()
            if left == 0.0:
                raise Timeout("no batch reached the device within the deadline")
            self._changed.pass_through(left)

    def _look(self) -> Any:
        for items in (self._urgent, self._items):
            if items:
                self._found = items[0]
                return self._found
        self._found = None
        return END if self._ended else None

    def check(self) -> None:
        """Raise Closed or Broken if nothing more can come."""
        if self._closed:
            raise Closed("the cuda queue is closed")
        if self._broken is not None:
            # A new one each time: raising the same object again would grow its traceback.
            raise Broken(*self._broken.args) from self._broken.__cause__

    @property
    def depth(self) -> int:
        """Batches and failures that wait for the consumer."""
        return len(self._items) + len(self._urgent)
