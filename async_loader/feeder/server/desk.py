"""Control messages, one after the other: who asks for what, and the answer. Never waits for anything; has no socket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from async_loader.errors import AsyncLoaderError, Malformed
from async_loader.feeder.server.hall import Hall
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.wire import (
    NEWEST,
    OLDEST,
    Ack,
    CloseWriter,
    Done,
    ErrorCode,
    Hello,
    Latest,
    Message,
    OpenReader,
    OpenWriter,
    Pong,
    Publish,
    Reader,
    StatusReply,
    Type,
    Welcome,
    Writer,
    agree,
    schema_of,
    spec_of,
)


@dataclass(slots=True, eq=False)
class Waiting:
    """A LATEST that is to be answered as soon as there is something newer, or at ``until``."""

    session: Session
    message: Message
    until: float


class Desk:
    """Answers control messages.

    Parameters
    ----------
    hall : Hall
        Everything that the server has.
    welcome : callable
        Makes the WELCOME of a version.
    status : callable
        Makes the answer to STATUS.
    """

    def __init__(self, hall: Hall, welcome: Callable[[int], Welcome], status: Callable[[], dict[str, Any]]) -> None:
        self._hall, self._welcome, self._status = hall, welcome, status
        self._waiting: list[Waiting] = []
        self.drain_asked: list[tuple[Session, Message]] = []
        self._answers: dict[Type, Callable[[Session, Message], Message | None]] = {
            Type.PING: lambda session, message: message.reply(Pong()),
            Type.OPEN_WRITER: self._open_writer,
            Type.CLOSE_WRITER: self._close_writer,
            Type.OPEN_READER: self._open_reader,
            Type.CLOSE_READER: self._close_reader,
            Type.STATUS: lambda session, message: message.reply(StatusReply(status=self._status())),
            Type.PUBLISH: self._publish,
            Type.LATEST: self._latest,
            Type.DRAIN: self._drain,
        }

    def hello(self, message: Message, user: str | None) -> tuple[Session, Message]:
        """A new session, and what to tell it."""
        hello = message.body
        assert isinstance(hello, Hello)
        version = agree((OLDEST, NEWEST), (hello.oldest, hello.newest))
        if self._hall.draining:
            raise Malformed("this server is shutting down and takes nobody new: try another, or later", ErrorCode.DRAINING)
        session, before = self._hall.sessions.open(hello, version, user)
        if before is not None:
            self._hall.leave(before)
        return session, Message(self._welcome(version), session.number, message.sequence, version=version)

    def answer(self, session: Session, message: Message) -> Message | None:
        """What to tell now; ``None``: nothing, or later.

        Raises
        ------
        Malformed
            For what is not to be done.
        """
        answer = self._answers.get(message.type)
        if answer is None:
            raise Malformed(f"{message.type.name} is nothing for a server's control plane")
        try:
            return answer(session, message)
        except Malformed:
            raise
        except AsyncLoaderError as error:  # a table that cannot be; anything else is a fault of ours, and not caught
            raise Malformed(str(error), ErrorCode.UNSUPPORTED) from error

    # -- writers and readers ---------------------------------------------------------------------------------------------

    def _open_writer(self, session: Session, message: Message) -> Message:
        body = message.body
        assert isinstance(body, OpenWriter)
        hall = self._hall
        if hall.draining:
            raise Malformed("this server is shutting down and takes no more inserts: try another, or later", ErrorCode.DRAINING)
        served = hall.table(body.table)
        schema = None if body.schema is None else schema_of(body.schema)
        writer, resumed = served.intake.open(message.number, body.producer, body.epoch, schema)
        session.writers[message.number] = writer
        applied = writer.told = writer.producer.applied
        assert served.table.schema is not None
        reply = Writer(
            schema=spec_of(served.table.schema), applied=applied, durable=0,
            window_bytes=hall.window_bytes, window_rows=hall.window_rows, resumed=resumed,
        )  # fmt: skip
        return message.reply(reply, schema=served.intake.layout.schema_id)

    def _close_writer(self, session: Session, message: Message) -> Message | None:
        body = message.body
        assert isinstance(body, CloseWriter)
        writer = session.writers.get(message.number)
        if writer is None:
            raise Malformed(f"session has no writer {message.number}", ErrorCode.UNKNOWN_WRITER)
        writer.closing = (body.last, message)
        return self.closed(session, message.number)

    def closed(self, session: Session, number: int) -> Message | None:
        """The answer to a CLOSE_WRITER, when everything is in the table; the writer is gone then."""
        writer = session.writers[number]
        if writer.closing is None or writer.producer.applied < writer.closing[0]:
            return None
        del session.writers[number]
        return writer.closing[1].reply(self.ack(writer.producer.applied))

    def ack(self, applied: int) -> Ack:
        return Ack(applied, 0, self._hall.window_bytes, self._hall.window_rows)

    def _open_reader(self, session: Session, message: Message) -> Message:
        body = message.body
        assert isinstance(body, OpenReader)
        outlet = self._hall.table(body.table).outlet
        before = session.readers.pop(message.number, None)
        if before is not None:
            before.outlet.close(before)
        reader = session.readers[message.number] = outlet.open(message.number, body)
        reply = Reader(schema=spec_of(reader.drawing.schema), leased=outlet.table.leased, transport="tcp")
        return message.reply(reply, schema=reader.layout.schema_id)

    def _close_reader(self, session: Session, message: Message) -> Message:
        reader = session.readers.pop(message.number, None)
        if reader is not None:
            reader.outlet.close(reader)
        return message.reply(Done())

    # -- weights ---------------------------------------------------------------------------------------------------------

    def _publish(self, session: Session, message: Message) -> Message:
        assert isinstance(message.body, Publish)
        self._hall.weights.publish(session.number, message.body, message.data)
        return message.reply(Done())

    def _latest(self, session: Session, message: Message) -> Message | None:
        wanted = message.body
        assert isinstance(wanted, Latest)
        answer = self._newer(message)
        if answer is None and wanted.timeout_s is not None:
            self._waiting.append(Waiting(session, message, self._hall.clock() + wanted.timeout_s))
            return None
        return answer or message.reply(self._hall.weights.nothing(wanted))

    def _newer(self, message: Message) -> Message | None:
        assert isinstance(message.body, Latest)
        found = self._hall.weights.answer(message.body, self._hall.limits.message_bytes)
        return None if found is None else message.reply(found[0], data=found[1])

    def late_answers(self) -> list[tuple[Session, Message]]:
        """What can be told by now to those who wait for newer weights."""
        now, told, still = self._hall.clock(), [], []
        for one in self._waiting:
            assert isinstance(one.message.body, Latest)
            answer = self._newer(one.message)
            if answer is None and one.until <= now:
                answer = one.message.reply(self._hall.weights.nothing(one.message.body))
            if answer is None:
                still.append(one)
            else:
                told.append((one.session, answer))
        self._waiting = still
        return told

    def left_s(self) -> float | None:
        """Seconds until somebody has waited long enough."""
        return max(0.0, min(one.until for one in self._waiting) - self._hall.clock()) if self._waiting else None

    def forget(self, session: Session) -> None:
        """It is gone."""
        self._waiting = [one for one in self._waiting if one.session is not session]
        self._hall.weights.gone(session.number)

    def _drain(self, session: Session, message: Message) -> None:
        self.drain_asked.append((session, message))
