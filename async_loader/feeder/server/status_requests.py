"""The status of a server for other threads, made by its loop: all of one moment, without a lock."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from async_loader.errors import Closed, Timeout


class StatusRequests:
    """Requests of other threads, which the loop answers when it comes round.

    Parameters
    ----------
    ring : callable
        Wakes the loop.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._waiting: deque[Future[dict[str, Any]]] = deque()
        self._closed = False

    def ask(self, timeout_s: float) -> dict[str, Any]:
        """Return the status. Any thread but the loop's.

        Raises
        ------
        Closed
            The server has ended.
        Timeout
            The loop did not come round: it is busy, or was not started.
        """
        request: Future[dict[str, Any]] = Future()
        self._waiting.append(request)
        if self._closed:
            self.close()
        self._ring()
        try:
            return request.result(timeout_s)
        except TimeoutError:
            request.cancel()
            raise Timeout(f"the server made no status within {timeout_s:g} s") from None

    def answer(self, status: Callable[[], dict[str, Any]]) -> None:
        """Answer all requests with one status. In the loop; cheap while there are none."""
        if not self._waiting:
            return
        fault: Exception | None = None
        made: dict[str, Any] = {}
        try:
            made = status()
        except Exception as error:  # for the threads that asked: the loop goes on
            fault = error
        while self._waiting:
            with contextlib.suppress(InvalidStateError):  # its thread has given up
                asked = self._waiting.popleft()
                asked.set_result(made) if fault is None else asked.set_exception(fault)

    def close(self) -> None:
        """Refuse all requests, also later ones."""
        self._closed = True
        while self._waiting:
            with contextlib.suppress(InvalidStateError):
                self._waiting.popleft().set_exception(Closed("the server has ended"))
