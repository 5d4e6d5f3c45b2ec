"""Decodes messages, finds their session and their handler, and sends answers and errors.

# NOTE [slow work]
A save writes gigabytes. The loop hands it to a thread, serves all clients meanwhile, and is woken
when it is done. A table that is being loaded rests until then: INSERTs for it are refused for now
and sent again; messages that need a table are kept, of whichever table, and handled in order.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

from async_loader.errors import (
    AsyncLoaderError,
    ConfigError,
    CorruptCheckpoint,
    Malformed,
    NotEnoughData,
    OutOfMemory,
    SchemaError,
    Timeout,
)
from async_loader.feeder.server.peer_connection import PeerConnection
from async_loader.feeder.server.sessions import Session, Sessions
from async_loader.feeder.server.sockets import ServerSockets
from async_loader.feeder.wire import (
    Body,
    Error,
    ErrorCode,
    Limits,
    Message,
    Plane,
    Pong,
    Type,
    decode,
    encode,
    refuse,
)

log = logging.getLogger("async_loader")
Handler = Callable[[Session, Message, Any], Message | None]
"""Returns the answer; ``None``: it comes later, or never."""
_MOST_KEPT = 1 << 12
_OF_TABLES = {
    Type.OPEN_WRITER, Type.CLOSE_WRITER, Type.CLOSE_READER, Type.ABOUT, Type.CLEAR, Type.SAVE,
    Type.LOAD, Type.GET, Type.UPDATE, Type.DELETE, Type.PRIORITIZE, Type.TOTALS,
}  # fmt: skip
_CODES: tuple[tuple[type[BaseException], ErrorCode], ...] = (
    (NotEnoughData, ErrorCode.NOT_ENOUGH),
    (SchemaError, ErrorCode.SCHEMA),
    (ConfigError, ErrorCode.CONFIG),
    (Timeout, ErrorCode.TIMEOUT),
    (OutOfMemory, ErrorCode.OUT_OF_MEMORY),
    (CorruptCheckpoint, ErrorCode.CORRUPT),
    (AsyncLoaderError, ErrorCode.UNSUPPORTED),
    (OSError, ErrorCode.FILES),
)


def refused(error: BaseException) -> Malformed | None:
    """Return the ERROR of an exception, with its text; ``None`` for one of this package's code."""
    if isinstance(error, Malformed):
        return error
    code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    if code is None:
        return None
    number = error.errno if code is ErrorCode.FILES else getattr(error, "there", None)  # type: ignore[attr-defined]
    return Malformed(str(error), code, number)


def too_late(wait_s: float, why: str) -> Malformed:
    """Return the ERROR of a call that has waited long enough."""
    text = f"{abs(wait_s):g} s have passed, and still cannot sample: {why}"
    return Malformed(text, ErrorCode.TIMEOUT)


