"""Inserts of one table: which are new, and in which order they go into the table.

# NOTE [exactly once]
Inserts of a producer are numbered; `received` is the number of the next new one. One with a lower
number was received before: it is acknowledged and dropped. One with a higher number came after one
that was refused: the writer is to be opened again, which says where it goes on. An insert waits in
the producer's queue until the table takes it, and is acknowledged then. The queue belongs to the
producer: it outlives sessions.

# NOTE [credits of a queue]
A writer of a queue may hold what its window says, and one message: so that rows do not grow old
with it. Each ACK adds to the window a share of what the queue still takes, which no other writer is
given meanwhile; it lapses when rows of it come, or when the writer leaves. A writer whose window is
used up sends a message as soon as it has a row, and goes on when that is in the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError, Malformed, SchemaError
from async_loader.feeder.server.counters import BlockedTime
from async_loader.feeder.server.policy_lag import versions_in
from async_loader.feeder.wire import (
    FINAL,
    STREAMS,
    ErrorCode,
    Insert,
    RowLayout,
    check_id,
    read_insert,
)
from async_loader.replay.table.nonblocking_table import Incoming, NonblockingTable, Position
from async_loader.schema import Schema

if TYPE_CHECKING:
    from async_loader.feeder.server.shared_memory import InsertSlots

GONE = 4096
"""Producers without a writer that are remembered, in case they come back. Of more, the oldest are
forgotten: actors come and go for weeks."""
_UNUSED = -1


@dataclass(slots=True, eq=False)
class Queued:
    """A received insert: since when, on the server's clock.

    ``done`` of its rows are in the table. ``count``: its steps, without rows that are none.
    """

    steps: Incoming
    nbytes: int
    since: float
    count: int
    done: int = 0


@dataclass(slots=True, eq=False)
class Producer:
    """A writer of numbered inserts, over all its sessions.

    Attributes
    ----------
    received, applied : int
        Inserts with lower numbers were received; are in the table.
    skip : int
        Rows of its next insert that are in the table, as a checkpoint has them.
    versions : dict of str to int
        Newest weights that its steps were made with.
    streams : int64 array
        The table's number of each of its streams.
    session, number : int
        Of its open writer; session 0: it has none.
    window : int
        Rows that it may have beyond the applied ones, as its last ACK said.
    untold_bytes, untold_rows : int
        Of the INSERTs since that ACK.
    heard : float
        When its last INSERT was received, on the server's clock.
    rows : int
        Steps received since the writer was opened.
    slots : InsertSlots | None
        Memory that its rows may lie in.
    credit : int
        Rows of a queue that it may add, and that did not come: see NOTE [credits of a queue].
    """

    key: bytes
    insert_queue: InsertQueue
    received: int = 0
    applied: int = 0
    skip: int = 0
    queue: deque[Queued] = field(default_factory=deque)
    queued_bytes: int = 0
    queued_rows: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    streams: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    session: int = field(default=0, repr=False)
    number: int = 0
    window: int = 0
    untold_bytes: int = 0
    untold_rows: int = 0
    heard: float = 0.0
    rows: int = 0
    slots: InsertSlots | None = None
    credit: int = 0

    @property
    def position(self) -> Position:
        """Where it is, for a save."""
        return self.key.hex(), self.applied, self.queue[0].done if self.queue else self.skip

    def table_streams(self, own: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Return the table's streams by its own numbers; new ones are added.

        Raises Malformed for a number too high.
        """
        most, table = int(own.max()), self.insert_queue.table
        if most >= len(self.streams):
            if most >= STREAMS:
                text = f"a row is of stream {most}, a producer has at most {STREAMS}"
                raise Malformed(f"{text}: number streams from 0")
            more = np.full(max(most + 1, 2 * len(self.streams)), _UNUSED, np.int64)
            more[: len(self.streams)] = self.streams
            self.streams = more
        numbers = self.streams[own]
        if (numbers < 0).any():
            for one in np.unique(own[numbers < 0]).tolist():
                self.streams[one] = table.stream((self.key.hex(), one))
            numbers = self.streams[own]
        return numbers

    def release_streams(self, end: bool) -> None:
        """Let the table forget the streams whose episodes have ended; ``end``: end them all."""
        table, used = self.insert_queue.table, self.streams[self.streams != _UNUSED].tolist()
        if end:
            table.end(used)
        over = [one for one in used if not table.is_open(one)]
        table.release(over)
        self.streams[np.isin(self.streams, over)] = _UNUSED
        if len(over) == len(used):
            self.streams = np.empty(0, np.int64)


