"""The server's sockets: one listens for each plane, and a connection is a route.

# NOTE [whose turn is next]
Connections with messages wait in a queue of their plane. Each has a turn of some messages, and goes
to the end of the queue. So a flood costs the others its turns, and no more. Connections without a
session have a queue of their own, and a few turns in a round: a flood of many costs as few.

# NOTE [strangers]
A connection without a session may be any process. So all of them together hold no more memory than
the largest message takes; beyond, the one that holds most is refused.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from async_loader.errors import Malformed
from async_loader.feeder.addresses import parse
from async_loader.feeder.server import acceptor
from async_loader.feeder.server.peer_connection import HIGH_WATER, PeerConnection, flush_all
from async_loader.feeder.wire import ErrorCode, Limits, Plane, encode, refuse
from async_loader.feeder.wire.codes import CONTROL_BYTES, FRAMES
from async_loader.feeder.zmtp import Connection, Null, ProtocolError

_log = logging.getLogger("async_loader")
_SCRATCH_BYTES = 64 << 10
_HANDSHAKE_S = 5.0
_LAST_WORDS_S = 1.0  # to send END, DONE, or the ERROR that ends a handshake
_EVENTS = 4096
_FOR_ANSWERS = 4  # times as many answers may wait: each was asked for, and none is sent later
_TURN = 16
"""Messages of one connection before the others have their turn."""
_ACCEPTED = 16
"""Connections of one listening socket before the others: a handshake with keys costs 0.3 ms."""
_REST_S = 0.5
"""Pause after a connection could be neither accepted nor another one ended."""
_STRANGERS = 4
"""Connections without a session that are read, and that have their turn, in a round."""
_PATIENCE = 16
"""Messages that cannot be read, or are of no session, before the connection is ended."""


class ServerSockets:
    """Listening sockets, and the connections of each.

    Parameters
    ----------
    endpoints : mapping of Plane to str
        Where each is bound; the system chooses a port of 0.
    limits : Limits
    bind : callable, optional
        Takes a plane's name; returns a listening socket and the endpoint at which clients find it.
        Replaces ``endpoints``.
    mechanism : callable, optional
        Makes the ZMTP mechanism of a connection; by default one without keys.
    most : int
        Connections at the same time: beyond, the oldest without a session is ended.
    clock : callable
        Monotonic seconds.

    Attributes
    ----------
    needed : callable
        Returns the routes of sessions, which are not ended to make room.
    parted : bool
        Whether a connection of a session has ended; the code that looks into it clears it.
    violations, spared, turned_away, faults : int
        Connections that were ended: for a protocol error; to make room; as all others are needed;
        for an error here.
    """

    def __init__(
        self,
        endpoints: Mapping[Plane, str],
        limits: Limits,
        bind: acceptor.Bind | None = None,
        mechanism: Callable[[], Null] = Null,
        most: int = 4096,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoints: dict[Plane, str] = {}
        self.needed: Callable[[], Collection[PeerConnection]] = tuple
        self.parted = False
        self.violations = self.spared = self.turned_away = self.faults = 0
        frame_bytes = max(limits.message_bytes, CONTROL_BYTES)
        self._sizes = frame_bytes, 2 * frame_bytes + (1 << 20), FRAMES + 1
        self._out_bytes = max(limits.in_flight_bytes, frame_bytes)
        self._mechanism, self._most, self._clock = mechanism, most, clock
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._links: dict[int, PeerConnection] = {}  # oldest first
        self._queues: dict[tuple[Plane, bool], deque[PeerConnection]] = {
            (plane, known): deque() for plane in Plane for known in (False, True)
        }
        self._held: dict[PeerConnection, int] = {}  # bytes of strangers
        self._due: float | None = None  # no connection's time is over before
        self._rest: float | None = None  # until when no connection is accepted
        self._wakes = False  # a session has parted
        self._epoll, self._strangers = select.epoll(), select.epoll()
        self._epoll.register(self._strangers.fileno(), select.EPOLLIN)
        self._listeners: dict[int, tuple[socket.socket, Plane]] = {}
        self._accepting: list[int] = []
        try:
            for plane in Plane:
                listener, self.endpoints[plane] = (
                    acceptor.listen(parse(endpoints[plane])) if bind is None else bind(plane.value)
                )
                self._listeners[listener.fileno()] = listener, plane
                self.watch(listener.fileno(), accepts=True)
        except BaseException:
            self.close()
            raise

    def connections(self) -> dict[str, int]:
        """Return how many are open, were ended, and were turned away, for STATUS."""
        return {
            "open": len(self._links), "violations": self.violations, "spared": self.spared,
            "turned_away": self.turned_away, "faults": self.faults,
        }  # fmt: skip

    # -- waiting ---------------------------------------------------------------------------------

    def watch(self, fd: int, accepts: bool = False) -> None:
        """Let `wait` end when this is readable, too. ``accepts``: it is a listening socket."""
        self._epoll.register(fd, select.EPOLLIN)
        if accepts:
            self._accepting.append(fd)

    def rest(self) -> None:
        """Accept nothing for a while: no descriptor is left, and the loop must not spin."""
        if self._rest is None:
            self._rest = self._clock() + _REST_S
            for fd in self._accepting:
                self._epoll.unregister(fd)

    def wait(self, left_s: float | None) -> list[int]:
        """Wait until a message can be taken, or ``left_s`` are over.

        Readable descriptors of `watch` end the wait too, and are returned.
        """
        until = None if left_s is None else self._clock() + left_s
        while True:
            events = self._epoll.poll(self._left_s(until), _EVENTS)
            now = self._clock()
            if any(fd == self._strangers.fileno() for fd, _ in events):
                # the kernel gives each of them its turn
                events += self._strangers.poll(0, _STRANGERS)
            others = [fd for fd, mask in events if self._handle(fd, mask, now)]
            self._tidy(now)
            if others or self._backlog or self._wakes or (until is not None and now >= until):
                self._wakes = False
                return others

    @property
    def _backlog(self) -> bool:
        return any(self._queues.values())

    def _left_s(self, until: float | None) -> float | None:
        if self._backlog:
            return 0.0
        moments = [one for one in (until, self._rest, self._due) if one is not None]
        return max(0.0, min(moments) - self._clock()) if moments else None

    def _handle(self, fd: int, mask: int, now: float) -> bool:
        """Handle a ready descriptor; return whether it is one of `watch`."""
        link = self._links.get(fd)
        if link is None:
            if fd not in self._listeners:
                return fd != self._strangers.fileno()
            self._accept(fd, now)
            return False
        try:
            if mask & select.EPOLLOUT and link.flush():
                self._watch(link, select.EPOLLIN)
            if mask & ~select.EPOLLOUT and not link.ended:
                self._read(link)
        except Exception:
            self._fault(link)
        return False

    def _fault(self, link: PeerConnection) -> None:
        """End a connection after an error of this package, which must not end the tables."""
        self.faults += 1
        _log.exception("a connection of the %s plane was ended", link.plane.value)
        self._drop(link)

    def _tidy(self, now: float) -> None:
        """End connections whose time is over."""
        if self._due is not None and now >= self._due:
            for link in list(self._links.values()):
                if link.ends_at is not None and link.ends_at <= now:
                    self._drop(link)
            moments = (link.ends_at for link in self._links.values())
            self._due = min((one for one in moments if one is not None), default=None)
        if self._rest is not None and now >= self._rest:
            self._rest = None
            for fd in self._accepting:
                self._epoll.register(fd, select.EPOLLIN)

    # -- connections -----------------------------------------------------------------------------

    def _accept(self, fd: int, now: float) -> None:
        """Accept some of the waiting connections of a listening socket.

        Where no descriptor is left, a connection that can be spared is ended; if all are needed,
        none is accepted for a while.
        """
        listener, plane = self._listeners[fd]
        for _ in range(_ACCEPTED):
            try:
                sock = listener.accept()[0]
            except BlockingIOError:
                return
            except OSError as error:  # others: it was gone before it was accepted
                if error.errno in acceptor.NO_ROOM and not self._make_room():
                    self.rest()
                    return
                continue
            if len(self._links) >= self._most and not self._make_room():
                sock.close()
                self.turned_away += 1
                continue
            acceptor.prepare(sock)
            link = PeerConnection(sock, plane, Connection(self._mechanism(), *self._sizes))
            self._links[sock.fileno()] = link
            self._end_at(link, now + _HANDSHAKE_S)
            self._watch(link, select.EPOLLIN)
            self._answer(link)

    def _watch(self, link: PeerConnection, mask: int) -> None:
        """Wait for these events of a connection from now on; 0: for none."""
        link.watch(self._epoll if link.known else self._strangers, mask)

    def _end_at(self, link: PeerConnection, moment: float) -> None:
        link.ends_at = moment
        self._due = moment if self._due is None else min(self._due, moment)

    def _make_room(self) -> bool:
        """End the oldest connection without a session; return whether there was one."""
        needed = set(self.needed())
        spared = next((link for link in self._links.values() if link not in needed), None)
        if spared is None:
            return False
        self._drop(spared)
        self.spared += 1
        return True

    def _drop(self, link: PeerConnection) -> None:
        """End a connection. Received messages of one with a session can still be taken."""
        if link.ended:
            return
        self._watch(link, 0)
        del self._links[link.sock.fileno()]
        link.close()
        if link.known:
            self.parted = self._wakes = True
        if not (link.listed and link.known):
            link.forget()
        self._weigh(link)

    def _read(self, link: PeerConnection) -> None:
        if link.leaving:
            if link.discard(self._scratch):  # a close with unread bytes could lose the last words
                self._drop(link)
            return
        if link.holds():
            link.paused = True
            self._watch(link, 0)
            return
        try:
            alive = link.read(self._scratch)
        except OSError:
            alive = False
        except ProtocolError as error:
            self._violated(link, error)
            return
        self._came(link)
        if not alive:
            self._drop(link)

    def _came(self, link: PeerConnection) -> None:
        """Handle what was received: answers of the protocol, messages."""
        connection = link.connection
        if connection.ready and not link.leaving:
            link.ends_at = None
        if connection.outgoing and not link.ended:
            self._answer(link)
        if not link.listed and (connection.messages or connection.cut_short):
            self._queue(link)
        if not link.known:
            self._weigh(link)

    def _queue(self, link: PeerConnection) -> None:
        link.listed = True
        self._queues[link.plane, link.known].append(link)

    def _weigh(self, link: PeerConnection) -> None:
        """Note what a stranger holds; refuse those that hold most. See NOTE [strangers]."""
        self._held.pop(link, None)
        if not link.known and (held := link.connection.memory):
            self._held[link] = held
        most = self._sizes[1] + (1 << 20)
        while self._held and sum(self._held.values()) > most:
            largest = max(self._held, key=self._held.__getitem__)
            del self._held[largest]
            largest.forget()
            self.spared += 1
            text = f"clients that have no session yet hold {most} bytes here, which is the limit"
            refusal = refuse(Malformed(f"{text}: say HELLO first", ErrorCode.LIMIT))
            if largest.connection.ready and refusal is not None:
                largest.send(encode(refusal))
            self._part(largest)

    def _violated(self, link: PeerConnection, error: ProtocolError) -> None:
        """End a connection for a protocol error.

        Earlier messages count, and the peer may read why.
        """
        self.violations += 1
        self._came(link)
        if not error.answer:
            self._drop(link)
        elif not link.ended:
            link.connection.outgoing.append(error.answer)
            self._answer(link)
            self._part(link)

    def _part(self, link: PeerConnection) -> None:
        """Send nothing more, and end the connection when the peer has closed it, or soon."""
        if link.ended:
            return
        with contextlib.suppress(OSError):
            link.sock.shutdown(socket.SHUT_WR)
        link.leaving, link.paused = True, False
        self._end_at(link, self._clock() + _LAST_WORDS_S)
        self._watch(link, select.EPOLLIN)

    def _answer(self, link: PeerConnection) -> None:
        link.answer()
        if link.unsent_bytes:
            self._watch(link, link.mask | select.EPOLLOUT)

    # -- messages --------------------------------------------------------------------------------

    def receive(self, plane: Plane, most: int) -> Iterator[tuple[PeerConnection, list[Any]]]:
        """Yield up to ``most`` received messages: route and frames.

        See NOTE [whose turn is next].
        """
        known, strangers = self._queues[plane, True], self._queues[plane, False]
        turns = _STRANGERS
        while (known or (strangers and turns > 0)) and most > 0:
            if strangers and turns > 0:
                link, turns = strangers.popleft(), turns - 1
            else:
                link, most = known.popleft(), most - 1
            messages, turn = link.connection.messages, _TURN
            try:
                while messages and turn > 0 and most > 0 and link.refusals < _PATIENCE:
                    frames, nbytes = messages.popleft()
                    link.connection.held_bytes -= nbytes
                    turn -= 1
                    most -= 1
                    yield link, frames
            finally:
                self._settle(link)

    def _settle(self, link: PeerConnection) -> None:
        """Queue a connection again after its turn, read it on, or end it."""
        link.listed = False
        try:
            self._watch(link, link.mask)  # it may have a session now
            self._go_on(link)
            self._weigh(link)
        except Exception:
            self._fault(link)

    def _go_on(self, link: PeerConnection) -> None:
        connection = link.connection
        if link.refusals >= _PATIENCE:
            link.forget()
            self._part(link)
            return
        if connection.cut_short and not connection.messages:
            try:
                link.resume(self._scratch)
            except ProtocolError as error:
                self._violated(link, error)
            else:
                self._came(link)
        elif connection.messages:
            self._queue(link)
        if link.paused and not link.ended and not connection.messages and not connection.cut_short:
            link.paused = False
            mask = select.EPOLLOUT if link.unsent_bytes else 0
            self._watch(link, select.EPOLLIN | mask)

    def send(
        self,
        plane: Plane,
        route: PeerConnection,
        frames: list[Any],
        nbytes: int,
        answer: bool = False,
    ) -> bool:
        """Send without blocking. Return False if the peer is gone or its queue is full.

        Large frames are not copied: do not change them until the peer has them. A peer with too
        many unsent answers loses its connection, which tells its client to ask again.
        """
        times = _FOR_ANSWERS if answer else 1
        full = route.full(nbytes, times * HIGH_WATER[plane][1], times * self._out_bytes)
        if full or not route.send(frames):
            if full and answer:
                self._drop(route)
            return False
        if route.unsent_bytes and not route.paused:
            self._watch(route, select.EPOLLIN | select.EPOLLOUT)
        return True

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Send what waits, for a second at most, and close everything. May be called again."""
        if self._epoll.closed:
            return
        for listener, _ in self._listeners.values():
            acceptor.close(listener)
        flush_all(self._links.values(), time.monotonic() + _LAST_WORDS_S)
        for link in list(self._links.values()):
            link.empty(self._scratch)
            self._drop(link)
        self._strangers.close()
        self._epoll.close()
