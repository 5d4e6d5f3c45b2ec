"""The server's three sockets: frames in, frames out, neither ever waits. Understands no message.

::

    doors ──▶ Link ──▶ line of its plane ──▶ receive(plane)
                ▲                                 │ route: the Link
                └──── out, flushed by wait() ◀── send(plane, route)

NOTE [whose turn is next]. `wait` reads each connection for a turn, and not at all while enough of it waits to be taken: the rest
stays in the kernel, and soon at the peer. `receive` goes round the connections that have messages: a session's has its turn
after each of one that has no session yet. So a peer that floods, or is slow, costs others a turn and no more, and thousands of
peers without a session cost those that have one half of the time.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from typing import Any

from async_loader.feeder.addresses import parse
from async_loader.feeder.listen_sockets import listen
from async_loader.feeder.server.acceptor import REST_S, Acceptor
from async_loader.feeder.server.peer_connection import PeerConnection
from async_loader.feeder.wire import Limits
from async_loader.feeder.wire.bounds import FRAMES
from async_loader.feeder.zmtp import Connection, Mechanism, Null, ProtocolError

_log = logging.getLogger("async_loader")
_SCRATCH_BYTES = 64 << 10
_LEAST_BYTES = 64 << 10  # that a frame may have whatever the limits say: a control body
_PATIENCE = 16  # messages that cannot be read, or are of no session
_MOST_LEFT = 256  # connections of no session that have ended, with messages that were not taken yet
_TURN = 16  # messages of one connection before the others have their turn
_HELD_BYTES = 8 << 20  # of one connection that wait to be taken: then it is not read
_HANDSHAKE_S = 5.0
_LAST_WORDS_S = 1.0  # for END, and the answer to DRAIN; for the ERROR that ends a handshake
_UNREADY = 256  # connections whose handshake is not over
_EVENTS = 64  # connections that are read before messages are taken; but for control
_LOOK_S = 0.25  # how often at most silent peers are looked for


class Plane(Enum):
    """Which of the server's sockets. Separate, so that a large batch never stands before a heartbeat."""

    CONTROL = "control"
    INSERT = "insert"
    PULL = "pull"
    __hash__ = object.__hash__  # that of Enum is Python code, and a round looks up some dozens of them


# Messages of one peer that wait here to be read, and to be taken by it. Rows and batches can be large: what stays behind waits
# at the peer; a learner that does not read what it asked for is sent no more than this.
_HIGH_WATER = {Plane.CONTROL: (256, 256), Plane.INSERT: (64, 1024), Plane.PULL: (256, 128)}
Bind = Callable[[str], tuple[socket.socket, str]]


