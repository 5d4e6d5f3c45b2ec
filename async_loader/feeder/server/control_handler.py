"""The control plane: sessions, writers, readers and weights are opened and closed here."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Literal

from async_loader.errors import AsyncLoaderError, Malformed
from async_loader.feeder.server.acceptor import refused, too_late
from async_loader.feeder.server.call_handler import CallHandler
from async_loader.feeder.server.insert_queue import InsertQueue, WriterState
from async_loader.feeder.server.pending import Answer, PendingReplies, PendingReply
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.state import ServerState, TableEntry
from async_loader.feeder.server.weights import WeightsReceipt
from async_loader.feeder.wire import (
    Ack,
    CloseReader,
    CloseWriter,
    Done,
    Drain,
    Error,
    ErrorCode,
    Hello,
    Latest,
    Message,
    OpenReader,
    OpenWriter,
    Publish,
    Published,
    Reader,
    Status,
    StatusReply,
    Type,
    Welcome,
    Writer,
    check_travels,
    schema_of,
    spec_of,
)

_MOST_WAITS = 1 << 16
Late = Iterator[tuple[Session, Message]]


class ControlHandler:
    """Answers control messages.

    Parameters
    ----------
    server_state : ServerState
    calls : CallHandler
    welcome : callable
        Makes the WELCOME.
    status : callable
        Makes the answer to STATUS.
    patience_s : float
        How long INSERTs of a closing writer may be on their way, after the last one received.
    """

    def __init__(
        self,
        server_state: ServerState,
        calls: CallHandler,
        welcome: Callable[[], Welcome],
        status: Callable[[], dict[str, Any]],
        patience_s: float,
    ) -> None:
        self._server_state, self._calls, self._welcome, self._status = (
            server_state,
            calls,
            welcome,
            status,
        )
        self._waits, self._closes = PendingReplies(), PendingReplies()
        self._patience_s = patience_s
        calls.loaded = self._waits.news
        self.drain_asked: list[tuple[Session, Message]] = []
        self._answers: dict[Type, Callable[[Session, Message, Any], Message | None]] = {
            Type.OPEN_WRITER: self._open_writer,
            Type.CLOSE_WRITER: self._close_writer,
            Type.OPEN_READER: self._open_reader,
            Type.CLOSE_READER: self._close_reader,
            Type.STATUS: self._tell_status,
            Type.PUBLISH: self._publish,
            Type.LATEST: self._latest,
            Type.DRAIN: self._drain,
            **dict.fromkeys((Type.ABOUT, Type.CLEAR, Type.SAVE, Type.LOAD), calls.answer),
        }

    def hello(self, message: Message, user: str | None) -> tuple[Session, Message]:
        """Open a session; return it and the answer.

        Raises Malformed: DRAINING or LIMIT.
        """
        hello = message.body
        assert isinstance(hello, Hello)
        self._check_stays()
        before = self._server_state.sessions.before(hello, user)
        if before is not None:
            self.leave(before)
        session = self._server_state.sessions.open(hello, user)
        return session, Message(self._welcome(), session.number, message.sequence)

    def leave(self, session: Session) -> None:
        """End a session."""
        self._server_state.sessions.drop(session)
        self._waits.forget(session)
        self._closes.forget(session)
        self._server_state.leave(session)

    def _check_stays(self) -> None:
        if self._server_state.draining:
            raise Malformed(
                "this server is shutting down and takes nothing new: try another, or later",
                ErrorCode.DRAINING,
            )

    def answer(self, session: Session, message: Message) -> Message | None:
        """Return the answer; ``None``: the request has no answer, or it comes later.

        Raises
        ------
        Malformed
            If the message cannot be done.
        """
        answer = self._answers.get(message.type)
        if answer is None:
            raise Malformed(f"{message.type.name} is nothing for a server's control plane")
        try:
            return answer(session, message, message.body)
        except Malformed:
            raise
        except AsyncLoaderError as error:  # e.g. a schema that no table can have
            raise Malformed(str(error), ErrorCode.UNSUPPORTED) from error

    # -- writers -----------------------------------------------------------------------------------

    def _open_writer(self, session: Session, message: Message, body: OpenWriter) -> Message:
        server_state, number = self._server_state, message.number
        self._check_stays()
        served = server_state.table(body.table)
        before = session.close_writer(number)
        if before is not None:
            self._closes.drop(before)
            before.insert_queue.leave(before)
        session.check_room("writers")
        new = served.table.schema is None
        schema = None if body.schema is None else schema_of(body.schema)
        if server_state.authenticator is not None and not server_state.authenticator.owns(
            session.user, body.producer
        ):
            text = (
                f"this producer belongs to another key than {session.user!r}: draw an id of your "
                "own"
            )
            raise Malformed(text, ErrorCode.UNAUTHORIZED)
        limits, agreed = server_state.limits, served.table.schema or schema
        if agreed is not None:  # before the table has it for ever
            check_travels(agreed, f"table {served.name!r}", limits.control_bytes)
        try:
            writer, resumed = served.insert_queue.open(
                session.number, number, body.producer, body.epoch, schema
            )
        except BaseException:
            server_state.release(body.producer)
            raise
        session.writers[number] = writer
        if new:
            self._waits.news(served)
        assert served.table.schema is not None
        reply = Writer(
            schema=spec_of(served.table.schema),
            applied=writer.told,
            durable=0,
            window_bytes=server_state.window_bytes,
            window_rows=writer.window,
            queue=served.table.is_queue,
            resumed=resumed,
            no_priorities=served.table.no_priorities,
        )
        return message.reply(reply, schema=served.insert_queue.layout.schema_id)

    def _close_writer(self, session: Session, message: Message, body: CloseWriter) -> None:
        writer = session.writers.get(message.number)
        if writer is None:
            raise Malformed(f"session has no writer {message.number}", ErrorCode.UNKNOWN_WRITER)
        before, state, last, producer = (
            self._closes.get(writer), self._server_state, body.last, writer.producer
        )  # fmt: skip
        again = before is not None and before.message.body == body  # it has no more time then
        asked = before.asked if before is not None and again else state.clock()

        def until() -> float | None:
            """Return when INSERTs that did not come are given up."""
            late = producer.received < last
            return max(asked, writer.heard) + self._patience_s if late else None

        def answer(over: bool) -> Message | None:
            writer.check()
            if producer.applied >= last:
                session.close_writer(writer.number)
                writer.insert_queue.leave(writer, closed=True)
                ack = Ack(producer.applied, 0, state.window_bytes, state.window_rows)
                return message.reply(ack)
            if over:
                text = f"{producer.received} of {last} inserts have come: send the others, and"
                raise Malformed(f"{text} close again", ErrorCode.GAP, producer.received)
            return None

        told = functools.partial(self._told, message, answer)
        self._closes.add(writer, PendingReply(session, None, message, told, until, asked))

    # -- readers -----------------------------------------------------------------------------------

    def _open_reader(
        self, session: Session, message: Message, wanted: OpenReader
    ) -> Message | None:
        """Open a reader. The answer waits for the table's schema: learners often come first."""
        self._check_stays()
        served = self._server_state.table(wanted.table)
        key = session.number, message.number
        before = self._waits.get(key)
        self._end_reader(session, message.number)
        session.check_room("readers")
        if served.table.schema is not None and not served.rests:
            return self._reader(session, message, wanted)
        wait_s, timeout_s = wanted.wait_s, wanted.timeout_s
        if wait_s is not None:
            timeout_s = abs(wait_s)
            if wait_s < 0 and not served.rests and not served.table.limited:
                raise refused(served.table.nothing(wanted.batch_size))

        def answer(over: bool) -> Message | None:
            if served.table.schema is not None and not served.rests:
                return self._reader(session, message, wanted)
            if not over:
                return None
            text = f"table {wanted.table!r} has no schema yet: the first writer brings it"
            error = Malformed(text, ErrorCode.TIMEOUT)
            if wait_s is not None:
                empty = "no step has been added yet"
                error = too_late(wait_s, "the table is being loaded" if served.rests else empty)
            return message.reply(Error.of_malformed(error))

        until = None if timeout_s is None else self._server_state.clock() + timeout_s
        if before is not None and before.message.body == wanted:
            until = before.until()  # asked for again: the time that it may take goes on
        self._wait(session, served, message, answer, until, key)
        return None

    def _told(self, message: Message, make: Answer, over: bool) -> Message | None:
        """Return a late answer, or ``None``: not yet; an ERROR if ``make`` raises."""
        try:
            return make(over)
        except Malformed as error:
            refusal = error
        except AsyncLoaderError as error:
            refusal = Malformed(str(error), ErrorCode.UNSUPPORTED)
        except Exception as error:
            refusal = self._calls.fault(message.type.name, error)
        return message.reply(Error.of_malformed(refusal))

    def _wait(
        self,
        session: Session,
        what: Hashable,
        message: Message,
        answer: Answer,
        until: float | None,
        key: Hashable = None,
    ) -> None:
        if len(self._waits) >= _MOST_WAITS:
            raise Malformed(
                f"{_MOST_WAITS} requests wait here, which is the limit: ask later",
                ErrorCode.LIMIT,
            )
        told = functools.partial(self._told, message, answer)
        self._waits.add(key or object(), PendingReply(session, what, message, told, lambda: until))

    def _reader(self, session: Session, message: Message, wanted: OpenReader) -> Message:
        scheduler = self._server_state.table(wanted.table).scheduler
        shared = wanted.transport == "shm" and self._server_state.memory is not None
        try:
            reader = scheduler.open(
                session.number,
                message.number,
                wanted,
                message.sequence,
                shared,
                self._server_state.weights.newest_version,
            )
        except AsyncLoaderError as error:
            if wanted.wait_s is None:
                raise
            raise refused(error) from error  # in the words of the call
        session.readers[message.number] = reader
        transport: Literal["tcp", "shm"] = "shm" if shared else "tcp"
        reply = Reader(
            schema=spec_of(reader.schema),
            leased=scheduler.table.leased,
            transport=transport,
            eta=reader.drawing.eta,
        )
        return message.reply(reply, schema=reader.form.schema_id)

    def _end_reader(self, session: Session, number: int) -> None:
        self._waits.drop((session.number, number))
        reader = session.close_reader(number)
        if reader is not None:
            reader.scheduler.close(reader)

    def _close_reader(self, session: Session, message: Message, body: CloseReader) -> Message:
        reader = session.readers.get(message.number)
        if reader is not None:
            leases = body.unused.tolist()
            reader.scheduler.settle(
                reader, body.arrived, set(leases[: body.seen]), set(leases[body.seen :])
            )
        self._end_reader(session, message.number)
        return message.reply(Done())

    # -- weights -----------------------------------------------------------------------------------

    def _publish(self, session: Session, message: Message, part: Publish) -> Message:
        weights = self._server_state.weights
        taken = weights.publish(session.number, session.hello.client, part, message.data)
        if taken is WeightsReceipt.NEWEST:
            self._waits.news(part.name)
            self._server_state.published.add(part.name, part.version, self._server_state.clock())
            for table in self._server_state.tables.values():
                table.scheduler.published(part.name, part.version)
        version, run = weights.newest(part.name) or (None, None)
        return message.reply(
            Published(newest=taken is not WeightsReceipt.STALE, version=version, run=run)
        )

    def _latest(self, session: Session, message: Message, wanted: Latest) -> Message | None:
        def answer(over: bool) -> Message | None:
            found = self._server_state.weights.answer(
                wanted, self._server_state.limits.message_bytes
            )
            if found is not None:
                return message.reply(found[0], data=found[1])
            return message.reply(self._server_state.weights.nothing(wanted)) if over else None

        now = answer(wanted.timeout_s is None)
        if now is None:
            assert wanted.timeout_s is not None
            until = self._server_state.clock() + wanted.timeout_s
            self._wait(session, wanted.name, message, answer, until)
        return now

    # -- what it is --------------------------------------------------------------------------------

    def _tell_status(self, session: Session, message: Message, body: Status) -> Message:
        return message.reply(StatusReply(self._status()))

    # -- later -------------------------------------------------------------------------------------

    def late_answers(self) -> Late:
        """Yield answers that are due now: to LATEST, OPEN_READER and CLOSE_WRITER."""
        now = self._server_state.clock()
        yield from self._waits.answers(now)
        self._closes.news(None)
        yield from self._closes.answers(now)

    def end_table(self, table: TableEntry, reason: str) -> Late:
        """Yield the answers to requests that wait for a closed table."""
        yield from self._end_closes(ErrorCode.UNSUPPORTED, reason, table.insert_queue)

    def last_answers(self, reason: str, unsaved: str) -> Late:
        """Yield the last answers to all waiting requests; ``unsaved``: why a DRAIN has failed."""
        drained = Error.of(ErrorCode.INTERNAL, unsaved) if unsaved else Done()
        yield from self._waits.end()
        yield from self._end_closes(ErrorCode.DRAINING, reason)
        for session, message in self.drain_asked:
            yield session, message.reply(drained)

    def _end_closes(
        self, code: ErrorCode, reason: str, insert_queue: InsertQueue | None = None
    ) -> Late:
        """Refuse to close writers: nothing goes into this table (any table) any more."""
        for writer, one in self._closes:
            assert isinstance(writer, WriterState)
            if insert_queue is None or writer.insert_queue is insert_queue:
                self._closes.drop(writer)
                error = Error.of(code, reason, writer.producer.applied)
                yield one.session, one.message.reply(error)

    def waiting(self) -> dict[Any, int]:
        """Return how many requests wait for each `TableEntry`, and each name of weights."""
        return Counter(wait.what for _, wait in self._waits)

    def left_s(self) -> float | None:
        """Return the seconds until a waiting request is answered anyway."""
        now = self._server_state.clock()
        moments = [self._waits.left_s(now), self._closes.left_s(now)]
        return min((one for one in moments if one is not None), default=None)

    def _drain(self, session: Session, message: Message, body: Drain) -> None:
        self.drain_asked.append((session, message))
