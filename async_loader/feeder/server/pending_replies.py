"""Requests whose answer may be withheld: until there are newer weights, or a table has a schema. Has no socket."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from async_loader.feeder.server.sessions import Session
from async_loader.feeder.wire import Message

Answer = Callable[[bool], Message | None]
"""What to answer now, ``None``: nothing yet. Told whether the time is over, when there has to be something."""


@dataclass(slots=True, eq=False)
class PendingReply:
    """A request that was not answered yet.

    Attributes
    ----------
    what : hashable
        Of what news may bring the answer.
    until : float | None
        On the server's clock.
    """

    session: Session
    what: Hashable
    answer: Answer
    until: float | None


class PendingReplies:
    """All of them. Nothing is tried again but for news of it, and when its time is over; O(1) while there are neither."""

    def __init__(self) -> None:
        self._waits: dict[Hashable, PendingReply] = {}
        self._news: set[Hashable] = set()
        self._numbers = 0
        self._due: float | None = None  # nobody's time is over before then

    def __len__(self) -> int:
        return len(self._waits)

    def __iter__(self) -> Iterator[PendingReply]:
        return iter(list(self._waits.values()))

    def add(self, wait: PendingReply, key: Hashable = None) -> None:
        """One of the same ``key`` before it is forgotten."""
        self._numbers += 1
        self._waits[self._numbers if key is None else key] = wait
        if wait.until is not None and (self._due is None or wait.until < self._due):
            self._due = wait.until

    def drop(self, key: Hashable) -> None:
        """Nobody waits for it."""
        self._waits.pop(key, None)

    def news(self, what: Hashable) -> None:
        """Something has changed there."""
        self._news.add(what)

    def forget(self, session: Session) -> None:
        """It is gone."""
        for key in [key for key, one in self._waits.items() if one.session is session]:
            del self._waits[key]

    def answers(self, now: float) -> list[tuple[Session, Message]]:
        """What can be told by now."""
        if not self._news and (self._due is None or now < self._due):
            return []
        news, self._news = self._news, set()
        told = []
        for key, one in list(self._waits.items()):
            over = one.until is not None and one.until <= now
            if not over and one.what not in news:
                continue
            answer = one.answer(over)
            if answer is not None:
                told.append((one.session, answer))
                self._waits.pop(key, None)
        self._due = min((one.until for one in self._waits.values() if one.until is not None), default=None)
        return told

    def end(self) -> list[tuple[Session, Message]]:
        """Nothing more comes of anything."""
        said = [(one.session, one.answer(True)) for one in self._waits.values()]
        self._waits.clear()
        self._due = None
        return [(session, answer) for session, answer in said if answer is not None]

    def left_s(self, now: float) -> float | None:
        """Seconds until somebody may have waited long enough."""
        return None if self._due is None else max(0.0, self._due - now)