class ServerSockets:
    """Listening sockets, and the connections of each.

    Parameters
    ----------
    endpoints : mapping of Plane to str
        Where each is bound; a port of 0 in the second and third is filled in.
    limits : Limits
    bind : callable, optional
        Given a plane's name, a listening socket and the endpoint at which clients find it, in place of ``endpoints``.
    mechanism : callable, optional
        Makes the mechanism of a connection; without, there are no keys.
    most : int
        Connections at the same time: beyond, the oldest that can be spared is ended.
    clock : callable
        Monotonic seconds.

    Attributes
    ----------
    needed : callable
        The routes that cannot be spared.
    unsent, ignored : int
        Messages that could not be sent; that were not looked at, after others that could not be read.
    violations, spared, faults : int
        Connections that were ended: for what they sent; to make room; for an error of this package.
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
        self.unsent = self.ignored = self.violations = self.spared = self.faults = 0
        frame_bytes = max(limits.message_bytes, _LEAST_BYTES)
        self._sizes = frame_bytes, 2 * frame_bytes + (1 << 20), FRAMES + 1
        self._out_bytes = max(limits.in_flight_bytes, frame_bytes)
        self._mechanism, self._most, self._clock = mechanism, most, clock
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._links: dict[int, PeerConnection] = {}  # in the order in which they came
        self._unready: dict[PeerConnection, None] = {}
        self._leaving: dict[PeerConnection, float] = {}  # an ERROR was sent: until when the peer may read it
        self._mortal: dict[PeerConnection, None] = {}  # said how long they may be silent
        self._lines: dict[Plane, deque[PeerConnection]] = {plane: deque() for plane in Plane}  # of sessions
        self._strangers: dict[Plane, deque[PeerConnection]] = {plane: deque() for plane in Plane}
        self._left: deque[PeerConnection] = deque()  # ended, with messages that were not taken yet
        self._held = {Plane.INSERT, Plane.PULL}
        self._rest: float | None = None  # until when doors are not looked at
        self._look = 0.0
        self._all, self._control = select.epoll(), select.epoll()
        self._all.register(self._control.fileno(), select.EPOLLIN)
        self._doors = Acceptor(self._make_room)
        try:
            for plane in Plane:
                where = endpoints.get(plane, "")
                listener, self.endpoints[plane] = listen(parse(where)) if bind is None else bind(plane.value)
                self._all.register(self._doors.add(plane, listener), select.EPOLLIN)
        except BaseException:
            self.close()
            raise

    def connections(self) -> dict[str, int]:
        """How many are open, and how many were ended or turned away, for STATUS."""
        return {
            "open": len(self._links), "violations": self.violations, "spared": self.spared,
            "turned_away": self._doors.turned_away, "faults": self.faults,
        }  # fmt: skip

    # -- waiting ---------------------------------------------------------------------------------

    def watch(self, fd: int) -> None:
        """Let `wait` end when this is readable, too."""
        self._all.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Until now it was watched; it may be closed already."""
        with contextlib.suppress(OSError, ValueError):
            self._all.unregister(fd)

    def open(self) -> None:
        """From now on messages of all planes are taken; until now those of control only."""
        self._held.clear()

    def wait(self, left_s: float | None) -> list[int]:
        """Until a message was received that is taken now, or ``left_s`` are over.

        Descriptors of `watch` that are readable end it too, and are returned.
        """
        until = None if left_s is None else self._clock() + left_s
        while True:
            timeout = 0.0 if self._backlog() else self._left_s(until)
            events = self._all.poll(timeout, _EVENTS)
            now = self._clock()
            others = [fd for fd, mask in events if self._handle(fd, mask, now)]
            for fd, mask in self._control.poll(0):
                self._handle(fd, mask, now)
            self._tidy(now)
            if others or self._backlog() or (until is not None and now >= until):
                return others

    def _backlog(self) -> bool:
        lines, strangers, held = self._lines, self._strangers, self._held
        return any((lines[one] or strangers[one]) and one not in held for one in lines)

    def _left_s(self, until: float | None) -> float | None:
        moments = [] if until is None else [until]
        if self._unready:
            moments.append(next(iter(self._unready)).since + _HANDSHAKE_S)
        if self._leaving:
            moments.append(next(iter(self._leaving.values())))
        if self._rest is not None:
            moments.append(self._rest)
        if self._mortal:
            moments.append(self._look)
        return max(0.0, min(moments) - self._clock()) if moments else None

    def _handle(self, fd: int, mask: int, now: float) -> bool:
        """Do what a descriptor is ready for; whether it is another's."""
        link = self._links.get(fd)
        if link is not None:
            try:
                if mask & select.EPOLLOUT:
                    self._flush(link)
                if mask & ~select.EPOLLOUT and not link.ended:
                    self._read(link, now)
            except Exception:  # a fault of ours, which is no reason to end the tables
                self.faults += 1
                _log.exception("a connection of the %s plane was ended", link.plane.value)
                self._drop(link)
            return False
        if fd in self._doors:
            self._accept(fd, now)
            return False
        return fd != self._control.fileno()

    # -- connections -----------------------------------------------------------------------------

    def _accept(self, fd: int, now: float) -> None:
        try:
            for plane, sock in self._doors.accept(fd):
                assert isinstance(plane, Plane)
                if len(self._unready) >= _UNREADY:
                    self._drop(next(iter(self._unready)))
                    self.spared += 1
                if len(self._links) >= self._most and not self._make_room():
                    sock.close()
                    self._doors.turned_away += 1
                    continue
                self._enter(PeerConnection(sock, plane, Connection(self._mechanism(), *self._sizes), now))
        except OSError:
            self._rest = now + REST_S
            for door in self._doors.filenos():
                self._all.unregister(door)

    def _enter(self, link: PeerConnection) -> None:
        self._links[link.sock.fileno()] = link
        self._unready[link] = None
        self._poll(link, select.EPOLLIN)
        self._answer(link)

    def _make_room(self) -> bool:
        """End the oldest connection that no session needs; whether there was one."""
        needed = set(self.needed())
        spared = next((link for link in self._links.values() if link not in needed), None)
        if spared is None:
            return False
        self._drop(spared)
        self.spared += 1
        return True

    def _poll(self, link: PeerConnection, mask: int) -> None:
        """Look for these events of a connection from now on; 0: for none."""
        if mask == link.mask:
            return
        epoll = self._control if link.plane is Plane.CONTROL else self._all
        if not mask:
            epoll.unregister(link.sock.fileno())
        elif link.mask:
            epoll.modify(link.sock.fileno(), mask)
        else:
            epoll.register(link.sock.fileno(), mask)
        link.mask = mask

    def _drop(self, link: PeerConnection) -> None:
        """End a connection. What was received of it can still be taken."""
        if link.ended:
            return
        self._poll(link, 0)
        del self._links[link.sock.fileno()]
        for some in (self._unready, self._leaving, self._mortal):
            some.pop(link, None)
        link.close()
        if link.listed:
            self._left.append(link)
            if len(self._left) > _MOST_LEFT:
                forgotten = self._left.popleft()
                if not forgotten.known:
                    forgotten.forget()

    def _read(self, link: PeerConnection, now: float) -> None:
        if link in self._leaving:
            self._overhear(link)
            return
        most = _HIGH_WATER[link.plane][0]
        if link.full(most, _HELD_BYTES):
            link.paused = True
            self._poll(link, 0)
            return
        try:
            alive = link.read(self._scratch, most, _HELD_BYTES)
        except OSError:
            alive = False
        except ProtocolError as error:
            self._violated(link, error)
            return
        link.heard = now
        self._came(link)
        if not alive:
            self._drop(link)

    def _came(self, link: PeerConnection) -> None:
        """See to what was received: answers of the protocol, messages."""
        connection = link.connection
        if connection.outgoing and not link.ended:
            if connection.ready:
                self._unready.pop(link, None)
            self._answer(link)
        elif link in self._unready and connection.ready:
            del self._unready[link]
        if connection.ttl_s is not None and not link.ended:
            self._mortal[link] = None
        if not link.listed and (connection.messages or connection.cut_short):
            link.listed = True
            self._line(link).append(link)

    def _line(self, link: PeerConnection) -> deque[PeerConnection]:
        return (self._lines if link.known else self._strangers)[link.plane]

    def _violated(self, link: PeerConnection, error: ProtocolError) -> None:
        """It broke the rules: what came before counts, and it may read why."""
        self.violations += 1
        self._came(link)
        if link.ended:
            return
        if not error.answer:
            self._drop(link)
            return
        link.connection.outgoing.append(error.answer)
        self._answer(link)
        self._part(link)

    def _part(self, link: PeerConnection) -> None:
        """Say nothing more to a peer, and end its connection when it has closed, or soon."""
        if link.ended:
            return
        self._unready.pop(link, None)
        with contextlib.suppress(OSError):
            link.sock.shutdown(socket.SHUT_WR)
        self._leaving[link] = self._clock() + _LAST_WORDS_S
        link.paused = False
        self._poll(link, select.EPOLLIN)

    def _overhear(self, link: PeerConnection) -> None:
        """Until it closes: a socket that is closed with bytes unread may take the last words back."""
        try:
            gone = not link.sock.recv_into(self._scratch)
        except BlockingIOError:
            return
        except OSError:
            gone = True
        if gone:
            self._drop(link)

    def _answer(self, link: PeerConnection) -> None:
        link.answer()
        if link.unsent_bytes:
            self._poll(link, link.mask | select.EPOLLOUT)

    def _flush(self, link: PeerConnection) -> None:
        if link.flush():
            self._poll(link, select.EPOLLIN)

    def _tidy(self, now: float) -> None:
        """End what has taken too long."""
        while self._unready and (link := next(iter(self._unready))).since + _HANDSHAKE_S <= now:
            self._drop(link)
        while self._leaving and next(iter(self._leaving.values())) <= now:
            self._drop(next(iter(self._leaving)))
        if self._rest is not None and now >= self._rest:
            self._rest = None
            for door in self._doors.filenos():
                self._all.register(door, select.EPOLLIN)
        if self._mortal and now >= self._look:
            self._look_for_silent(now)

    def _look_for_silent(self, now: float) -> None:
        """End connections whose time to live is over. What this process did not read meanwhile counts as heard."""
        ends = []
        for link in list(self._mortal):
            ttl_s = link.connection.ttl_s
            if ttl_s is None:
                del self._mortal[link]
            elif link.paused:
                link.heard = now
            elif link.heard + ttl_s <= now:
                if not link.readable():
                    self._drop(link)
                    continue
                link.heard = now
            if ttl_s is not None:
                ends.append(link.heard + ttl_s)
        self._look = max(now + _LOOK_S, min(ends, default=now))

    # -- messages --------------------------------------------------------------------------------

    def receive(self, plane: Plane, most: int) -> Iterator[tuple[PeerConnection, list[Any]]]:
        """Up to ``most`` messages that are there: the route of each, and its frames. See NOTE [whose turn is next]."""
        lines = (self._lines[plane], self._strangers[plane])
        while any(lines):
            for line in lines:
                if not line:
                    continue
                if most <= 0:
                    return
                link = line.popleft()
                messages = link.connection.messages
                try:
                    while messages and link.turn < _TURN and most > 0:
                        frames, nbytes = messages.popleft()
                        link.connection.held_bytes -= nbytes
                        link.turn += 1
                        most -= 1
                        yield link, frames
                        if link.refusals >= _PATIENCE:
                            break
                finally:
                    self._settle(link)

    def _settle(self, link: PeerConnection) -> None:
        """It had its turn."""
        connection = link.connection
        link.listed, link.turn = False, 0
        if link.refusals >= _PATIENCE:
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
            link.listed = True
            self._line(link).append(link)
        if link.paused and not link.ended and not connection.messages and not connection.cut_short:
            link.paused = False
            self._poll(link, select.EPOLLIN | (select.EPOLLOUT if link.unsent_bytes else 0))

    def refused(self, route: PeerConnection) -> None:
        """A message from there could not be read, or was of no session. After some of these its connection is ended."""
        route.refusals += 1

    def send(self, plane: Plane, route: PeerConnection, frames: list[Any], nbytes: int) -> bool:
        """Send a message, or let it wait; False if the peer is gone or its queue is full.

        Large frames are not copied: leave them as they are until the peer has them.
        """
        most = _HIGH_WATER[plane][1]
        waits = route.unsent_bytes
        full = waits and (route.unsent >= most or waits + nbytes > self._out_bytes)
        if full or not route.send(frames):
            self.unsent += 1
            return False
        if route.unsent_bytes and not route.paused:
            self._poll(route, select.EPOLLIN | select.EPOLLOUT)
        return True

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Send what waits, for a second at most, and close everything. Again does nothing."""
        if self._all.closed:
            return
        self._doors.close()
        self._send_last_words(time.monotonic() + _LAST_WORDS_S)
        for link in list(self._links.values()):
            with contextlib.suppress(OSError):
                while link.sock.recv_into(self._scratch) == len(self._scratch):
                    continue
            self._drop(link)
        self._control.close()
        self._all.close()

    def _send_last_words(self, until: float) -> None:
        with select.epoll() as epoll:
            waiting = {fd: link for fd, link in self._links.items() if link.unsent_bytes}
            for fd in waiting:
                epoll.register(fd, select.EPOLLOUT)
            while waiting and (left := until - time.monotonic()) > 0:
                for fd, _ in epoll.poll(left):
                    if waiting[fd].flush():
                        epoll.unregister(fd)
                        del waiting[fd]
