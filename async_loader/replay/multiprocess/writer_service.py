"""The owner's side of all writers, and the thread that waits for them. Writes no row.

# NOTE [who adopts]
What writers have published becomes part of the table when somebody looks: whoever samples, adds or
counts in the owner's process takes it in first, under the lock that it holds anyway. One kernel
does so for all writers, so that looking costs a microsecond, and some rows of each cost less than
ten. The thread is needed for what nobody else does: to hand out rows, to see deaths, and to wake
those who wait for rows. Only while there are such does it ask the writers to ring, by a word in
their lanes that the first to publish clears again. While rows keep coming it looks every two
milliseconds instead, so that a fast writer is not made to ring for each row, and a slow one's rows
are seen at once.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable

import numpy as np

from async_loader.errors import Broken, ConfigError
from async_loader.lifecycle import EndFlag, EventFd, join, readable
from async_loader.replay.base import ring_format, row_format
from async_loader.replay.limiter_state import LimiterState
from async_loader.replay.multiprocess import messages
from async_loader.replay.multiprocess.insert_credits import InsertCredits
from async_loader.replay.multiprocess.messages import Message, MessageType
from async_loader.replay.multiprocess.publish_ring import PublishRing
from async_loader.replay.multiprocess.terms import Terms
from async_loader.replay.multiprocess.writer_handle import WriterHandle
from async_loader.replay.multiprocess.writer_peer import WriterPeer
from async_loader.replay.table.table_state import TableState
from async_loader.shm.segment import Segment

_PAUSE_S = 0.002
_EXIT_TIMEOUT_S = 2.0
_FORK_TIMEOUT_S = 30.0
# a writer must be able to hold two extents of two rows, and all together hold half of the rows
_ROWS_EACH = 8
log = logging.getLogger("async_loader")


class WriterService:
    """All writers of one table in other processes.

    Every method but `close`, and those of the thread, is called under the table's lock.

    Parameters
    ----------
    table_state : TableState
        Held weakly: a table that nobody uses any more ends, and its service with it.
    """

    def __init__(self, table_state: TableState) -> None:
        from async_loader.replay.kernels import publish_ring  # late: see compiled.py

        self._kernels = publish_ring
        self.lock, self._waiters, self._table = (
            table_state.lock,
            table_state.waiters,
            table_state.table,
        )
        self.end, self.bell = EndFlag(), EventFd()
        self._links: dict[int, WriterPeer] = {}
        self._permits = InsertCredits(self._links.values())
        self._pending: dict[WriterPeer, None] = {}
        self._lanes = self._ledgers = np.empty(0, np.int64)
        self._made = 1 + max(map(_number, self._table.streams), default=-1)
        self._rings = False
        self.failed: BaseException | None = None
        self.closed = False
        self._death_fd = os.pidfd_open(os.getpid())
        self._clock = self._share_geometry()
        self._waiters.on_wait = self._has_waiters
        self._dropped = weakref.finalize(table_state, self.end.set)
        self._dropped.atexit = False

    def start(self, run: Callable[[], None]) -> None:
        """Start the thread, which calls ``run``. Once."""
        self._thread = threading.Thread(target=run, name="async-loader-writer-service", daemon=True)
        self._thread.start()

    def _share_geometry(self) -> Segment:
        """Let writers see which id comes next, so that they do not fill rows that are old already."""
        segment = Segment.create(8 * row_format.PLACES, "a table's counters")
        shared = np.frombuffer(segment.bytes(), np.int64, row_format.PLACES)
        shared[:] = self._table.g
        self._table.g = self._table.storage.geometry = shared
        return segment

    # -- handles -----------------------------------------------------------------------------------

    def handle(self, table_state: TableState) -> WriterHandle:
        """One more writer."""
        if self.failed is not None:
            raise Broken(f"the thread that serves writers has failed: {self.failed!r}")
        layout = self._table.storage.layout
        if (len(self._links) + 1) * _ROWS_EACH > layout.rows:
            raise ConfigError(
                f"{len(self._links)} writers have a table of {layout.capacity} steps, and each "
                "needs room: raise its capacity, "
                "or let writers go (a handle that was neither opened nor dropped counts)"
            )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number, self._made = self._made, self._made + 1
        lane = PublishRing.create()
        self._links[number] = WriterPeer(number, ours, lane, self._table)
        self._changed()
        self.follow(table_state.limits)
        self.bell.ring()
        given = any(
            getattr(one, "new_priority", None) == "given"
            for one in (*self._table.samplers, table_state.remover)
        )
        terms = Terms(
            number,
            os.getpid(),
            table_state.prioritized,
            given,
            repr(table_state.sampler),
            repr(table_state.remover),
        )
        segments = [
            Segment.attach(os.dup(one.fileno()), one.nbytes) for one in (lane.segment, self._clock)
        ]
        return WriterHandle(
            theirs.detach(),
            os.dup(self._death_fd),
            segments[0],
            segments[1],
            self._table.storage,
            terms,
        )

    def described(self) -> str:
        """The writers that there are, in words; empty if there are none."""
        handles = sum(1 for link in self._links.values() if not link.pid)
        said = [str(link) for link in self._links.values() if link.pid]
        return ", ".join(said + ([f"{handles} handles that were not opened"] if handles else []))

    def _changed(self) -> None:
        self._lanes = np.array([link.lane.address for link in self._links.values()], np.int64)
        self._ledgers = np.array(
            [link.grant_log.address for link in self._links.values()], np.int64
        )

    def follow(self, limits: LimiterState | None) -> None:
        """The limiter was changed."""
        self._permits.follow(limits)

    def may_insert(self, limits: LimiterState, count: int) -> bool:
        """As `LimiterState.may_insert_together`, with what writers may insert at any moment."""
        return self._permits.may_insert(limits, count)

    # -- rows that come ----------------------------------------------------------------------------

    def adopt(self) -> bool:
        """Take in everything that was published; whether that was anything."""
        count = self._table.adopt(self._ledgers)
        if count < 0:
            self.bell.ring()  # the thread closes the writer that has gone wrong
        return count != 0

    def _has_waiters(self) -> None:
        """Called by a thread that begins to wait: from now on writers ring."""
        self._kernels.ask_to_ring(self._lanes)
        if self.adopt():
            self._waiters.ring()

    # -- the thread --------------------------------------------------------------------------------

    def wait(self, pause_s: float | None) -> set[int]:
        """Until a writer says something or dies, a waiter is to be served, or the end."""
        with self.lock:
            fds = [self.end.fileno(), self.bell.fileno()]
            for link in self._links.values():
                fds += [
                    fd for fd in (-1 if link.deaf else link.sock.fileno(), link.death_fd) if fd >= 0
                ]
        return readable(fds, pause_s)

    def serve(self, ready: set[int], table_state: TableState) -> float | None:
        """React to everything. Returns for how long to wait at most."""
        if self.bell.fileno() in ready:
            self.bell.clear()
        heard: list[tuple[WriterPeer, Message]] = []
        dead = [link for link in self._links.values() if link.death_fd in ready]
        for link in self._links.values():
            if link.sock.fileno() in ready or link in dead:
                heard += self._listen(link)
        news = self.adopt()
        for link, message in heard:
            # which would be told that all it has published was taken in
            if not link.grant_log.wrong:
                self._react(link, message)
        news |= self._reap_all(dead)
        self._serve_needs(table_state.limits)  # as they are now that everything is taken in
        if news:
            self._waiters.ring()
        if not self._waiters.others(self.bell):
            return None
        if news:
            return _PAUSE_S
        self._kernels.ask_to_ring(self._lanes)
        return 0.0 if self._table.news(self._ledgers) else None

    def _reap_all(self, dead: list[WriterPeer]) -> bool:
        """The dead, handles that were dropped, and whose lanes cannot be trusted; whether there was
        any.
        """
        lost = [
            link
            for link in self._links.values()
            if link in dead or link.grant_log.wrong or (link.deaf and not link.pid)
        ]
        for link in lost:
            if link.grant_log.wrong:
                log.error(
                    "%s has published what no writer publishes: nothing more is taken from it",
                    str(link),
                )
            elif link.pid:
                log.info("%s has died", str(link))
            self._reap(link)
        return bool(lost)

    def _listen(self, link: WriterPeer) -> list[tuple[WriterPeer, Message]]:
        heard: list[tuple[WriterPeer, Message]] = []
        while not link.deaf:
            try:
                message = messages.receive(link.sock)
            except BlockingIOError:
                break
            except ConnectionResetError:
                continue  # it ended with unread records; what it had sent comes after this
            if message is None:
                link.deaf = True  # closed; whether its process has ended is for the pidfd to say
            else:
                heard.append((link, message))
        return heard

    def _react(self, link: WriterPeer, message: Message) -> None:
        kind, a, b, body, fds = message
        if kind == MessageType.HELLO:
            link.pid, link.death_fd = a, fds[0]
        elif kind == MessageType.MORE:
            room = self._room(link)
            # rows that are held and not filled would keep all others waiting
            if room and not self._table.keeps:
                link.grant(1, room)
        elif kind == MessageType.NEED:
            link.why = ""
            self._pending.pop(link, None)
            if a or b:
                link.need = (a, b)
                self._pending[link] = None
        elif kind == MessageType.NAMES:
            self._name(link, a, body)
        elif kind == MessageType.DROP:
            link.drop(np.frombuffer(body, np.int64).tolist())
        elif kind == MessageType.FLUSH:
            link.tell(MessageType.FLUSHED, a)
        elif kind == MessageType.BYE:
            link.tell(MessageType.FLUSHED, a)
            self._reap(link)
            self._waiters.ring()

    def _name(self, link: WriterPeer, token: int, body: bytes) -> None:
        try:
            link.tell(
                MessageType.NUMBERS, token, body=link.numbers(messages.names_from(body)).tobytes()
            )
        except Exception as error:  # unpickling and hashing run the code of whatever names a stream
            link.tell(
                MessageType.REFUSED, token, body=f"{type(error).__name__}: {error}".encode()[:4096]
            )

    # -- rows and permits --------------------------------------------------------------------------

    def _room(self, link: WriterPeer) -> int:
        """Rows that a writer may be granted at once."""
        layout = self._table.storage.layout
        each = max(2, layout.capacity // (4 * len(self._links)))  # see NOTE [old rows]
        extent = max(1, min(layout.burst, each // 2))
        room = max(
            0, min(extent, each - link.grant_log.held, layout.rows // 2 - self._table.granted)
        )
        return min(room, self._table.room_for(link.streams)) if self._table.keeps else room

    def _serve_needs(self, limits: LimiterState | None) -> None:
        for link in list(self._pending):
            assert link.need is not None
            wanted, steps = link.need
            if (
                self._table.keeps
                and steps
                and limits is not None
                and not limits.may_insert(1 + self._permits.promised())
            ):
                link.explain(self._withheld(limits))
                continue
            while link.grant_log.held < wanted and (room := self._room(link)):
                missing = wanted - link.grant_log.held
                link.grant(missing, min(room, missing) if self._table.keeps else room)
            if link.grant_log.held < min(1 + int(self._table.g[row_format.FOLLOWED]), wanted):
                link.explain(self._no_rows())
            elif self._permits.issue(link, steps, limits):
                del self._pending[link]
                link.tell(MessageType.GO)
            else:
                link.explain(self._withheld(limits))
        self._listen_to_samplers()

    def _no_rows(self) -> str:
        if self._table.keeps:
            return self._table.why_full()
        return f"rows: writers hold {self._table.granted} of the table's {self._table.storage.layout.rows} already"

    def _withheld(self, limits: LimiterState | None) -> str:
        assert limits is not None
        return limits.why_not_insert(1 + self._permits.promised())

    def _listen_to_samplers(self) -> None:
        """Be rung when the table changes, as long as a writer waits for that."""
        if bool(self._pending) is not self._rings:
            self._rings = bool(self._pending)
            if self._rings:
                self._waiters.listen(self.bell, "insert", self._reason)
            else:
                self._waiters.ignore(self.bell)

    def _reason(self) -> str | None:
        return "; ".join(f"{link} waits: {link.why}" for link in self._pending) or None

    # -- ends --------------------------------------------------------------------------------------

    def _reap(self, link: WriterPeer, state: int = ring_format.IS_CLOSED) -> None:
        self._links.pop(link.number, None)
        self._pending.pop(link, None)
        try:
            link.reap_writer(state)
        finally:
            self._changed()

    def close(self, timeout_s: float | None = None) -> bool:
        """End the thread, which tells all writers; whether it has ended. Not under the lock."""
        self.end.set()
        return join(self._thread, timeout_s)

    def shut_down_writer(self) -> None:
        """The thread's last act."""
        with self.lock:
            self.closed = True
            for link in list(self._links.values()):
                self._reap(
                    link, ring_format.IS_CLOSED if self.failed is None else ring_format.HAS_FAILED
                )
            self._listen_to_samplers()
            self._waiters.on_wait = None
            self._waiters.ring()
            self._let_go()

    def _let_go(self) -> None:
        self._dropped.detach()
        self._clock.close()
        if self._death_fd >= 0:
            messages.close_fd(self._death_fd)
            self._death_fd = -1

    def forget(self) -> None:
        """In a forked child: close copies, and touch nothing that the parent sees."""
        self._dropped.detach()
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._changed()
        self._let_go()


def _number(name: object) -> int:
    """That of a writer in the name that its stream has by default, of processes with our pid: a
    loaded table may have such.
    """
    ours = isinstance(name, tuple) and len(name) == 3 and name[:2] == ("writer", os.getpid())
    return name[2] if ours and isinstance(name[2], int) else -1  # type: ignore[index]
