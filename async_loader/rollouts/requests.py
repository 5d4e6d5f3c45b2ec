"""Requests that wait until they can be done.

# NOTE [one list of waits]
All that waits for a table is a request in one list, with a reason in words and a time that ends it.
A change tries the others again. So there is no polling: the driver of a table calls `advance` after
each change, and at `due` at the latest.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from async_loader.errors import Timeout
from async_loader.rollouts.schema import Array

Found = dict[str, Any]
Answer = tuple[Found, dict[str, Array]]
Arrays = Mapping[str, Array]


@dataclass(slots=True, eq=False)
class Request:
    """One call that is not done yet, or its outcome.

    Attributes
    ----------
    client : hashable
        Whose it is.
    until : float
        When its time is over, on the clock of the table.
    why : str
        What it waits for.
    done : callable
        Called with it when it has an answer or an error.
    """

    client: Hashable
    name: str
    arguments: Mapping[str, Any]
    arrays: Arrays
    since: float
    until: float = math.inf
    why: str = ""
    done: Callable[[Request], object] = id
    answer: Answer | None = None
    error: BaseException | None = None

    @property
    def over(self) -> bool:
        return self.answer is not None or self.error is not None


class Requests:
    """The list. It has no lock, and no clock of its own.

    Attributes
    ----------
    requests : list of Request
        In the order in which they came.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.requests: list[Request] = []

    @property
    @abstractmethod
    def changed(self) -> bool:
        """Whether there was a change that requests may wait for."""

    @changed.setter
    def changed(self, changed: bool) -> None: ...

    @abstractmethod
    def expire(self, now: float) -> None:
        """Do what deadlines that have passed demand."""

    @abstractmethod
    def next_deadline(self) -> float | None:
        """Return when `expire` has something to do."""

    @abstractmethod
    def do(self, request: Request) -> Answer | Found | None:
        """Return the answer of a request; ``None``: not yet. Raises what is wrong with it."""

    def ask(
        self,
        client: Hashable,
        name: str,
        arguments: Mapping[str, Any],
        arrays: Arrays,
        wait_s: float | None = None,
        done: Callable[[Request], object] = id,
    ) -> Request:
        """Do a call now, or when it can be done, until ``wait_s`` have passed."""
        now = self.clock()
        until = math.inf if wait_s is None else now + wait_s
        request = Request(client, name, arguments, arrays, now, until, done=done)
        self.requests.append(request)
        self.advance(request)
        return request

    def advance(self, first: Request | None = None) -> None:
        """Try the requests again: time has passed, or there was a change."""
        now = self.clock()
        self.expire(now)
        if first is not None and not self.changed:
            self._try(first)
        elif first is None:
            self.changed = True
        while self.changed:
            self.changed = False
            for request in list(self.requests):
                self._try(request)
        for request in [one for one in self.requests if one.until <= now]:
            seconds = request.until - request.since
            request.error = Timeout(f"{seconds:g} s have passed while waiting for {request.why}")
            self._over(request)

    def due(self) -> float | None:
        """Return when `advance` has something to do without a change."""
        ends = [one.until for one in self.requests if one.until < math.inf]
        moments = [one for one in (self.next_deadline(), *ends) if one is not None]
        return min(moments, default=None)

    def cancel(self, request: Request) -> None:
        """Forget a request that no thread waits for."""
        if request in self.requests:
            self.requests.remove(request)

    def _try(self, request: Request) -> None:
        if request.over:
            return
        try:
            found = self.do(request)
        except Exception as error:
            request.error = error
        else:
            request.answer = (found, {}) if isinstance(found, dict) else found
        if request.over:
            self._over(request)

    def _over(self, request: Request) -> None:
        self.cancel(request)
        request.done(request)
