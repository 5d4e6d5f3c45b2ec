"""Everything that a server has, in one place: sessions, tables, weights, limits. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from async_loader.errors import Malformed
from async_loader.feeder.curve_auth import CurveAuthenticator
from async_loader.feeder.server.batch_scheduler import BatchScheduler
from async_loader.feeder.server.counters import Rates
from async_loader.feeder.server.insert_queue import InsertQueue
from async_loader.feeder.server.policy_lag import Publications
from async_loader.feeder.server.sessions import Session, Sessions
from async_loader.feeder.server.weights import WeightStore
from async_loader.feeder.wire import ErrorCode, Limits
from async_loader.replay.buffer import ReplayBuffer, parts_of
from async_loader.replay.stats import TableStats
from async_loader.replay.table.nonblocking_table import ServedTable


class TableEntry:
    """One table: what goes in, what comes out."""

    def __init__(
        self, name: str, buffer: ReplayBuffer, limits: Limits, window_bytes: int, window_rows: int, clock: Callable[[], float]
    ) -> None:  # fmt: skip
        self.name, self.buffer = name, buffer
        self.table = ServedTable(parts_of(buffer))
        self.insert_queue = InsertQueue(name, self.table, window_bytes, window_rows)
        self.scheduler = BatchScheduler(name, self.table, limits)
        self.rates = Rates(clock)
        self.ended = False
        self._stats: TableStats | None = None
        self.calls_waiting: Callable[[], list[tuple[str, float]]] = list
        """What calls wait for it and for what, and since when on the server's clock."""

    def stats(self) -> TableStats:
        """The table in numbers; while it is being loaded, those of before."""
        if self._stats is None or not self.rests:
            self._stats = self.buffer.stats()
        return self._stats

    def waiting(self) -> list[tuple[str, float]]:
        """Who waits for it and for what, and since when on the server's clock."""
        return [*self.insert_queue.waiting(), *self.scheduler.waiting(), *self.calls_waiting()]

    @property
    def rests(self) -> bool:
        """Whether it is being loaded: nothing goes in or out. See NOTE [slow work] in jobs.py."""
        return self.insert_queue.rests

    @rests.setter
    def rests(self, rests: bool) -> None:
        self.stats()
        self.insert_queue.rests = rests

    def begin_anew(self) -> None:
        """It was loaded: rows and streams are others."""
        self.table.begin_anew()
        self.insert_queue.begin_anew()
        self.scheduler.forget_rows()


@dataclass(slots=True, eq=False)
class ServerState:
    """See the module."""

    tables: Mapping[str, TableEntry]
    sessions: Sessions
    weights: WeightStore
    limits: Limits
    window_bytes: int
    window_rows: int
    clock: Callable[[], float]
    authenticator: CurveAuthenticator | None = None
    draining: bool = False
    published: Publications = field(default_factory=Publications)
    memory: str | None = None
    """Where learners of this host can offer memory for their batches."""

    def table(self, name: str) -> TableEntry:
        """Raises Malformed, UNKNOWN_TABLE."""
        table = self.tables.get(name)
        if table is None:
            known = ", ".join(self.tables) or "none"
            raise Malformed(f"there is no table {name!r} here, there are: {known}", ErrorCode.UNKNOWN_TABLE)
        return table

    def release(self, producer: bytes) -> None:
        """A table has forgotten a producer, or never came to know it: where none knows it, it is nobody's any more."""
        if self.authenticator is not None and not any(table.insert_queue.knows(producer) for table in self.tables.values()):
            self.authenticator.forget(producer)

    def begin_to_drain(self) -> None:
        """Nobody new comes; what is here goes to where it belongs."""
        self.draining = True
        for table in self.tables.values():
            table.scheduler.draining = True

    def leave(self, session: Session) -> None:
        """A session is over: what it had borrowed comes back. Its producers stay, for whoever comes to go on with them."""
        for reader in session.readers.values():
            reader.scheduler.close(reader)
        for writer in session.writers.values():
            writer.insert_queue.leave(writer)
        session.readers.clear()
        session.writers.clear()
        self.weights.gone(session.number)
