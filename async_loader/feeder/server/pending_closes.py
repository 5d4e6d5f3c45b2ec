"""Writers that say goodbye: each is answered when all that it sent is in the table, or cannot get there. Has no socket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from async_loader.errors import Malformed
from async_loader.feeder.server.insert_queue import InsertQueue, WriterState
from async_loader.feeder.wire import Ack, Error, ErrorCode, Message


@dataclass(slots=True, eq=False)
class PendingClose:
    """A CLOSE_WRITER that was not answered yet."""

    message: Message
    last: int
    asked: float


class PendingCloses:
    """All of them.

    Parameters
    ----------
    patience_s : float
        How long INSERTs of a writer that closes may be on their way, after the last one that came.
    ack : callable
        Makes the ACK of what is applied.
    """

    def __init__(self, patience_s: float, ack: Callable[[int], Ack]) -> None:
        self._patience_s, self._ack = patience_s, ack
        self._waiting: dict[WriterState, PendingClose] = {}

    def add(self, writer: WriterState, message: Message, last: int, now: float) -> None:
        """It wants to be closed after ``last`` inserts."""
        self._waiting[writer] = PendingClose(message, last, now)

    def drop(self, writer: WriterState) -> None:
        """It is gone without an answer."""
        self._waiting.pop(writer, None)

    def answers(self, now: float) -> list[tuple[WriterState, Message]]:
        """Who can be answered, and what. A writer whose answer is an ACK is closed."""
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
            return Error.of(ErrorCode(error.code), str(error), error.expected)
        producer = writer.producer
        if producer.applied >= closing.last:
            return self._ack(producer.applied)
        if producer.received < closing.last and now >= self._until(writer, closing):
            text = f"{producer.received} of {closing.last} inserts have come: send the others, and close again"
            return Error.of(ErrorCode.GAP, text, producer.received)
        return None

    def _until(self, writer: WriterState, closing: PendingClose) -> float:
        return max(closing.asked, writer.heard) + self._patience_s

    def end(self, code: ErrorCode, reason: str, insert_queue: InsertQueue | None = None) -> list[tuple[WriterState, Message]]:
        """Nothing comes into this table (any table) any more."""
        ended = []
        for writer, one in list(self._waiting.items()):
            if insert_queue is None or writer.insert_queue is insert_queue:
                del self._waiting[writer]
                ended.append((writer, one.message.reply(Error.of(code, reason, writer.producer.applied))))
        return ended

    def left_s(self, now: float) -> float | None:
        """Seconds until somebody has waited long enough for what did not come."""
        moments = [
            self._until(writer, one) for writer, one in self._waiting.items() if writer.producer.received < one.last
        ]  # fmt: skip
        return max(0.0, min(moments) - now) if moments else None
