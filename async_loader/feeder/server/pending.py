"""Requests that are answered later, when there is news: OPEN_READER and LATEST."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from async_loader.errors import Malformed
from async_loader.feeder.server.dispatch import Dispatcher
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.wire import Error, ErrorCode, Message, Plane

_MOST = 1 << 16


@dataclass(slots=True, eq=False)
class PendingReply:
    """A request of the control plane that was not answered yet.

    Attributes
    ----------
    what : hashable
        News of this may bring the answer.
    message : Message
        The request.
    answer : callable
        Takes whether the time is over; returns the answer, or ``None``: not yet.
    until : float | None
        When its time is over, on the server's clock, if ever.
    """

    session: Session
    what: Hashable
    message: Message
    answer: Callable[[bool], Message | None]
    until: float | None


class PendingReplies:
    """Requests that are tried again when there is news, and when their time is over; else O(1)."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._waits: dict[Hashable, PendingReply] = {}
        self._news: set[Hashable] = set()
        self.due: float | None = None
        """No request's time is over before."""

    def __iter__(self) -> Iterator[PendingReply]:
        return iter(list(self._waits.values()))

    def add(self, key: Hashable, wait: PendingReply) -> None:
        """Add a request; it replaces one of the same ``key``. Raises Malformed, LIMIT."""
        if len(self._waits) >= _MOST:
            raise Malformed(
                f"{_MOST} requests wait here, which is the limit: ask later", ErrorCode.LIMIT
            )
        self._waits[key] = wait
        self._news.add(wait.what)
        if wait.until is not None:
            self.due = wait.until if self.due is None else min(self.due, wait.until)

    def drop(self, key: Hashable) -> None:
        """Forget a request, if there is one."""
        self._waits.pop(key, None)

    def news(self, what: Hashable) -> None:
        """Note that ``what`` has changed."""
        if self._waits:
            self._news.add(what)

    def forget(self, session: Session) -> None:
        """Forget the requests of a session that ended."""
        for key, one in list(self._waits.items()):
            if one.session is session:
                del self._waits[key]

    def send(self, now: float, end: bool = False) -> None:
        """Send the answers that are due; at the ``end`` all, as if their time were over."""
        due = end or (self.due is not None and now >= self.due)
        if not due and not self._news:
            return
        news, self._news = self._news, set()
        for key, one in list(self._waits.items()):
            over = end or (one.until is not None and one.until <= now)
            answer = self._answer(one, over) if over or one.what in news else None
            if answer is not None:
                del self._waits[key]
                self._dispatcher.answer(one.session, Plane.CONTROL, answer)
        moments = (one.until for one in self._waits.values() if one.until is not None)
        self.due = min(moments, default=None)

    def _answer(self, wait: PendingReply, over: bool) -> Message | None:
        """Return a late answer, or ``None``: not yet; an ERROR if it raises."""
        try:
            return wait.answer(over)
        except Exception as error:
            refusal = self._dispatcher.refusal(wait.message.type.name, error)
            return wait.message.reply(Error.of_malformed(refusal))
