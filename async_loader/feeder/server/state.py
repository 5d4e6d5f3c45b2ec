"""All state of a server, in one place: sessions, tables, weights, limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from async_loader.errors import Malformed
from async_loader.feeder.memory_offer import Offer
from async_loader.feeder.server.batch_scheduler import BatchScheduler
from async_loader.feeder.server.counters import Rates
from async_loader.feeder.server.insert_queue import InsertQueue
from async_loader.feeder.server.sessions import Session, Sessions
from async_loader.feeder.server.shared_memory import CallSlots, InsertSlots, SharedBatchRing
from async_loader.feeder.server.weights import WeightStore
from async_loader.feeder.settings import ServiceSettings
from async_loader.feeder.wire import ErrorCode, Limits
from async_loader.replay.buffer import ReplayBuffer, shared_table
from async_loader.replay.stats import TableStats
from async_loader.replay.table.nonblocking_table import NonblockingTable
from async_loader.shm.segment import Segment


class TableEntry:
    """One table, its insert queue and its batch scheduler."""

    def __init__(
        self,
        name: str,
        buffer: ReplayBuffer,
        limits: Limits,
        window_rows: int,
        clock: Callable[[], float],
    ) -> None:
        self.name, self.buffer = name, buffer
        self.table = NonblockingTable(shared_table(buffer))
        self.insert_queue = InsertQueue(name, self.table, window_rows)
        self.scheduler = BatchScheduler(name, self.table, limits)
        self._stats = buffer.stats()
        self.rates = Rates(self._flow, clock())

    def stats(self) -> TableStats:
        """Return the table's counts; while it is being loaded, the counts from before."""
        if not self.rests:
            self._stats = self.buffer.stats()
        return self._stats

    def _flow(self, now: float) -> tuple[float, ...]:
        """Return rows in and out, and the seconds in which writers and readers waited."""
        queue, scheduler = self.insert_queue, self.scheduler
        waited = (one.seconds(now) for one in (queue.blocked_time, scheduler.blocked))
        return queue.rows, scheduler.rows, *waited

    def waiting(self) -> list[tuple[str, float]]:
        """Return what waits for the table and why, and since when on the server's clock."""
        return [*self.insert_queue.waiting(), *self.scheduler.waiting()]

    @property
    def rests(self) -> bool:
        """Whether it is being loaded: no row goes in or out.

        See NOTE [slow work] in dispatch.py.
        """
        return self.insert_queue.rests

    @rests.setter
    def rests(self, rests: bool) -> None:
        self.stats()
        self.insert_queue.rests = rests

    def begin_anew(self) -> None:
        """The table was loaded: forget rows and streams from before."""
        self.table.begin_anew()
        self.insert_queue.begin_anew()
        self.scheduler.forget_rows()

    def clear(self) -> None:
        """Remove all items."""
        self.buffer.clear()
        self.scheduler.forget_rows()


@dataclass(slots=True, eq=False)
class ServerState:
    """See the module."""

    tables: Mapping[str, TableEntry]
    sessions: Sessions
    weights: WeightStore
    published: dict[str, float]
    """When the newest version of each weights came."""
    since: float
    limits: Limits
    window_bytes: int
    clock: Callable[[], float]
    draining: bool = False
    counters: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=lambda: Counter(left=0, died=0, lost=0))
    """Sessions, by how they ended."""
    died: dict[bytes, tuple[float, dict[str, Any]]] = field(default_factory=dict)
    """By client: when the last ones that died or were lost were heard, and their status then."""
    memory: str | None = None
    """Where learners of this host offer memory for their batches."""

    @classmethod
    def of(
        cls,
        tables: Mapping[str, ReplayBuffer],
        settings: ServiceSettings,
        clock: Callable[[], float],
    ) -> ServerState:
        """The state of a server that has no client yet."""
        limits, given = settings.limits.wire(), settings.limits
        return cls(
            {
                name: TableEntry(name, table, limits, given.window_rows, clock)
                for name, table in tables.items()
            },
            Sessions(given.sessions, settings.silence_s, clock),
            WeightStore(int(given.weight_bytes)),
            {},
            clock(),
            limits,
            int(given.window_bytes),
            clock,
        )

    @property
    def rests(self) -> bool:
        """Whether a table is being loaded."""
        return any(table.rests for table in self.tables.values())

    def table(self, name: str) -> TableEntry:
        """Return a table by name. Raises Malformed, UNKNOWN_TABLE."""
        table = self.tables.get(name)
        if table is None:
            known = ", ".join(self.tables) or "none"
            raise Malformed(
                f"there is no table {name!r} here, there are: {known}", ErrorCode.UNKNOWN_TABLE
            )
        return table

    def take_memory(self, offer: Offer, fd: int) -> None:
        """Take memory for a writer's rows, a reader's batches, or calls. Raises Malformed."""
        segment = Segment.attach(fd, offer.nbytes)
        try:
            session, number = self.sessions.known(offer.session), offer.number
            if offer.owner == "calls":
                session.call_slots = CallSlots(segment, offer)
                return
            if offer.owner == "writer":
                writer = session.writers.get(number)
                if writer is None or writer.slots is not None:
                    raise Malformed(f"there is no writer {number} that takes memory: open it first")
                writer.slots = InsertSlots(segment, offer)
                return
            reader = session.readers.get(number)
            if reader is None or not reader.shared or reader.batch_ring is not None:
                raise Malformed(f"there is no reader {number} that takes memory: open it first")
            rows = reader.batch_size
            reader.batch_ring = SharedBatchRing(segment, offer, reader.schema, rows)
        except BaseException:
            segment.close()
            raise

    def begin_to_drain(self) -> None:
        """Open nothing new; deliver what is queued, short last batches too."""
        self.draining = True
        for table in self.tables.values():
            table.scheduler.draining = True

    def leave(self, session: Session) -> None:
        """End a session: its leased batches go back. Its producers stay, for a later session."""
        for reader in session.readers.values():
            self.table(reader.table).scheduler.close(reader)
        for number in list(session.writers):
            session.close_writer(number)
        session.readers.clear()
        self.weights.gone(session.number)
