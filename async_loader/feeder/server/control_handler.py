"""The control plane: sessions, writers, readers and weights are opened and closed here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from async_loader.errors import Malformed
from async_loader.feeder.server.dispatch import Dispatcher, too_late
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.state import ServerState, TableEntry
from async_loader.feeder.server.status import session_status
from async_loader.feeder.wire import (
    CloseReader,
    CloseWriter,
    Done,
    Drain,
    End,
    Error,
    ErrorCode,
    Hello,
    Latest,
    Message,
    OpenReader,
    OpenWriter,
    Plane,
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

_DIED = 16
"""Clients that died which STATUS names."""


@dataclass(slots=True, eq=False)
class PendingReply:
    """A request of the control plane that was not answered yet.

    Attributes
    ----------
    what : hashable
        What it waits for, in STATUS.
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
    """Requests that are tried at the end of their round, when there is news, and when their time is
    over.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._waits: dict[Hashable, PendingReply] = {}
        self._news = False
        self.due: float | None = None
        """No request's time is over before."""

    def __iter__(self) -> Iterator[PendingReply]:
        return iter(list(self._waits.values()))

    def resting(self, key: Hashable) -> TableEntry | None:
        """Return the table that a request waits for: it has no schema, or is being loaded."""
        wait = self._waits.get(key)
        table = None if wait is None or not isinstance(wait.what, TableEntry) else wait.what
        return table if table is not None and (table.rests or table.table.schema is None) else None

    def add(self, key: Hashable, wait: PendingReply) -> None:
        """Add a request; it replaces one of the same ``key``."""
        self._waits[key], self._news = wait, True

    def drop(self, key: Hashable) -> None:
        """Forget a request, if there is one."""
        self._waits.pop(key, None)

    def news(self, what: object = None) -> None:
        """Note that something has changed that requests may wait for."""
        self._news = True

    def forget(self, session: Session) -> None:
        """Forget the requests of a session that ended."""
        self._waits = {key: one for key, one in self._waits.items() if one.session is not session}

    def send(self, now: float, end: bool = False) -> None:
        """Send the answers that are due; at the ``end`` all, as if their time were over."""
        if not end and not self._news and (self.due is None or now < self.due):
            return
        self._news = False
        for key, one in list(self._waits.items()):
            over = end or (one.until is not None and one.until <= now)
            answer = self._answer(one, over)
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


