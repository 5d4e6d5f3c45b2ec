"""The server's three sockets: frames in, frames out, neither ever waits.

::

    Acceptor ──▶ PeerConnection ──▶ MessageQueues ──▶ receive(plane)
                   ▲                                    │ route: the PeerConnection
                   └──── unsent, flushed by wait() ◀── send(plane, route)
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from async_loader.feeder.server.acceptor import REST_S, Acceptor, Bind, ConnectionEnds
from async_loader.feeder.server.peer_connection import HIGH_WATER, PeerConnection, flush_all
from async_loader.feeder.server.send_buffers import PATIENCE, MessageQueues, too_much
from async_loader.feeder.wire import Limits, Plane
from async_loader.feeder.wire.codes import CONTROL_BYTES, FRAMES
from async_loader.feeder.zmtp import Connection, Mechanism, Null, ProtocolError

_log = logging.getLogger("async_loader")
_SCRATCH_BYTES = 64 << 10
_LAST_WORDS_S = 1.0  # to send END, DONE, or the ERROR that ends a handshake
_UNREADY = 256  # connections within their handshake
_EVENTS = 64  # connections that are read before messages are taken; control comes on top, and
_STRANGERS = 8  # connections without a session
_FOR_ANSWERS = 4  # times as many answers may wait: each was asked for, and none is sent later


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
    unsent, ignored : int
        Messages that could not be sent; that were dropped after others that could not be read.
    violations, spared, faults : int
        Connections that were ended: for a protocol error; to make room; for an error here.
    """

    def __init__(
        self,
        endpoints: Mapping[Plane, str],
        limits: Limits,
        bind: Bind | None = None,
        mechanism: Callable[[], Mechanism] = Null,
        most: int = 4096,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoints: dict[Plane, str] = {}
        self.needed: Callable[[], Collection[PeerConnection]] = tuple
        self.parted = False
        self.unsent = self.ignored = self.violations = self.spared = self.faults = 0
        frame_bytes = max(limits.message_bytes, CONTROL_BYTES)
        self._sizes = frame_bytes, 2 * frame_bytes + (1 << 20), FRAMES + 1
        self._out_bytes = max(limits.in_flight_bytes, frame_bytes)
        self._mechanism, self._most, self._clock = mechanism, most, clock
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._links: dict[int, PeerConnection] = {}  # oldest first
        self._ends = ConnectionEnds()
        self._queues = MessageQueues()
        self._rest: float | None = None  # until when no connection is accepted
        self._wakes = False  # a session has parted
        self._all, self._control, self._strangers = (select.epoll() for _ in range(3))
        for inner in (self._control, self._strangers):
            self._all.register(inner.fileno(), select.EPOLLIN)
        self._acceptor = Acceptor(self._make_room)
        try:
            for plane in Plane:
                where = endpoints.get(plane, "")
                self.endpoints[plane] = self._acceptor.listen(plane, where, bind)
            self._acceptor.go_on(self._all)
        except BaseException:
            self.close()
            raise

    def connections(self) -> dict[str, int]:
        """Return how many are open, were ended, and were turned away, for STATUS."""
        return {
            "open": len(self._links), "violations": self.violations, "spared": self.spared,
            "turned_away": self._acceptor.turned_away, "faults": self.faults,
        }  # fmt: skip

    # -- waiting ---------------------------------------------------------------------------------

    def watch(self, fd: int) -> None:
        """Let `wait` end when this is readable, too."""
        self._all.register(fd, select.EPOLLIN)

    def open(self) -> None:
        """Take messages of all planes from now on; before, those of control only."""
        self._queues.held.clear()

    def wait(self, left_s: float | None) -> list[int]:
        """Wait until a message can be taken, or ``left_s`` are over.

        Readable descriptors of `watch` end the wait too, and are returned.
        """
        until = None if left_s is None else self._clock() + left_s
        while True:
            timeout = 0.0 if self._queues.backlog else self._left_s(until)
            events = self._all.poll(timeout, _EVENTS)
            now = self._clock()
            others = [fd for fd, mask in events if self._handle(fd, mask, now)]
            for fd, mask in [*self._control.poll(0), *self._strangers.poll(0, _STRANGERS)]:
                self._handle(fd, mask, now)
            self._tidy(now)
            over = until is not None and now >= until
            if others or self._queues.backlog or self._wakes or over:
                self._wakes = False
                return others

    def _left_s(self, until: float | None) -> float | None:
        moments = self._ends.moments()
        moments += [one for one in (until, self._rest) if one is not None]
        return max(0.0, min(moments) - self._clock()) if moments else None

    def _handle(self, fd: int, mask: int, now: float) -> bool:
        """Handle a ready descriptor; return whether it is one of `watch`."""
        link = self._links.get(fd)
        if link is not None:
            try:
                if mask & select.EPOLLOUT:
                    self._flush(link)
                if mask & ~select.EPOLLOUT and not link.ended:
                    self._read(link, now)
            except Exception:
                self._fault(link)
            return False
        if fd in self._acceptor:
            self._accept(fd, now)
            return False
        return fd not in (self._control.fileno(), self._strangers.fileno())

    def _fault(self, link: PeerConnection) -> None:
        """End a connection after an error of this package, which must not end the tables."""
        self.faults += 1
        _log.exception("a connection of the %s plane was ended", link.plane.value)
        self._drop(link)

    # -- connections -----------------------------------------------------------------------------

    def _accept(self, fd: int, now: float) -> None:
        try:
            for plane, sock in self._acceptor.accept(fd):
                assert isinstance(plane, Plane)
                if len(self._ends.unready) >= _UNREADY:
                    self._drop(next(iter(self._ends.unready)))
                    self.spared += 1
                if len(self._links) >= self._most and not self._make_room():
                    sock.close()
                    self._acceptor.turned_away += 1
                    continue
                self._enter(
                    PeerConnection(sock, plane, Connection(self._mechanism(), *self._sizes), now)
                )
        except OSError:
            self._rest = now + REST_S
            self._acceptor.rest(self._all)

    def _enter(self, link: PeerConnection) -> None:
        self._links[link.sock.fileno()] = link
        self._ends.unready[link] = None
        self._poll(link, select.EPOLLIN)
        self._answer(link)

    def _make_room(self) -> bool:
        """End the oldest connection without a session; return whether there was one."""
        needed = set(self.needed())
        spared = next((link for link in self._links.values() if link not in needed), None)
        if spared is None:
            return False
        self._drop(spared)
        self.spared += 1
        return True

    def _poll(self, link: PeerConnection, mask: int) -> None:
        """Wait for these events of a connection from now on; 0: for none."""
        known = self._control if link.plane is Plane.CONTROL else self._all
        link.watch(known if link.known else self._strangers, mask)

    def _drop(self, link: PeerConnection) -> None:
        """End a connection. Received messages of one with a session can still be taken."""
        if link.ended:
            return
        self._poll(link, 0)
        del self._links[link.sock.fileno()]
        self._ends.forget(link)
        link.close()
        if link.known:
            self.parted = self._wakes = True
        if not (link.listed and link.known):
            link.forget()
        self._weigh(link)

    def _read(self, link: PeerConnection, now: float) -> None:
        if link in self._ends.leaving:
            if link.discard(self._scratch):  # a close with unread bytes could lose the last words
                self._drop(link)
            return
        if link.holds():
            link.paused = True
            self._poll(link, 0)
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
        if connection.ready:
            self._ends.unready.pop(link, None)
        if connection.outgoing and not link.ended:
            self._answer(link)
        if not link.listed and (connection.messages or connection.cut_short):
            self._queues.add(link)
        if not link.known:
            self._weigh(link)

    def _weigh(self, link: PeerConnection) -> None:
        """Refuse the strangers that hold most, while all hold too much. See NOTE [strangers]."""
        for largest in self._queues.weigh(link, most := self._sizes[1] + (1 << 20)):
            self.spared += 1
            if largest.connection.ready:
                largest.send(too_much(most))
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
        self._ends.unready.pop(link, None)
        with contextlib.suppress(OSError):
            link.sock.shutdown(socket.SHUT_WR)
        self._ends.leaving[link] = self._clock() + _LAST_WORDS_S
        link.paused = False
        self._poll(link, select.EPOLLIN)

    def _answer(self, link: PeerConnection) -> None:
        link.answer()
        if link.unsent_bytes:
            self._poll(link, link.mask | select.EPOLLOUT)

    def _flush(self, link: PeerConnection) -> None:
        if link.flush():
            self._poll(link, select.EPOLLIN)

    def _tidy(self, now: float) -> None:
        """End connections whose time is over."""
        for link in self._ends.over(now):
            self._drop(link)
        if self._rest is not None and now >= self._rest:
            self._rest = None
            self._acceptor.go_on(self._all)

    # -- messages --------------------------------------------------------------------------------

    def receive(self, plane: Plane, most: int) -> Iterator[tuple[PeerConnection, list[Any]]]:
        """Yield up to ``most`` received messages: route and frames.

        See NOTE [whose turn is next].
        """
        return self._queues.receive(plane, most, self._settle)

    def _settle(self, link: PeerConnection) -> None:
        """Queue a connection again after its turn, read it on, or end it."""
        link.listed, link.turn = False, 0
        try:
            self._poll(link, link.mask)  # it may have a session now
            self._go_on(link)
            self._weigh(link)
        except Exception:
            self._fault(link)

    def _go_on(self, link: PeerConnection) -> None:
        connection = link.connection
        if link.refusals >= PATIENCE:
            self.ignored += len(connection.messages)
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
            self._queues.add(link)
        if link.paused and not link.ended and not connection.messages and not connection.cut_short:
            link.paused = False
            self._poll(link, select.EPOLLIN | (select.EPOLLOUT if link.unsent_bytes else 0))

    def refused(self, route: PeerConnection) -> None:
        """Count a message that could not be read, or was of no session: some end a connection."""
        route.refusals += 1

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
            self.unsent += 1
            if full and answer:
                self._drop(route)
            return False
        if route.unsent_bytes and not route.paused:
            self._poll(route, select.EPOLLIN | select.EPOLLOUT)
        return True

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Send what waits, for a second at most, and close everything. May be called again."""
        if self._all.closed:
            return
        self._acceptor.close()
        flush_all(self._links.values(), time.monotonic() + _LAST_WORDS_S)
        for link in list(self._links.values()):
            link.empty(self._scratch)
            self._drop(link)
        for epoll in (self._control, self._strangers, self._all):
            epoll.close()
