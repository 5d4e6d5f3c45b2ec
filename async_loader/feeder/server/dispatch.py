"""Decodes messages, finds their session, calls their handler, and answers errors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from async_loader.errors import Malformed
from async_loader.feeder.server.counters import Counters
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
Handle = Callable[[Session, Message], None]
Hello = Callable[[Message, Any], tuple[Session, Message]]


class Dispatcher:
    """Sends and receives for a server.

    Parameters
    ----------
    ports : ServerSockets
    sessions : Sessions
    limits : Limits
    counters : Counters
    """

    def __init__(
        self, ports: ServerSockets, sessions: Sessions, limits: Limits, counters: Counters
    ) -> None:
        self.ports, self._sessions, self._limits, self.counters = ports, sessions, limits, counters
        self.on_hello: Hello | None = None

    def receive(self, plane: Plane, most: int, most_bytes: int, handle: Handle) -> bool:
        """Handle up to ``most`` messages and ``most_bytes``; return whether there were no more."""
        nbytes = count = 0
        for route, frames in self.ports.receive(plane, most):
            count += 1
            size = sum(map(len, frames))
            nbytes += size
            self.counters.passed(plane, "in", size)
            self._one(plane, route, frames, handle)
            if nbytes >= most_bytes:
                return False
        return count < most

    def _one(self, plane: Plane, route: PeerConnection, frames: list[Any], handle: Handle) -> None:
        """Decode and handle one message; answer with ERROR if it cannot be decoded."""
        try:
            message = decode(frames, self._limits)
        except Malformed as error:
            self.ports.refused(route)
            self._refuse(plane, route, error)
            return
        self._attempt(plane, route, message, lambda: self._handle(plane, route, message, handle))

    def late(self, plane: Plane, session: Session, message: Message, handle: Handle) -> None:
        """Handle a message that was kept, if its session still exists."""
        route = session.routes.get(plane)
        if route is not None and self._sessions.get(session.number) is session:
            self._attempt(plane, route, message, lambda: handle(session, message))

    def _attempt(
        self, plane: Plane, route: PeerConnection, message: Message, attempt: Callable[[], None]
    ) -> None:
        """Call ``attempt``; answer with ERROR what it raises."""
        try:
            attempt()
        except Malformed as error:
            if error.code == ErrorCode.UNKNOWN_SESSION:
                self.ports.refused(route)
            self._answer_error(plane, route, message, error)
        except Exception as error:  # a fault of this package must not end the others
            self._answer_error(plane, route, message, self.fault(message.type.name, error))

    def fault(self, what: str, error: Exception) -> Malformed:
        """Count and log an unexpected exception while ``what`` was answered; return its ERROR."""
        self.counters.faults += 1
        log.error("the feeder could not answer %s", what, exc_info=error)
        text = f"{type(error).__name__}: {error}; the server's log has more"
        return Malformed(text, ErrorCode.INTERNAL)

    def _handle(
        self, plane: Plane, route: PeerConnection, message: Message, handle: Handle
    ) -> None:
        kind = message.type
        if kind is Type.HELLO:
            if plane is not Plane.CONTROL or self.on_hello is None:
                raise Malformed(f"HELLO is for the control plane, not for {plane.value}")
            session, reply = self.on_hello(message, route.user)
            session.routes[plane] = route
            route.known = True
            self.send(session, plane, reply)
            return
        session = self._sessions.heard(message.session, plane, route, route.user)
        route.known = True
        if kind is Type.PING:
            self.send(session, plane, message.reply(Pong()))
        if kind is Type.END and plane is Plane.CONTROL:
            session.said_end = True
        elif kind is not Type.ERROR:
            handle(session, message)

    def _answer_error(
        self, plane: Plane, route: PeerConnection, message: Message, error: Malformed
    ) -> None:
        error.type, error.session = message.type, message.session
        error.sequence, error.number = message.sequence, message.number
        self._refuse(plane, route, error)

    def _refuse(self, plane: Plane, route: PeerConnection, error: Malformed) -> None:
        self.counters.refused(error.code)
        answer = refuse(error)
        if answer is not None:
            self._send(plane, route, answer, is_answer=True)

    def answer(self, session: Session, plane: Plane, reply: Message) -> bool:
        """Send an answer; return whether it was taken. An ERROR goes out if it cannot be encoded.

        It raises no exception, since it is called outside of `receive` too, and one answer must
        not end the loop. A peer that has too many answers waiting loses its connection, so that
        its client asks again: a lost answer would leave it waiting.
        """
        route = session.routes.get(plane)
        if route is None:
            return False
        try:
            return self._send(plane, route, reply, is_answer=True)
        except Malformed as error:
            refusal = error
        except Exception as error:
            refusal = self.fault(reply.type.name, error)
        self.counters.refused(refusal.code)
        self._send(plane, route, reply.reply(Error.of_malformed(refusal)), is_answer=True)
        return False

    def send(self, session: Session, plane: Plane, message: Message) -> bool:
        """Send over the session's route; return whether it was taken. Raises Malformed."""
        route = session.routes.get(plane)
        return route is not None and self._send(plane, route, message)

    def _send(
        self, plane: Plane, route: PeerConnection, message: Message, is_answer: bool = False
    ) -> bool:
        frames = encode(message)
        nbytes = sum(
            [len(frame) if type(frame) is bytes else memoryview(frame).nbytes for frame in frames]
        )
        if not self.ports.send(plane, route, frames, nbytes, is_answer):
            return False
        self.counters.passed(plane, "out", nbytes)
        return True

    def tell(
        self,
        session: Session,
        plane: Plane,
        number: int,
        sequence: int,
        body: Body,
        schema: int = 0,
    ) -> bool:
        """Send a message that is not an answer."""
        return self.send(session, plane, Message(body, session.number, sequence, number, schema))

    def error(
        self,
        session: Session,
        plane: Plane,
        number: int,
        sequence: int,
        code: ErrorCode,
        text: str,
        expected: int | None = None,
    ) -> None:
        """Send an ERROR that is not an answer."""
        self.counters.refused(code)
        self.tell(session, plane, number, sequence, Error.of(code, text, expected))
