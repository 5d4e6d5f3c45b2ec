"""Requests that are answered later: OPEN_READER and LATEST with news, CLOSE_WRITER with the last
ACK.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from async_loader.feeder.server.sessions import Session
from async_loader.feeder.wire import Message

Answer = Callable[[bool], Message | None]
"""Returns the answer, or ``None``: not yet. Takes whether the time is over."""


@dataclass(slots=True, eq=False)
class PendingReply:
    """A request that was not answered yet.

    Attributes
    ----------
    what : hashable
        News of this may bring the answer.
    message : Message
        The request.
    until : callable
        Returns when its time is over, on the server's clock, if ever.
    asked : float
        When it came for the first time, of a CLOSE_WRITER.
    """

    session: Session
    what: Hashable
    message: Message
    answer: Answer
    until: Callable[[], float | None]
    asked: float = 0.0


class PendingReplies:
    """Requests that are tried again when there is news, and when their time is over; else O(1)."""

    def __init__(self) -> None:
        self._waits: dict[Hashable, PendingReply] = {}
        self._news: set[Hashable] = set()
        self._due: float | None = None  # no request's time is over before

    def __len__(self) -> int:
        return len(self._waits)

    def __iter__(self) -> Iterator[tuple[Hashable, PendingReply]]:
        return iter(list(self._waits.items()))

    def add(self, key: Hashable, wait: PendingReply) -> None:
        """Add a request; it replaces one of the same ``key``."""
        self._waits[key], until = wait, wait.until()
        if until is not None and (self._due is None or until < self._due):
            self._due = until

    def get(self, key: Hashable) -> PendingReply | None:
        """Return the request of a key."""
        return self._waits.get(key)

    def drop(self, key: Hashable) -> None:
        """Forget a request."""
        self._waits.pop(key, None)

    def news(self, what: Hashable) -> None:
        """Note that ``what`` has changed."""
        self._news.add(what)

    def forget(self, session: Session) -> None:
        """Forget the requests of a session that ended."""
        for key, one in self:
            if one.session is session:
                del self._waits[key]

    def answers(self, now: float) -> list[tuple[Session, Message]]:
        """Return the answers that are due by now."""
        if not self._waits or not (self._news or (self._due is not None and now >= self._due)):
            self._news.clear()
            return []
        news, self._news = self._news, set()
        found = []
        for key, one in self:
            until = one.until()
            over = until is not None and until <= now
            if not over and one.what not in news:
                continue
            answer = one.answer(over)
            if answer is not None:
                found.append((one.session, answer))
                self._waits.pop(key, None)
        moments = (one.until() for one in self._waits.values())
        self._due = min((one for one in moments if one is not None), default=None)
        return found

    def end(self) -> list[tuple[Session, Message]]:
        """Answer all requests as if their time were over."""
        answers = [(one.session, one.answer(True)) for _, one in self]
        self._waits.clear()
        self._due = None
        return [(session, answer) for session, answer in answers if answer is not None]

    def left_s(self, now: float) -> float | None:
        """Return the seconds until a request's time may be over."""
        return None if self._due is None else max(0.0, self._due - now)