class ControlHandler:
    """Answers control messages.

    Parameters
    ----------
    server_state : ServerState
    dispatcher : Dispatcher
    welcome : callable
        Makes the WELCOME.
    status : callable
        Makes the answer to STATUS.
    """

    def __init__(
        self,
        server_state: ServerState,
        dispatcher: Dispatcher,
        welcome: Callable[[], Welcome],
        status: Callable[[], dict[str, Any]],
    ) -> None:
        self._server_state, self._welcome, self._status = server_state, welcome, status
        self.waits = PendingReplies(dispatcher)
        self._dispatcher = dispatcher
        self.drain_asked: list[tuple[Session, Message]] = []
        self.on_leave: Callable[[Session], object] = lambda session: None
        self.on_publish: Callable[[str, int], object] = lambda name, version: None
        dispatcher.on_hello = self._hello
        dispatcher.handlers[Plane.CONTROL] |= {
            Type.OPEN_WRITER: self._open_writer,
            Type.CLOSE_WRITER: self._close_writer,
            Type.OPEN_READER: self._open_reader,
            Type.CLOSE_READER: self._close_reader,
            Type.STATUS: self._tell_status,
            Type.PUBLISH: self._publish,
            Type.LATEST: self._latest,
            Type.DRAIN: self._drain,
            Type.END: lambda *_: None,
        }

    def _hello(self, message: Message, user: str | None) -> tuple[Session, Message]:
        """Open a session; return it and the answer.

        Raises Malformed: DRAINING or LIMIT.
        """
        hello = message.body
        assert isinstance(hello, Hello)
        self._check_stays()
        sessions = self._server_state.sessions
        self._server_state.died.pop(hello.client, None)
        before = sessions.before(hello, user)
        if before is not None:
            before.replaced = True
            self.leave(before)
        self.end_sessions(place_needed=True)
        session = sessions.open(hello, user)
        return session, Message(self._welcome(), session.number, message.sequence)

    def end_sessions(self, place_needed: bool = False) -> None:
        """End the sessions that are over."""
        state = self._server_state
        for session in state.sessions.over(place_needed):
            end = session.end
            state.ended[end] += 1
            if end != "left":
                said = session_status(session, state) | {"state": end}
                state.died[session.hello.client] = session.heard, said
                if len(state.died) > _DIED:
                    del state.died[next(iter(state.died))]
            self.leave(session)

    def leave(self, session: Session) -> None:
        """End a session."""
        self._server_state.sessions.drop(session)
        self.on_leave(session)
        self.waits.forget(session)
        self._server_state.leave(session)

    def _check_stays(self) -> None:
        if self._server_state.draining:
            raise Malformed(
                "this server is shutting down and takes nothing new: try another, or later",
                ErrorCode.DRAINING,
            )

    # -- writers -----------------------------------------------------------------------------------

    def _open_writer(self, session: Session, message: Message, body: OpenWriter) -> Message:
        state, number = self._server_state, message.number
        self._check_stays()
        served = state.table(body.table)
        session.close_writer(number)
        schema = None if body.schema is None else schema_of(body.schema)
        limits, agreed = state.limits, served.table.schema or schema
        if agreed is not None:  # before the table has it for ever
            check_travels(agreed, f"table {served.name!r}", limits.control_bytes)
        queue = served.insert_queue
        writer, resumed = queue.open(session.number, number, body.producer, schema)
        session.writers[number] = writer
        self.waits.news()
        assert served.table.schema is not None
        reply = Writer(
            schema=spec_of(served.table.schema),
            applied=writer.applied,
            window_bytes=state.window_bytes,
            window_rows=writer.window,
            queue=served.table.is_queue,
            resumed=resumed,
            no_priorities=served.table.no_priorities,
        )
        return message.reply(reply, schema=queue.layout.schema_id)

    def _close_writer(self, session: Session, message: Message, body: CloseWriter) -> Message:
        writer = session.writers.get(message.number)
        if writer is None or writer.applied < body.last:
            text = f"session has no writer {message.number} of {body.last} inserts: open it (again)"
            raise Malformed(text, ErrorCode.UNKNOWN_WRITER)
        session.close_writer(writer.number)
        return message.reply(Done())

    # -- readers -----------------------------------------------------------------------------------

    def _open_reader(self, session: Session, message: Message, wanted: OpenReader) -> None:
        """Open a reader. The answer waits for the table's schema: learners often come first."""
        self._check_stays()
        served, clock = self._server_state.table(wanted.table), self._server_state.clock
        key = session.number, message.number
        self.waits.drop(key)
        if not served.rests:
            self._end_reader(session, message.number)
        wait_s, timeout_s = wanted.wait_s, wanted.timeout_s
        if wait_s is not None:
            timeout_s = abs(wait_s)
        until = None if timeout_s is None else clock() + timeout_s

        def answer(over: bool) -> Message | None:
            if served.table.schema is not None and not served.rests:
                self._end_reader(session, message.number)
                return self._reader(session, message, wanted)
            if wait_s is not None and wait_s < 0 and not served.rests and not served.table.limited:
                raise served.table.nothing(wanted.batch_size)
            if not over:
                return None
            text = f"table {wanted.table!r} has no schema yet: the first writer brings it"
            if wait_s is None:
                raise Malformed(text, ErrorCode.TIMEOUT)
            empty = "no step has been added yet"
            raise too_late(wait_s, "the table is being loaded" if served.rests else empty)

        self.waits.add(key, PendingReply(session, served, message, answer, until))

    def _reader(self, session: Session, message: Message, wanted: OpenReader) -> Message:
        scheduler = self._server_state.table(wanted.table).scheduler
        shared = wanted.transport == "shm" and self._server_state.memory is not None
        newest = self._server_state.weights.newest_version
        reader = scheduler.open(session.number, message.number, wanted, shared, newest)
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
        reader = session.close_reader(number)
        if reader is not None:
            self._server_state.table(reader.table).scheduler.close(reader)

    def _close_reader(self, session: Session, message: Message, body: CloseReader) -> Message:
        reader = session.readers.get(message.number)
        if reader is not None:
            seen, unseen = body.unused[: body.seen], body.unused[body.seen :]
            scheduler = self._server_state.table(reader.table).scheduler
            scheduler.settle(reader, body.arrived, set(seen), set(unseen))
        self.waits.drop((session.number, message.number))
        self._end_reader(session, message.number)
        return message.reply(Done())

    # -- weights -----------------------------------------------------------------------------------

    def _publish(self, session: Session, message: Message, part: Publish) -> Message:
        state, weights = self._server_state, self._server_state.weights
        taken = weights.publish(session.number, session.hello.client, part, message.data)
        if taken:
            self.waits.news()
            state.published[part.name] = state.clock()
            for table in state.tables.values():
                table.scheduler.published(part.name, part.version)
            self.on_publish(part.name, part.version)
        version, run = weights.newest(part.name) or (None, None)
        return message.reply(Published(newest=taken is not None, version=version, run=run))

    def _latest(self, session: Session, message: Message, wanted: Latest) -> None:
        state, timeout_s = self._server_state, wanted.timeout_s

        def answer(over: bool) -> Message | None:
            most = state.limits.message_bytes
            found = state.weights.answer(session.number, wanted, most)
            if found is not None:
                return message.reply(found[0], data=found[1])
            return message.reply(state.weights.nothing(wanted)) if over else None

        until = state.clock() + (timeout_s or 0.0)
        self.waits.add(object(), PendingReply(session, wanted.name, message, answer, until))

    # -- status and the end ------------------------------------------------------------------------

    def _tell_status(self, session: Session, message: Message, body: Status) -> Message:
        return message.reply(StatusReply(self._status()))

    def waiting(self) -> dict[Any, int]:
        """Return how many requests wait for each `TableEntry`, and each name of weights."""
        return Counter(wait.what for wait in self.waits)

    def _drain(self, session: Session, message: Message, body: Drain) -> None:
        self.drain_asked.append((session, message))

    def send_last(self, reason: str, unsaved: str) -> None:
        """Answer all waiting requests, end all sessions; ``unsaved``: why a DRAIN has failed."""
        self.waits.send(self._server_state.clock(), end=True)
        drained = Error.of(ErrorCode.INTERNAL, unsaved) if unsaved else Done()
        for session, message in self.drain_asked:
            self._dispatcher.answer(session, Plane.CONTROL, message.reply(drained))
        for session in self._server_state.sessions:
            self._dispatcher.tell(session, Plane.CONTROL, 0, 0, End(reason=reason, count=0))