class InsertQueue:
    """The inserts of one table.

    Parameters
    ----------
    name : str
    table : NonblockingTable
    window_rows : int
        What a producer may have waiting; one insert may be larger.

    Attributes
    ----------
    rests : bool
        The table is being loaded: no row goes in.
    rows, duplicates : int
        Steps inserted; inserts received twice.
    moved : dict of Producer to None
        Producers whose applied inserts are not acknowledged. `InsertHandler` clears it.
    blocked_time : BlockedTime
        When inserts waited for the table. `PullHandler` notes it.
    """

    def __init__(
        self,
        name: str,
        table: NonblockingTable,
        window_rows: int,
    ) -> None:
        self.name, self.table = name, table
        self._window_rows = window_rows
        self._layout: RowLayout | None = None
        self._versions: dict[str, int] = {}
        self._producers: dict[bytes, Producer] = {}
        self._open: dict[Producer, None] = {}
        self._blocked: deque[Producer] = deque()
        self.moved: dict[Producer, None] = {}
        self.rows = self.duplicates = 0
        self._taken = 0  # rows of all kinds
        self.rests = False
        self.blocked_time = BlockedTime()

    @property
    def layout(self) -> RowLayout:
        """Layout of rows in messages. The table has a schema."""
        if self._layout is None:
            assert self.table.schema is not None
            self._layout = RowLayout.of(self.table.schema)
            self._versions = versions_in(self.table.schema)
        return self._layout

    # -- writers -----------------------------------------------------------------------------------

    def open(
        self, session: int, number: int, key: bytes, schema: Schema | None
    ) -> tuple[Producer, bool]:
        """Open a writer; return it, and whether it was known before. An earlier one is closed.

        Raises
        ------
        Malformed
            SCHEMA.
        AsyncLoaderError
            If no table can have this schema.
        """
        self._agree(schema)
        writer = self._producers.get(key)
        resumed = writer is not None
        if writer is None:
            if self.table.kept is not None and self.table.kept.full:
                text = f"table {self.name!r} is kept, and knows {len(self._producers):,} producers"
                raise Malformed(f"{text}: close writers", ErrorCode.LIMIT)
            writer = self._producers[key] = Producer(key, self)
        else:
            self.leave(writer, writer.session)
        writer.session, writer.number = session, number
        writer.untold_bytes = writer.untold_rows = writer.rows = writer.credit = 0
        writer.window = 0 if self.table.is_queue else self._window_rows
        self._open[writer] = None
        return writer, resumed

    def leave(self, writer: Producer, session: int) -> None:
        """Close the writer of a session; it is remembered, see `GONE`. May be called again."""
        if not session or writer.session != session:
            return
        writer.session = 0
        del self._open[writer]
        slots, writer.slots = writer.slots, None
        if slots is not None:
            slots.close()
        self._release(writer)
        if len(self._producers) > GONE:
            self._forget_some()

    def window_of(self, writer: Producer) -> int:
        """Return the rows that a writer may have beyond those that are applied, from now on.

        See NOTE [credits of a queue].
        """
        takes = self.table.takes
        if takes is None:
            return self._window_rows
        if not self._blocked:  # what waits comes first
            free = takes - sum(one.credit for one in self._open)
            writer.credit += max(0, free) // len(self._open)
        return min(self._window_rows, writer.queued_rows + writer.credit)

    def _release(self, producer: Producer) -> None:
        """Release ended streams of a producer that does not write. It may continue the others."""
        if not producer.session and not producer.queue and len(producer.streams):
            producer.release_streams(end=False)

    def _agree(self, schema: Schema | None) -> None:
        if self.table.schema is None:
            if schema is None:
                raise Malformed(
                    f"table {self.name!r} has no schema yet: send one", ErrorCode.SCHEMA
                )
            RowLayout.of(schema).rows_within()
            try:
                self.table.start(schema)
            except (ConfigError, SchemaError) as error:
                raise Malformed(str(error), ErrorCode.SCHEMA) from error
        elif schema is not None and RowLayout.of(schema).schema_id != self.layout.schema_id:
            text = f"table {self.name!r} holds ({self.table.schema}), the writer has ({schema})"
            raise Malformed(text[:500], ErrorCode.SCHEMA, self.layout.schema_id)

    def _forget_some(self) -> None:
        """Forget the oldest producers that do not write."""
        idle = [one for one in self._producers.values() if not one.session and not one.queue]
        idle.sort(key=lambda one: one.heard)
        for one in idle[: max(0, len(idle) - GONE)]:
            del self._producers[one.key]
            if self.table.kept is not None:
                self.table.kept.forget(one.key)
            self.moved.pop(one, None)
            one.release_streams(end=True)

    # -- inserts -----------------------------------------------------------------------------------

    def receive(
        self, writer: Producer, sequence: int, body: Insert, schema: int, seen: bool = False
    ) -> bool:
        """Take an insert; return whether it is new. ``seen``: an earlier server may have
        delivered its rows.

        Raises
        ------
        Malformed
            UNKNOWN_WRITER if earlier ones are missing; SCHEMA, and for rows that do not fit the
            schema. Nothing was received then.
        """
        if sequence < writer.received:
            self.duplicates += 1
            return False
        if sequence > writer.received:
            text = f"INSERT {sequence} came, {writer.received} is missing: open the writer again"
            raise Malformed(text, ErrorCode.UNKNOWN_WRITER, writer.received)
        steps, count = self._read(writer, body, schema, seen)
        done = min(writer.skip, len(steps))
        nbytes = body.nbytes
        writer.queue.append(Queued(steps, nbytes, writer.heard, count, done))
        writer.skip = 0  # after: a save reads `positions` at any time
        writer.queued_bytes += nbytes
        writer.queued_rows += len(steps)
        writer.received += 1
        writer.rows += count
        writer.credit = max(0, writer.credit - len(steps))
        if len(writer.queue) == 1 and not self._advance_one(writer):
            self._blocked.append(writer)
            self.blocked_time.note(True, writer.heard)
        return True

    def _read(
        self, producer: Producer, body: Insert, schema: int, seen: bool
    ) -> tuple[Incoming, int]:
        """Return the rows of an insert, checked, and how many are steps; note their versions."""
        check_id(schema, self.layout.schema_id)
        rows = read_insert(body, self.layout)
        flags, priorities = rows.flags.astype(np.int64), np.ascontiguousarray(rows.priorities)
        try:
            self.table.check(
                Incoming(rows.streams.astype(np.int64), flags, priorities, rows.columns)
            )
        except (SchemaError, ConfigError) as error:
            raise Malformed(str(error)) from None
        streams, count = producer.table_streams(rows.streams), _steps(flags)
        for name, i in self._versions.items():  # final observations have 0
            newest = max(producer.versions.get(name, 0), int(rows.columns[i].max()))
            producer.versions[name] = newest
        return Incoming(streams, flags, priorities, rows.columns, seen), count

    def _advance_one(self, producer: Producer) -> bool:
        """Insert the next message; return whether all of its rows are in."""
        first = producer.queue[0]
        self.table.insert(first.steps, first.done, partial(self._went_in, producer, first))
        if producer.queue and producer.queue[0] is first:
            return False
        self.moved[producer] = None
        self._release(producer)
        return True

    def _went_in(self, producer: Producer, first: Queued, done: int) -> Position:
        """Note the rows that went in. Return where the producer is. Under the table's lock: a save
        takes `positions` there.
        """
        steps, before = first.steps, first.done
        whole = done - before == len(steps)
        self.rows += first.count if whole else _steps(steps.flags[before:done])
        self._taken += done - before
        first.done = done
        if done == len(steps):
            producer.queue.popleft()
            producer.queued_bytes -= first.nbytes
            producer.queued_rows -= len(steps)
            producer.applied += 1
        return producer.position

    def positions(self) -> list[Position]:
        """Return where each producer is. Under the table's lock, or in the loop."""
        return [one.position for one in list(self._producers.values())]

    def restore(self, positions: Iterable[Position], note: bool = True) -> None:
        """Remember the producers of a checkpoint, which was loaded into the new table."""
        for position in positions:
            key, applied, done = position
            one = Producer(bytes.fromhex(key), self, applied, applied, done)
            self._producers[one.key] = one
            if note:
                self.table.note_position(position)

    def advance(self) -> bool:
        """Insert waiting messages, one of each producer in turn; return whether a row went in."""
        before = self._taken
        while self._blocked and self._advance_one(self._blocked[0]):
            producer = self._blocked.popleft()
            if producer.queue:
                self._blocked.append(producer)
        return self._taken > before

    def begin_anew(self) -> None:
        """Renumber all streams after a load: they are found by their names."""
        for producer in self._producers.values():
            before = {number: own for own, number in enumerate(producer.streams.tolist())}
            producer.streams = np.empty(0, np.int64)
            for one in producer.queue:
                own = np.array([before[old] for old in one.steps.streams.tolist()], np.uint32)
                one.steps = replace(one.steps, streams=producer.table_streams(own))

    @property
    def blocked(self) -> bool:
        """Whether inserts wait for the table."""
        return bool(self._blocked)

    def queued(self) -> tuple[int, int, float | None]:
        """Return rows and bytes that wait for the table, and since when the oldest one waits."""
        blocked = list(self._blocked)
        return (
            sum(one.queued_rows - one.queue[0].done for one in blocked),
            sum(one.queued_bytes for one in blocked),
            min((one.queue[0].since for one in blocked), default=None),
        )

    def waiting(self) -> list[tuple[str, float]]:
        """Return which producers wait, why, and since when on the server's clock."""
        reason = self.table.why_not_insert() if self._blocked else None
        return [
            (f"producer {one.key.hex()[:8]} to insert: {reason}", one.queue[0].since)
            for one in self._blocked
            if reason
        ]


def _steps(flags: Any) -> int:
    """Return how many rows are steps: FINAL ones are observations after them, or ends only."""
    return int(np.count_nonzero(flags & FINAL == 0))
