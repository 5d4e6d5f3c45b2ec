"""Serves all writers of other processes: a thread waits for them and hands out rows and credits.

# NOTE [commits]
Published rows become part of the table when a thread of the table's process samples, adds or
counts: it commits them first, under the lock that it holds anyway. One kernel does so for all
writers, so that a look costs a microsecond, and some rows of each writer less than ten. The
service's thread hands out rows, notices deaths, and wakes calls that wait for rows. Only while a
call waits does it ask the writers to ring, by a word in their rings that the first to publish
clears again. While rows keep coming it looks every two milliseconds instead, so that a fast writer
need not ring for each row, and a slow one's rows are seen at once.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
import weakref
from collections.abc import Callable

import numpy as np

from async_loader.errors import Broken, ConfigError
from async_loader.held_locks import unheld
from async_loader.lifecycle import EndFlag, EventFd, join, readable
from async_loader.replay.base import ring_format, row_format
from async_loader.replay.limiter_state import LimiterState
from async_loader.replay.multiprocess import messages
from async_loader.replay.multiprocess.insert_credits import InsertCredits
from async_loader.replay.multiprocess.messages import Message, MessageType
from async_loader.replay.multiprocess.publish_ring import PublishRing
from async_loader.replay.multiprocess.row_need import RowNeed
from async_loader.replay.multiprocess.terms import Terms
from async_loader.replay.multiprocess.writer_handle import WriterHandle
from async_loader.replay.multiprocess.writer_peer import WriterPeer
from async_loader.replay.table.table_state import TableState
from async_loader.shm.fd_channel import FdChannel
from async_loader.shm.segment import Segment, close_all

_PAUSE_S = 0.002
# A writer must be able to hold two extents of two rows, and all writers hold half of the rows.
_ROWS_EACH = 8
log = logging.getLogger("async_loader")


class WriterService:
    """The writers of one table in other processes.

    Every method is called under the table's lock, except `close` and those of the thread.

    Parameters
    ----------
    table_state : TableState
        Held weakly: a table without references ends, and its service with it.
    """

    def __init__(self, table_state: TableState) -> None:
        from async_loader.replay.kernels import publish_ring  # late: see compiled.py

        self._kernels = publish_ring
        self.lock, self._waiters, self._table = (
            table_state.own_lock,
            table_state.waiters,
            table_state.table,
        )
        self._table_state = weakref.ref(table_state)
        self.end, self.eventfd = EndFlag(), EventFd()
        self._peers: dict[int, WriterPeer] = {}
        self._credits = InsertCredits(self._peers.values(), self._table)
        self._pending: dict[WriterPeer, None] = {}
        self._publish_rings = self._grant_logs = np.empty(0, np.int64)
        self._made = 1 + max(map(_number, self._table.streams), default=-1)
        self._listens = False
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
        """Share the table's counters, so that writers see how old their rows are."""
        segment = Segment.create(8 * row_format.PLACES, "a table's counters")
        shared = np.frombuffer(segment.bytes(), np.int64, row_format.PLACES)
        shared[:] = self._table.g
        self._table.g = self._table.storage.geometry = shared
        return segment

    # -- handles -----------------------------------------------------------------------------------

    def handle(self, table_state: TableState) -> WriterHandle:
        """Make a handle for one more writer."""
        if self.failed is not None:
            raise Broken(f"the thread that serves writers has failed: {self.failed!r}")
        layout = self._table.storage.layout
        if (len(self._peers) + 1) * _ROWS_EACH > layout.rows:
            raise ConfigError(
                f"{len(self._peers)} writers have a table of {layout.capacity} steps, and each "
                "needs room: raise its capacity, "
                "or let writers go (a handle that was neither opened nor dropped counts)"
            )
        ours, theirs = FdChannel.pair()
        ours.set_blocking(False)
        number, self._made = self._made, self._made + 1
        ring = PublishRing.create()
        self._peers[number] = WriterPeer(number, ours, ring, self._table)
        self._changed()
        self.follow(table_state.limits)
        self.eventfd.ring()
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
            Segment.attach(os.dup(one.fileno()), one.nbytes) for one in (ring.segment, self._clock)
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
        """List the writers and unopened handles in words; empty if there are none."""
        handles = sum(1 for peer in self._peers.values() if not peer.pid)
        said = [str(peer) for peer in self._peers.values() if peer.pid]
        return ", ".join(said + ([f"{handles} handles that were not opened"] if handles else []))

    def _changed(self) -> None:
        peers = self._peers.values()
        self._publish_rings = np.array([peer.ring.address for peer in peers], np.int64)
        self._grant_logs = np.array(
            [peer.grant_log.address for peer in self._peers.values()], np.int64
        )

    def follow(self, limits: LimiterState | None) -> None:
        """Give credits by the changed limiter."""
        self._credits.follow(limits)

    def may_insert(self, limits: LimiterState, count: int) -> bool:
        """As `LimiterState.may_insert_together`, beside the steps that writers may add at any
        moment.
        """
        return self._credits.may_insert(limits, count)

    # -- rows that come ----------------------------------------------------------------------------

    def commit(self) -> bool:
        """Commit all published records. Return whether there were any."""
        count = self._table.commit(self._grant_logs)
        if count < 0:
            self.eventfd.ring()  # the thread closes the writer with the invalid record
        return count != 0

    def _has_waiters(self) -> None:
        """Have writers ring from now on, for a thread that begins to wait."""
        self._kernels.ask_to_ring(self._publish_rings)
        if self.commit():
            self._waiters.ring()

    # -- the thread --------------------------------------------------------------------------------

    def wait(self, pause_s: float | None) -> set[int]:
        """Wait until a writer sends a message or dies, a request has to be served, or the service
        ends.
        """
        with unheld(self.lock):
            fds = [self.end.fileno(), self.eventfd.fileno()]
            for peer in self._peers.values():
                heard = -1 if peer.deaf else peer.channel.fileno()
                fds += [fd for fd in (heard, peer.death_fd) if fd >= 0]
        return readable(fds, pause_s)

    def serve(self, ready: set[int], table_state: TableState) -> float | None:
        """Handle all events. Return how long to wait at most."""
        if self.eventfd.fileno() in ready:
            self.eventfd.clear()
        heard: list[tuple[WriterPeer, Message]] = []
        dead = [peer for peer in self._peers.values() if peer.death_fd in ready]
        for peer in self._peers.values():
            if peer.channel.fileno() in ready or peer in dead:
                heard += self._listen(peer)
        news = self.commit()
        for peer, message in heard:
            # else it would be told that all its records were committed
            if not peer.grant_log.wrong:
                self._react(peer, message)
        news |= self._reap_all(dead)
        self._serve_needs(table_state.limits)  # with the counts after the commit
        if news:
            self._waiters.ring()
        if not self._waiters.others(self.eventfd):
            return None
        if news:
            return _PAUSE_S
        self._kernels.ask_to_ring(self._publish_rings)
        return 0.0 if self._table.news(self._grant_logs) else None

    def _reap_all(self, dead: list[WriterPeer]) -> bool:
        """Reap writers that died, whose handle was dropped, or whose ring is invalid.

        Return whether there were any.
        """
        lost = [
            peer
            for peer in self._peers.values()
            if peer in dead or peer.grant_log.wrong or (peer.deaf and not peer.pid)
        ]
        for peer in lost:
            if peer.grant_log.wrong:
                log.error(
                    "%s has published what no writer publishes: nothing more is taken from it",
                    str(peer),
                )
            elif peer.pid:
                log.info("%s has died", str(peer))
            self._reap(peer)
        return bool(lost)

    def _listen(self, peer: WriterPeer) -> list[tuple[WriterPeer, Message]]:
        heard: list[tuple[WriterPeer, Message]] = []
        while not peer.deaf:
            try:
                message = messages.receive(peer.channel)
            except BlockingIOError:
                break
            except ConnectionResetError:
                continue  # it ended with unread records; its own records come after this
            if message is None:
                peer.deaf = True  # closed; the pidfd tells whether its process has ended
            else:
                heard.append((peer, message))
        return heard

    def _react(self, peer: WriterPeer, message: Message) -> None:
        kind, a, b, body, fds = message
        if kind == MessageType.HELLO:
            peer.pid, peer.death_fd = a, fds[0]
        elif kind == MessageType.MORE:
            room = self._room(peer)
            if room and not self._table.keeps:  # see `_serve_need`
                peer.grant(1, room)
        elif kind == MessageType.NEED:
            peer.why = ""
            self._pending.pop(peer, None)
            if a or b:
                peer.need = RowNeed.of(a, b, body)
                self._pending[peer] = None
        elif kind == MessageType.NAMES:
            self._name(peer, a, body)
        elif kind == MessageType.DROP:
            peer.drop(np.frombuffer(body, np.int64).tolist())
        elif kind == MessageType.FLUSH:
            peer.tell(MessageType.FLUSHED, a)
        elif kind == MessageType.BYE:
            peer.tell(MessageType.FLUSHED, a)
            self._reap(peer)
            self._waiters.ring()

    def _name(self, peer: WriterPeer, token: int, body: bytes) -> None:
        try:
            peer.tell(MessageType.NUMBERS, token, body=peer.numbers(pickle.loads(body)).tobytes())
        except Exception as error:  # unpickling and hashing run the code of a stream's name
            peer.tell(
                MessageType.REFUSED, token, body=f"{type(error).__name__}: {error}".encode()[:4096]
            )

    # -- rows and credits --------------------------------------------------------------------------

    def _room(self, peer: WriterPeer) -> int:
        """Return how many rows a writer may be granted at once."""
        burst = self._table.storage.layout.burst
        return min(max(1, min(burst, self._each // 2)), self._most(peer))

    def _most(self, peer: WriterPeer) -> int:
        """Return how many rows a writer may be granted now, in several extents."""
        table = self._table
        most = min(self._each - peer.grant_log.held, table.storage.layout.rows // 2 - table.granted)
        return max(0, min(most, table.room_for(peer.streams)) if table.keeps else most)

    @property
    def _each(self) -> int:
        """Rows that one writer may hold. See NOTE [old rows]."""
        return max(2, self._table.storage.layout.capacity // (4 * len(self._peers)))

    def _lacks_rows(self, peer: WriterPeer) -> bool:
        """Return whether a pending writer has not, and cannot be granted, the rows of one step."""
        assert peer.need is not None
        missing = peer.need.wanted(1) - self._held(peer, peer.need)
        return missing > 0 and self._most(peer) < missing

    def _held(self, peer: WriterPeer, need: RowNeed) -> int:
        """Return how many rows a writer can fill; a queue commits filled ones only in turn."""
        return need.left if self._table.keeps else peer.grant_log.held

    def _serve_needs(self, limits: LimiterState | None) -> None:
        for peer in list(self._pending):
            why = self._serve_need(peer, limits)
            if why is not None:
                peer.explain(why)
            if why is None or (peer.need is not None and not peer.need.waits):
                del self._pending[peer]
        self._listen_to_samplers()

    def _serve_need(self, peer: WriterPeer, limits: LimiterState | None) -> str | None:
        """Grant rows and credits to a writer that waits. Return why it goes on waiting."""
        assert peer.need is not None
        need, keeps = peer.need, self._table.keeps
        wanted, steps = need.wanted(len(need.rows)), need.steps
        if keeps:
            # Rows that are held and not filled would block all others: there are none without
            # credits, and all of a step come at once. Unused credits are taken back first, also
            # those of this writer.
            steps = self._credits.available(peer, steps, limits)
            if need.steps and not steps:
                return self._withheld(limits)
            if self._lacks_rows(peer):
                return self._no_rows()
            steps = min(steps, need.fit(need.left + self._most(peer)))
            wanted = need.wanted(steps)
        held = self._held(peer, need)
        while held < wanted and (room := self._room(peer)):
            held += peer.grant(wanted - held, min(room, wanted - held) if keeps else room)
        if held < need.wanted(1):
            return self._no_rows()
        if not self._credits.issue(peer, steps, limits):
            return self._withheld(limits)
        peer.tell(MessageType.GO)
        return None

    def _why_pending(self, peer: WriterPeer) -> str | None:
        """Say what a writer waits for; ``None`` if this thread only has to grant it."""
        table_state = self._table_state()
        limits = None if table_state is None else table_state.limits
        if self._lacks_rows(peer):
            return self._no_rows()
        if limits is None or not self._credits.limited or limits.may_insert_together(1):
            return None
        return self._withheld(limits)

    def _no_rows(self) -> str:
        if self._table.keeps:
            return self._table.why_full()
        granted, rows = self._table.granted, self._table.storage.layout.rows
        return f"rows: writers hold {granted} of the table's {rows} already"

    def _withheld(self, limits: LimiterState | None) -> str:
        assert limits is not None
        return limits.why_not_insert(1 + self._credits.promised())

    def _listen_to_samplers(self) -> None:
        """Be woken when the table changes, as long as a writer waits for that."""
        if bool(self._pending) is not self._listens:
            self._listens = bool(self._pending)
            if self._listens:
                self._waiters.listen(self.eventfd, "insert", self._reason)
            else:
                self._waiters.ignore(self.eventfd)

    def _reason(self) -> str | None:
        found = [(peer, self._why_pending(peer)) for peer in self._pending]
        return "; ".join(f"{peer} waits: {why}" for peer, why in found if why) or None

    # -- ends --------------------------------------------------------------------------------------

    def _reap(self, peer: WriterPeer, state: int = ring_format.IS_CLOSED) -> None:
        self._peers.pop(peer.number, None)
        self._pending.pop(peer, None)
        try:
            peer.reap_writer(state)
        finally:
            self._changed()

    def close(self, timeout_s: float | None = None) -> bool:
        """End the thread, which closes all writers.

        Return whether it has ended. Not under the lock.
        """
        self.end.set()
        return join(self._thread, timeout_s)

    def shut_down_writer(self) -> None:
        """Close all writers, as the thread's last step."""
        with unheld(self.lock):
            self.closed = True
            for peer in list(self._peers.values()):
                self._reap(
                    peer, ring_format.IS_CLOSED if self.failed is None else ring_format.HAS_FAILED
                )
            self._listen_to_samplers()
            self._waiters.on_wait = None
            self._waiters.ring()
            self._let_go()

    def _let_go(self) -> None:
        self._dropped.detach()
        self._clock.close()
        if self._death_fd >= 0:
            close_all((self._death_fd,))
            self._death_fd = -1

    def forget(self) -> None:
        """Close copies of descriptors, in a forked child. Change nothing that the parent sees."""
        self._dropped.detach()
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        self._changed()
        self._let_go()


def _number(name: object) -> int:
    """Return the writer's number in a default stream name ("writer", this pid, n), else -1.

    A restored table may contain such names.
    """
    ours = isinstance(name, tuple) and len(name) == 3 and name[:2] == ("writer", os.getpid())
    return name[2] if ours and isinstance(name[2], int) else -1  # type: ignore[index]
