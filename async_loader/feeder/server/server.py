"""The loop: waits for sockets, signals and moments, and lets the others do what there is to do. Knows no table and no schema."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import zmq

from async_loader.errors import AsyncLoaderError, Malformed
from async_loader.feeder.server.counters import Counters
from async_loader.feeder.server.desk import Desk
from async_loader.feeder.server.hall import Hall, Table
from async_loader.feeder.server.intake import WriterState
from async_loader.feeder.server.outlet import Arrays, ReaderState
from async_loader.feeder.server.ports import Plane, Ports
from async_loader.feeder.server.report import status_of
from async_loader.feeder.server.sessions import Session, Sessions
from async_loader.feeder.server.weights import WeightStore
from async_loader.feeder.wire import (
    ACK_NOW,
    NEWEST,
    Applied,
    Done,
    End,
    Error,
    ErrorCode,
    Gap,
    Insert,
    Limits,
    Message,
    Pong,
    Priorities,
    Pull,
    Return,
    Type,
    Welcome,
    batch,
    decode,
    encode,
    refuse,
)
from async_loader.lifecycle import Bell, Deadline
from async_loader.replay.buffer import ReplayBuffer

_CONTROL, _INSERTS, _PULLS, _BATCHES = 256, 64, 256, 16  # messages of each kind in one round
REDELIVERED = 0x02


class Server:
    """Owns tables, and serves them until it is told to stop.

    Parameters
    ----------
    tables : mapping of str to ReplayBuffer
        From here on the server's own.
    endpoints : mapping of Plane to str
        Where each socket is bound.
    limits : Limits
    window_bytes, window_rows : int
        What each writer may have on its way.
    sessions : int
        At the same time.
    heartbeat_s, silence_s : float
        After how long without anything to say a client says that it is there; and is taken for gone.
    drain_s : float
        How long, at the end, what was received may wait for its table, and learners for the last batches.
    clock : callable
        Monotonic seconds.
    """

    def __init__(
        self,
        tables: Mapping[str, ReplayBuffer],
        endpoints: Mapping[Plane, str],
        *,
        limits: Limits | None = None,
        window_bytes: int = 16 << 20,
        window_rows: int = 1 << 16,
        sessions: int = 1024,
        weight_bytes: int = 4 << 30,
        heartbeat_s: float = 1.0,
        silence_s: float = 10.0,
        drain_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._drain_s = clock, drain_s
        self._heartbeat_s, self._silence_s = heartbeat_s, silence_s
        self.incarnation = secrets.token_bytes(16)
        self._hall = Hall(
            {name: Table(name, buffer) for name, buffer in tables.items()},
            Sessions(sessions, silence_s, clock),
            WeightStore(weight_bytes),
            limits or Limits(),
            window_bytes,
            window_rows,
            clock,
        )
        self._desk = Desk(self._hall, self._welcome, self.status)
        self.counters = Counters(clock)
        self._context = zmq.Context()
        try:
            self._ports = Ports(self._context, endpoints, self._hall.limits)
        except BaseException:
            self._context.term()
            raise
        self._bell = Bell()
        self._stop = False
        self._ending: Deadline | None = None
        self._unsaid: dict[WriterState, tuple[Session, bool]] = {}

    @property
    def endpoints(self) -> dict[Plane, str]:
        """Where the sockets are bound."""
        return self._ports.endpoints

    def stop(self) -> None:
        """End as SIGTERM does: drain, and return from `run`. Any thread, and signal handlers."""
        self._stop = True
        self._bell.ring()

    def run(self) -> None:
        """Serve until `stop`, a DRAIN, SIGTERM or SIGINT. Once."""
        try:
            with self._signals():
                while not self._over():
                    self._wait()
                    self._round()
        finally:
            self._close()

    # -- the loop --------------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        poller = zmq.Poller()
        for socket in self._ports.sockets.values():
            poller.register(socket, zmq.POLLIN)
        poller.register(self._bell.fileno(), zmq.POLLIN)
        left = self._left_s()
        poller.poll(None if left is None else int(left * 1000 + 0.999))
        self._bell.clear()

    def _left_s(self) -> float | None:
        """Seconds until something has to be done, whatever comes."""
        if self._more:
            return 0.0
        now = self._clock()
        moments = [self._hall.sessions.left_s(), self._desk.left_s(), self._ending.left() if self._ending is not None else None]
        moments += [table.outlet.left_s(now) for table in self._hall.tables.values()]
        return min((one for one in moments if one is not None), default=None)

    _more = False
    """Whether the last round left something undone that need not wait for anybody."""

    def _round(self) -> None:
        self._control()
        self._more = self._inserts() >= _INSERTS
        self._pulls()
        self._flow()
        self._tell()
        self._times()
        if self._stop and self._ending is None:
            self._begin_to_end()

    def _control(self) -> None:
        for route, frames in self._ports.receive(Plane.CONTROL, _CONTROL):
            self._one(Plane.CONTROL, route, frames, self._answer)

    def _inserts(self) -> int:
        count = 0
        for route, frames in self._ports.receive(Plane.INSERT, _INSERTS):
            count += 1
            self._one(Plane.INSERT, route, frames, self._insert)
        return count

    def _pulls(self) -> None:
        for route, frames in self._ports.receive(Plane.PULL, _PULLS):
            self._one(Plane.PULL, route, frames, self._pull)

    def _one(self, plane: Plane, route: bytes, frames: list[Any], handle: Callable[[Session, Message], None]) -> None:
        """Read a message and do what it says; whoever sent what cannot be read, or done, is told."""
        self.counters.came_in(plane, frames)
        try:
            message = decode(frames, self._hall.limits)
        except Malformed as error:
            self._ports.refused(plane, route)
            self._refuse(plane, route, error)
            return
        try:
            if message.type is Type.HELLO and plane is Plane.CONTROL:
                session, reply = self._desk.hello(message, None)
                session.routes[plane] = route
                self._send(session, plane, reply)
                return
            session = self._hall.sessions.heard(message.session, plane, route)
            if message.type is Type.PING:
                self._send(session, plane, message.reply(Pong()))
            elif message.type is not Type.ERROR:
                handle(session, message)
        except Malformed as error:
            error.type, error.session = message.type, message.session
            error.sequence, error.number = message.sequence, message.number
            self._refuse(plane, route, error)

    def _refuse(self, plane: Plane, route: bytes, error: Malformed) -> None:
        self.counters.refused(error.code)
        answer = refuse(error)
        if answer is not None:
            self.counters.went_out(plane, frames := encode(answer))
            self._ports.send(plane, route, frames)

    def _send(self, session: Session, plane: Plane, message: Message) -> bool:
        route = session.routes.get(plane)
        if route is None:
            return False
        frames = encode(message)
        sent = self._ports.send(plane, route, frames)
        if sent:
            self.counters.went_out(plane, frames)
        return sent

    # -- what comes ------------------------------------------------------------------------------------------------------

    def _answer(self, session: Session, message: Message) -> None:
        reply = self._desk.answer(session, message)
        if reply is not None:
            self._send(session, Plane.CONTROL, reply)

    def _insert(self, session: Session, message: Message) -> None:
        body = message.body
        if not isinstance(body, Insert):
            raise Malformed(f"{message.type.name} is nothing for a server's insert plane")
        writer = session.writers.get(message.number)
        if writer is None:
            text = f"session has no writer {message.number}: open it (again)"
            raise Malformed(text, ErrorCode.UNKNOWN_WRITER)
        if session.in_flight_bytes + body.nbytes > self._hall.limits.in_flight_bytes:
            raise Malformed(f"{session.in_flight_bytes} bytes wait to be inserted: keep to the window", ErrorCode.LIMIT)
        gap = writer.intake.receive(writer, message.sequence, body, message.schema)
        again = message.sequence + 1 < writer.producer.received
        if gap or again or message.flags & ACK_NOW:
            self._unsaid[writer] = (session, gap)

    def _pull(self, session: Session, message: Message) -> None:
        body = message.body
        reader = session.readers.get(message.number)
        if reader is None:
            raise Malformed(f"session has no reader {message.number}: open it (again)", ErrorCode.UNKNOWN_READER)
        if isinstance(body, Pull):
            reader.grant(body.granted)
            reader.outlet.want(reader, self._clock())
        elif isinstance(body, Priorities):
            applied = self._applied(reader, body)
            self._send(session, Plane.PULL, message.reply(applied))
        elif isinstance(body, Return):
            reader.outlet.give_back(reader, body.leases.tolist())
        else:
            raise Malformed(f"{message.type.name} is nothing for a server's pull plane")

    def _applied(self, reader: ReaderState, body: Priorities) -> Applied:
        try:
            done = reader.outlet.table.prioritize(body.ids, body.values)
        except AsyncLoaderError as error:
            raise Malformed(str(error), ErrorCode.UNSUPPORTED) from error
        return Applied(done.applied, done.stale)

    # -- what goes -------------------------------------------------------------------------------------------------------

    def _flow(self) -> None:
        """Let batches out and inserts in, as the tables allow; each makes room for the other."""
        for table in self._hall.tables.values():
            sent = 0
            while True:
                came = table.intake.advance() if table.intake.blocked else False
                went = table.outlet.serve(self._deliver, self._clock(), _BATCHES - sent) if table.outlet.hungry else 0
                sent += went
                if sent >= _BATCHES:
                    self._more = True
                    break
                if not (came and table.outlet.hungry) and not (went and table.intake.blocked):
                    break

    def _deliver(self, reader: ReaderState, arrays: Arrays, again: bool) -> bool:
        session = self._session_of(reader)
        body = batch(reader.layout, list(arrays))
        message = Message(
            body, session.number, reader.sent - 1, reader.number, reader.layout.schema_id,
            REDELIVERED if again else 0, session.version,
        )  # fmt: skip
        return self._send(session, Plane.PULL, message)

    def _session_of(self, reader: ReaderState) -> Session:
        return next(session for session in self._hall.sessions if session.readers.get(reader.number) is reader)

    def _tell(self) -> None:
        """Acknowledge, once for all that came in this round, and answer what has waited for it."""
        for session in self._hall.sessions:
            for number, writer in list(session.writers.items()):
                _, gap = self._unsaid.pop(writer, (session, None))
                if gap is not None or writer.producer.applied != writer.told:
                    self._acknowledge(session, writer, bool(gap))
                if writer.closing is not None and (reply := self._desk.closed(session, number)) is not None:
                    self._send(session, Plane.CONTROL, reply)
        self._unsaid.clear()
        for session, answer in self._desk.late_answers():
            self._send(session, Plane.CONTROL, answer)

    def _acknowledge(self, session: Session, writer: WriterState, gap: bool) -> None:
        applied = writer.told = writer.producer.applied
        body = self._desk.ack(applied)
        if gap:  # what was received and waits for the table is sent again too, and dropped: a gap is rare
            body = Gap(applied, body.durable, body.window_bytes, body.window_rows)
        layout = writer.intake.layout.schema_id
        self._send(session, Plane.INSERT, Message(body, session.number, applied, writer.number, layout, 0, session.version))

    def _times(self) -> None:
        for session in self._hall.sessions.silent():
            self.counters.silent += 1
            self._hall.sessions.drop(session)
            self._desk.forget(session)
            self._hall.leave(session)
        now = self._clock()
        for table in self._hall.tables.values():
            for reader, reason in table.outlet.overdue(now):
                session = self._session_of(reader)
                self._on_pull(session, reader, reader.sent, Error.of(ErrorCode.TIMEOUT, reason))

    def _on_pull(self, session: Session, reader: ReaderState, sequence: int, body: Error | End) -> None:
        self._send(session, Plane.PULL, Message(body, session.number, sequence, reader.number, version=session.version))

    # -- the end ---------------------------------------------------------------------------------------------------------

    def _begin_to_end(self) -> None:
        self._hall.draining = True
        self._ending = Deadline(self._drain_s, self._clock)

    def _over(self) -> bool:
        """Whether there is nothing left to wait for. A DRAIN begins the end too."""
        if self._desk.drain_asked and self._ending is None:
            self._begin_to_end()
        if self._ending is None:
            return False
        return self._ending.expired or not any(table.intake.blocked for table in self._hall.tables.values())

    def _close(self) -> None:
        try:
            for session in self._hall.sessions:
                for reader in session.readers.values():
                    self._on_pull(session, reader, 0, End(reason="the server was shut down", count=reader.sent))
            for session, message in self._desk.drain_asked:
                self._send(session, Plane.CONTROL, message.reply(Done()))
        finally:
            self._ports.close()
            self._context.term()
            self._bell.close()
            for table in self._hall.tables.values():
                table.buffer.close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop, where this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, lambda *_: self.stop()) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # -- what it is ------------------------------------------------------------------------------------------------------

    def _welcome(self, version: int) -> Welcome:
        endpoints = self._ports.endpoints
        return Welcome(
            version=version, incarnation=self.incarnation, heartbeat_s=self._heartbeat_s, silence_s=self._silence_s,
            insert_endpoint=endpoints[Plane.INSERT], pull_endpoint=endpoints[Plane.PULL], memory_endpoint=None,
            limits=self._hall.limits, tables=tuple(self._hall.tables),
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        """What STATUS answers."""
        who = {"incarnation": self.incarnation.hex(), "pid": os.getpid(), "address": self._ports.endpoints[Plane.CONTROL]}
        return {**who, "version": NEWEST, **status_of(self._hall, self.counters)}