class Dispatcher:
    """Sends and receives for a server.

    Parameters
    ----------
    sockets : ServerSockets
    sessions : Sessions
    limits : Limits
    counters : Counter of str
        Of messages and bytes by plane, of refusals, and of ``faults``, which are errors here.
    resting : callable
        Returns whether a table is being loaded.

    Attributes
    ----------
    handlers : dict
        By plane and type of message.
    on_hello : callable
        Opens the session of a HELLO and a user; returns it and the answer.
    """

    on_hello: Callable[[Message, str | None], tuple[Session, Message]]

    def __init__(
        self,
        sockets: ServerSockets,
        sessions: Sessions,
        limits: Limits,
        counters: Counter[str],
        resting: Callable[[], bool],
    ) -> None:
        self._sockets, self._sessions, self._limits = sockets, sessions, limits
        self._counters, self._resting = counters, resting
        self.handlers: dict[Plane, dict[Type, Handler]] = {
            plane: {
                Type.PING: lambda session, message, body: message.reply(Pong()),
                Type.ERROR: lambda session, message, body: None,
            }
            for plane in Plane
        }
        self._kept: list[tuple[Plane, Session, Message]] = []
        self._names = {
            (plane, way): (f"messages_{plane.value}_{way}", f"bytes_{plane.value}_{way}")
            for plane in Plane
            for way in ("in", "out")
        }
        counters.update(dict.fromkeys(("faults", *chain(*self._names.values())), 0))

    def receive(self, plane: Plane, most: int, most_bytes: int) -> bool:
        """Handle up to ``most`` messages and ``most_bytes``; return whether there were no more."""
        nbytes = count = 0
        for route, frames in self._sockets.receive(plane, most):
            count += 1
            size = sum(map(len, frames))
            nbytes += size
            self._passed(plane, "in", size)
            try:
                message = decode(frames, self._limits)
            except Malformed as error:
                route.refusals += 1
                self._refuse(plane, route, error)
            else:
                self._handle(plane, route, message)
            if nbytes >= most_bytes:
                return False
        return count < most

    def handle_kept(self) -> None:
        """Handle the messages that were kept while a table rested."""
        if not self._kept or self._resting():
            return
        kept, self._kept = self._kept, []
        for plane, session, message in kept:
            route = session.routes.get(plane)
            if route is not None and self._sessions.get(session.number) is session:
                self._handle(plane, route, message)

    def _handle(self, plane: Plane, route: PeerConnection, message: Message) -> None:
        """Handle a message; answer with ERROR what that raises."""
        try:
            if message.type is Type.HELLO and plane is Plane.CONTROL:
                session, reply = self.on_hello(message, route.user)
                session.routes[plane] = route
                route.known = True
                self.answer(session, plane, reply)
                return
            session = self._sessions.heard(message.session, plane, route, route.user)
            route.known = True
            session.asked.add(message.type)
            answer = self._handled(plane, session, message)
        except Exception as error:  # a fault of this package must not end the others
            refusal = self.refusal(message.type.name, error)
            if refusal.code == ErrorCode.UNKNOWN_SESSION:
                route.refusals += 1
            refusal.type, refusal.session = message.type, message.session
            refusal.sequence, refusal.number = message.sequence, message.number
            self._refuse(plane, route, refusal)
            return
        if answer is not None:
            self.answer(session, plane, answer)

    def _handled(self, plane: Plane, session: Session, message: Message) -> Message | None:
        handler = self.handlers[plane].get(message.type)
        if handler is None:
            raise Malformed(
                f"{message.type.name} is not a message for a server's {plane.value} plane"
            )
        if message.type in _OF_TABLES and self._resting():
            if len(self._kept) >= _MOST_KEPT:
                text = f"{_MOST_KEPT} messages wait until a table is loaded, which is the limit"
                raise Malformed(f"{text}: ask later", ErrorCode.LIMIT)
            self._kept.append((plane, session, message))
            return None
        return handler(session, message, message.body)

    def refusal(self, what: str, error: BaseException) -> Malformed:
        """Return the ERROR of what was raised while ``what`` was answered.

        An unexpected exception is counted and logged.
        """
        known = refused(error)
        if known is not None:
            return known
        self._counters["faults"] += 1
        log.error("the feeder could not answer %s", what, exc_info=error)
        text = f"{type(error).__name__}: {error}; the server's log has more"
        return Malformed(text, ErrorCode.INTERNAL)

    def _passed(self, plane: Plane, way: str, nbytes: int) -> None:
        messages, size = self._names[plane, way]
        self._counters[messages] += 1
        self._counters[size] += nbytes

    def _refused(self, error: Malformed) -> None:
        self._counters[f"refused_{ErrorCode(error.code).name.lower()}"] += 1

    def _refuse(self, plane: Plane, route: PeerConnection, error: Malformed) -> None:
        self._refused(error)
        answer = refuse(error)
        if answer is not None:
            self._send(plane, route, answer, is_answer=True)

    def answer(self, session: Session, plane: Plane, reply: Message) -> None:
        """Send an answer. An ERROR goes out if it cannot be encoded.

        It raises no exception, since one answer must not end the loop. A peer that has too many
        answers waiting loses its connection, so that its client asks again: a lost answer would
        leave it waiting.
        """
        route = session.routes.get(plane)
        if route is None:
            return
        try:
            self._send(plane, route, reply, is_answer=True)
        except Exception as error:
            refusal = self.refusal(reply.type.name, error)
            self._refused(refusal)
            self._send(plane, route, reply.reply(Error.of_malformed(refusal)), is_answer=True)

    def _send(
        self, plane: Plane, route: PeerConnection, message: Message, is_answer: bool = False
    ) -> bool:
        frames = encode(message)
        nbytes = sum(
            [len(frame) if type(frame) is bytes else memoryview(frame).nbytes for frame in frames]
        )
        if not self._sockets.send(plane, route, frames, nbytes, is_answer):
            return False
        self._passed(plane, "out", nbytes)
        return True

    def tell(
        self,
        session: Session,
        plane: Plane,
        number: int,
        sequence: int,
        body: Body,
        schema: int = 0,
        flags: int = 0,
    ) -> bool:
        """Send a message that is not an answer; return whether it was taken. Raises Malformed."""
        route = session.routes.get(plane)
        message = Message(body, session.number, sequence, number, schema, flags)
        return route is not None and self._send(plane, route, message)

    def error(
        self, session: Session, plane: Plane, number: int, sequence: int, error: Malformed
    ) -> None:
        """Send an ERROR that is not an answer."""
        self._refused(error)
        self.tell(session, plane, number, sequence, Error.of_malformed(error))
