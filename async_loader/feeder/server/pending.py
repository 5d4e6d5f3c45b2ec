"""Requests that are answered later.

OPEN_READER and LATEST with news, CLOSE_WRITER with the last ACK.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from async_loader.errors import Malformed
from async_loader.feeder.server.insert_queue import InsertQueue, WriterState
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.wire import Ack, Error, ErrorCode, Message

Answer = Callable[[bool], Message | None]
"""Returns the answer, or ``None``: not yet. Takes whether the time is over; then it must answer."""


@dataclass(slots=True, eq=False)
class PendingReply:
    """A request that was not answered yet.

    Attributes
    ----------
    what : hashable
        News of this may bring the answer.
    message : Message
        The request.
    until : float | None
        On the server's clock.
    """

    session: Session
    what: Hashable
    message: Message
    answer: Answer
    until: float | None


class PendingReplies:
    """Requests that are tried again when there is news, and when their time is over; else O(1)."""

    def __init__(self) -> None:
        self._waits: dict[Hashable, PendingReply] = {}
        self._news: set[Hashable] = set()
        self._numbers = 0
        self._due: float | None = None  # no request's time is over before

    def __len__(self) -> int:
        return len(self._waits)

    def __iter__(self) -> Iterator[PendingReply]:
        return iter(list(self._waits.values()))

    def add(self, wait: PendingReply, key: Hashable = None) -> None:
        """Add a request; it replaces one of the same ``key``."""
        self._numbers += 1
        self._waits[self._numbers if key is None else key] = wait
        if wait.until is not None and (self._due is None or wait.until < self._due):
            self._due = wait.until

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
        for key in [key for key, one in self._waits.items() if one.session is session]:
            del self._waits[key]

    def answers(self, now: float) -> list[tuple[Session, Message]]:
        """Return the answers that are due by now."""
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
        self._due = min(
            (one.until for one in self._waits.values() if one.until is not None), default=None
        )
        return told

    def end(self) -> list[tuple[Session, Message]]:
        """Answer all requests as if their time were over."""
        said = [(one.session, one.answer(True)) for one in self._waits.values()]
        self._waits.clear()
        self._due = None
        return [(session, answer) for session, answer in said if answer is not None]

    def left_s(self, now: float) -> float | None:
        """Return the seconds until a request's time may be over."""
        return None if self._due is None else max(0.0, self._due - now)


@dataclass(slots=True, eq=False)
class PendingClose:
    """A CLOSE_WRITER that was not answered yet: after ``last`` inserts, ``asked`` on the clock."""

    message: Message
    last: int
    asked: float


class PendingCloses:
    """CLOSE_WRITERs: each is answered when all its inserts are in the table, or cannot get there.

    Parameters
    ----------
    patience_s : float
        How long INSERTs of a closing writer may be on their way, after the last one received.
    ack : callable
        Makes the ACK of a number of applied inserts.
    """

    def __init__(self, patience_s: float, ack: Callable[[int], Ack]) -> None:
        self._patience_s, self._ack = patience_s, ack
        self._waiting: dict[WriterState, PendingClose] = {}

    def add(self, writer: WriterState, message: Message, last: int, now: float) -> None:
        """Close a writer after its ``last`` inserts. Asked again, it has no more time for them."""
        before = self._waiting.get(writer)
        asked = now if before is None or before.last != last else before.asked
        self._waiting[writer] = PendingClose(message, last, asked)

    def drop(self, writer: WriterState) -> None:
        """Forget a writer without an answer."""
        self._waiting.pop(writer, None)

    def answers(self, now: float) -> list[tuple[WriterState, Message]]:
        """Return writers and their answers that are due. One whose answer is an ACK is closed."""
        found = []
        for writer, closing in self._waiting.items():
            body = self._body(writer, closing, now)
            if body is not None:
                found.append((writer, closing.message.reply(body)))
        for writer, _ in found:
            del self._waiting[writer]
        return found

    def _body(self, writer: WriterState, closing: PendingClose, now: float) -> Ack | Error | None:
        try:
            writer.check()
        except Malformed as error:
            return Error.of_malformed(error)
        producer = writer.producer
        if producer.applied >= closing.last:
            return self._ack(producer.applied)
        if producer.received < closing.last and now >= self._until(writer, closing):
            text = (
                f"{producer.received} of {closing.last} inserts have come: send the others, and "
                "close again"
            )
            return Error.of(ErrorCode.GAP, text, producer.received)
        return None

    def _until(self, writer: WriterState, closing: PendingClose) -> float:
        return max(closing.asked, writer.heard) + self._patience_s

    def end(
        self, code: ErrorCode, reason: str, insert_queue: InsertQueue | None = None
    ) -> list[tuple[WriterState, Message]]:
        """Answer with an error: nothing goes into this table (any table) any more."""
        ended = []
        for writer, one in list(self._waiting.items()):
            if insert_queue is None or writer.insert_queue is insert_queue:
                del self._waiting[writer]
                ended.append(
                    (writer, one.message.reply(Error.of(code, reason, writer.producer.applied)))
                )
        return ended

    def left_s(self, now: float) -> float | None:
        """Return the seconds until missing inserts are given up."""
        moments = [
            self._until(writer, one)
            for writer, one in self._waiting.items()
            if writer.producer.received < one.last
        ]
        return max(0.0, min(moments) - now) if moments else None
