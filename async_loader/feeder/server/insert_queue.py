"""Inserts of one table: which are new, and in which order they go into the table.

# NOTE [exactly once]
Inserts of a producer are numbered; `received` is the number of the next new one. One with a lower
number was received before: it is acknowledged and dropped. One with a higher number came after a
loss: a GAP asks for all from `received` on. An insert waits in the producer's queue until the table
takes it, and is acknowledged then. The queue belongs to the producer: it outlives sessions.

# NOTE [credits of a queue]
A writer of a queue may hold what its window says, and one message: so that rows do not grow old
with it. Each ACK adds to the window a share of what the queue still takes, which no other writer is
given meanwhile; it lapses when rows of it come, or when the writer leaves. A writer whose window is
used up sends a message as soon as it has a row, and goes on when that is in the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from async_loader.errors import ConfigError, Malformed, SchemaError, Unsupported
from async_loader.feeder.server.counters import BlockedTime
from async_loader.feeder.server.policy_lag import PolicyVersions, Publications, ReceivedLags
from async_loader.feeder.server.producer_streams import (
    InsertSlots,
    Position,
    Positions,
    ProducerStreams,
)
from async_loader.feeder.wire import (
    FINAL,
    Ack,
    ErrorCode,
    Gap,
    Insert,
    RowLayout,
    check_id,
    read_insert,
)
from async_loader.replay.table.nonblocking_table import Incoming, NonblockingTable
from async_loader.schema import Schema

GONE = 4096
"""Producers without a writer that are remembered, in case they come back. Of more, the oldest are
forgotten: actors come and go for weeks."""


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
    """The producer of numbered inserts, over all its sessions.

    Attributes
    ----------
    received, applied : int
        Inserts with lower numbers were received; are in the table.
    streams : ProducerStreams
    skip : int
        Rows of its next insert that are in the table, as a checkpoint has them.
    writers : list of WriterState
        Its open writers.
    versions : dict of str to int
        Newest weights that its steps were made with; see `PolicyVersions`.
    """

    key: bytes
    epoch: int
    streams: ProducerStreams
    received: int = 0
    applied: int = 0
    skip: int = 0
    queue: deque[Queued] = field(default_factory=deque)
    queued_bytes: int = 0
    queued_rows: int = 0
    writers: list[WriterState] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class WriterState:
    """A writer: a producer in a session.

    Attributes
    ----------
    window : int
        Rows that it may have beyond the applied ones, as its last ACK said.
    untold_bytes, untold_rows : int
        Of the INSERTs since that ACK.
    heard : float
        When its last INSERT was received, on the server's clock.
    rows : int
        Steps received.
    gap : tuple of (int, int)
        The newest gap: the missing number, and the highest number received beyond it.
    slots : InsertSlots | None
        Memory that its rows may lie in.
    credit : int
        Rows of a queue that it may add, and that did not come: see NOTE [credits of a queue].
    """

    session: int = field(repr=False)
    number: int
    insert_queue: InsertQueue
    producer: Producer
    epoch: int
    window: int = 0
    untold_bytes: int = 0
    untold_rows: int = 0
    heard: float = 0.0
    rows: int = 0
    gap: tuple[int, int] = (-1, -1)
    slots: InsertSlots | None = None
    credit: int = 0

    @property
    def fenced_by(self) -> int | None:
        """The higher epoch that has taken the producer over."""
        return self.producer.epoch if self.producer.epoch != self.epoch else None

    def check(self) -> None:
        """Raise Malformed, FENCED, if a later epoch of the producer writes."""
        if self.fenced_by is not None:
            text = (
                f"epoch {self.epoch} of this producer is fenced off by epoch {self.fenced_by}: "
                "stop this writer"
            )
            raise Malformed(text, ErrorCode.FENCED, self.fenced_by)


class InsertQueue:
    """The inserts of one table.

    Parameters
    ----------
    name : str
    table : NonblockingTable
    window_bytes, window_rows : int
        What a producer may have waiting; one insert may be larger.
    published : Publications, optional
        Which the steps' versions are compared with.

    Attributes
    ----------
    on_forget : callable
        Called with the key of each forgotten producer.
    rests : bool
        The table is being loaded: no row goes in.
    rows, duplicates, gaps : int
        Steps inserted; inserts received twice; inserts received after a missing one.
    moved : dict of Producer to None
        Producers whose applied inserts are not acknowledged. `InsertHandler` clears it.
    blocked_time : BlockedTime
        When inserts waited for the table. `PullHandler` notes it.
    lags : ReceivedLags
        Of the received steps.
    notes : Positions | None
        Of the save that runs.
    """

    def __init__(
        self,
        name: str,
        table: NonblockingTable,
        window_bytes: int,
        window_rows: int,
        published: Publications | None = None,
    ) -> None:
        self.name, self.table = name, table
        self._window_bytes, self._window_rows = window_bytes, window_rows
        self._layout: RowLayout | None = None
        self._made_by: PolicyVersions | None = None
        self._producers: dict[bytes, Producer] = {}  # in the order in which writers left them
        self._open: dict[WriterState, None] = {}
        self._blocked: deque[Producer] = deque()
        self.on_forget: Callable[[bytes], None] = lambda key: None
        self.moved: dict[Producer, None] = {}
        self.rows = self.duplicates = self.gaps = 0
        self._taken = 0  # rows of all kinds
        self.rests = False
        self.blocked_time = BlockedTime()
        self.lags = ReceivedLags(published or Publications())
        self.notes: Positions | None = None

    @property
    def layout(self) -> RowLayout:
        """Layout of rows in messages. The table has a schema."""
        if self._layout is None:
            assert self.table.schema is not None
            self._layout = RowLayout.of(self.table.schema)
        return self._layout

    # -- writers -----------------------------------------------------------------------------------

    def open(
        self, session: int, number: int, key: bytes, epoch: int, schema: Schema | None
    ) -> tuple[WriterState, bool]:
        """Open a writer; return it, and whether its producer was known before.

        Raises
        ------
        Malformed
            SCHEMA, FENCED.
        AsyncLoaderError
            If no table can have this schema.
        """
        if self.table.closed:
            raise Unsupported(f"table {self.name!r} was closed: nothing is added to it any more")
        self._agree(schema)
        known = self._producers.get(key)
        resumed = known is not None and known.epoch == epoch
        if known is None:
            known = self._producers[key] = Producer(key, epoch, ProducerStreams(key, self.table))
        elif epoch < known.epoch:
            text = (
                f"epoch {epoch} of this producer is fenced off by epoch {known.epoch}: a later one "
                "of it writes now"
            )
            raise Malformed(text, ErrorCode.FENCED, known.epoch)
        elif epoch > known.epoch:
            self._begin(known, epoch)
        writer = WriterState(session, number, self, known, epoch)
        known.writers.append(writer)
        self._open[writer] = None
        writer.window = 0 if self.table.is_queue else self._window_rows
        return writer, resumed

    def leave(self, writer: WriterState) -> None:
        """Close a writer; its producer is remembered, see `GONE`. May be called again."""
        producer = writer.producer
        self._open.pop(writer, None)
        if writer.slots is not None:
            writer.slots.close()
        if writer in producer.writers:
            producer.writers.remove(writer)
            self._release(producer)
            if not producer.writers:
                self._producers[producer.key] = self._producers.pop(producer.key)
                self._forget_some()

    def window_of(self, writer: WriterState) -> int:
        """Return the rows that a writer may have beyond those that are applied, from now on.

        See NOTE [credits of a queue].
        """
        takes = self.table.takes
        if takes is None:
            return self._window_rows
        if not self._blocked:  # what waits comes first
            free = takes - sum(one.credit for one in self._open)
            writer.credit += max(0, free) // len(self._open)
        return min(self._window_rows, writer.producer.queued_rows + writer.credit)

    def _release(self, producer: Producer) -> None:
        """Release ended streams of a producer that does not write. It may continue the others."""
        if not producer.writers and not producer.queue:
            producer.streams.release_ended()

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

    def _begin(self, producer: Producer, epoch: int) -> None:
        """Begin a new epoch.

        Insert the old one's rows as far as possible, and end its open episodes.
        """
        self._advance(producer)
        self._drop_queue(producer)
        producer.streams.end()
        producer.epoch, producer.received, producer.applied = epoch, 0, 0
        producer.skip = 0
        for fenced in producer.writers:
            self._open.pop(fenced, None)
        producer.writers.clear()
        self._release(producer)
        self.moved.pop(producer, None)

    def _drop_queue(self, producer: Producer) -> None:
        if producer.queue:
            self._blocked.remove(producer)
        producer.queue.clear()
        producer.queued_bytes = producer.queued_rows = 0

    def _forget_some(self) -> None:
        """Forget the oldest producers that do not write."""
        over = len(self._producers) - GONE
        if over <= 0:
            return
        idle = [one for one in self._producers.values() if not one.writers and not one.queue]
        for one in idle[: max(0, len(idle) - GONE)]:
            del self._producers[one.key]
            self.moved.pop(one, None)
            one.streams.release()
            self.on_forget(one.key)

    def knows(self, key: bytes) -> bool:
        """Return whether a producer is remembered."""
        return key in self._producers

    # -- inserts -----------------------------------------------------------------------------------

    def receive(
        self, writer: WriterState, sequence: int, body: Insert, schema: int, seen: bool = False
    ) -> type[Ack] | None:
        """Take an insert. ``seen``: an earlier server may have delivered its rows.

        Return what its writer has to be told now: an ACK of one that was received before, a GAP if
        earlier ones are missing, unless it was told before it sent this one.

        Raises
        ------
        Malformed
            FENCED, SCHEMA, LIMIT, and for rows that do not fit the schema. Nothing was received
            then.
        """
        writer.check()
        producer = writer.producer
        if sequence < producer.received:
            self.duplicates += 1
            return Ack
        if sequence > producer.received:
            self.gaps += 1
            (missing, highest), writer.gap = writer.gap, (producer.received, sequence)
            return None if missing == producer.received and sequence > highest else Gap
        nbytes = body.nbytes
        if producer.queue and (
            producer.queued_bytes + nbytes > 2 * self._window_bytes
            or producer.queued_rows + body.rows > 2 * self._window_rows
        ):
            text = (
                f"{producer.queued_rows} rows ({producer.queued_bytes} bytes) of this writer wait "
                "to be inserted"
            )
            raise Malformed(f"{text}: keep to the window", ErrorCode.LIMIT)
        steps, count = self._read(producer, body, schema, seen)
        done, producer.skip = min(producer.skip, len(steps)), 0
        producer.queue.append(Queued(steps, nbytes, writer.heard, count, done))
        producer.queued_bytes += nbytes
        producer.queued_rows += len(steps)
        producer.received += 1
        writer.rows += count
        writer.credit = max(0, writer.credit - len(steps))
        if len(producer.queue) == 1 and not self._advance(producer):
            self._blocked.append(producer)
            self.blocked_time.note(True, writer.heard)
        return None

    def _read(
        self, producer: Producer, body: Insert, schema: int, seen: bool
    ) -> tuple[Incoming, int]:
        """Return the rows of an insert, checked, and how many are steps; note their versions."""
        if self.table.closed:
            raise Malformed(
                f"table {self.name!r} was closed: nothing is added to it any more",
                ErrorCode.UNSUPPORTED,
            )
        check_id(schema, self.layout.schema_id)
        rows = read_insert(body, self.layout)
        flags, priorities = rows.flags.astype(np.int64), np.ascontiguousarray(rows.priorities)
        try:
            self.table.check(
                Incoming(rows.streams.astype(np.int64), flags, priorities, rows.columns)
            )
        except (SchemaError, ConfigError) as error:
            raise Malformed(str(error)) from None
        streams, count = producer.streams.of(rows.streams), _steps(flags)
        if self._made_by is None:
            assert self.table.schema is not None
            self._made_by = PolicyVersions(self.table.schema)
        for policy, version in self._made_by.note(rows.columns, producer.versions):
            self.lags.add(policy, version, count)
        return Incoming(streams, flags, priorities, rows.columns, seen), count

    def _advance(self, producer: Producer) -> bool:
        """Insert what the table takes now; return whether the queue is empty."""
        while producer.queue:
            if not self._advance_one(producer):
                return False
        return True

    def _advance_one(self, producer: Producer) -> bool:
        """Insert the next message; return whether all of its rows are in."""
        first = producer.queue[0]
        before = first.done
        first.done = self.table.insert(first.steps, before)
        whole = first.done - before == len(first.steps)
        self.rows += first.count if whole else _steps(first.steps.flags[before : first.done])
        self._taken += first.done - before
        if first.done < len(first.steps):
            self._note(producer, first.done)
            return False
        producer.queue.popleft()
        producer.queued_bytes -= first.nbytes
        producer.queued_rows -= len(first.steps)
        producer.applied += 1
        self._note(producer, 0)
        self.moved[producer] = None
        if not producer.writers:
            self._release(producer)
        return True

    def _note(self, producer: Producer, done: int) -> None:
        if self.notes is not None:
            at = Position(producer.key, producer.epoch, producer.applied, done)
            self.notes.note(self.table.rows_had, at)

    def positions(self) -> Iterator[Position]:
        """Return where each producer is."""
        for one in self._producers.values():
            done = one.queue[0].done if one.queue else one.skip
            yield Position(one.key, one.epoch, one.applied, done)

    def restore(self, positions: Iterable[Position]) -> None:
        """Remember the producers of a checkpoint, which was loaded into the new table."""
        for at in positions:
            one = Producer(at.key, at.epoch, ProducerStreams(at.key, self.table))
            one.received = one.applied = at.applied
            one.skip = at.done
            self._producers[at.key] = one

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
            before = producer.streams.renumber()
            for one in producer.queue:
                said = np.array([before[old] for old in one.steps.streams.tolist()], np.uint32)
                one.steps = replace(one.steps, streams=producer.streams.of(said))

    def give_up(self) -> list[WriterState]:
        """Drop waiting inserts of a closed table; return its writers."""
        for producer in list(self._blocked):
            self._drop_queue(producer)
        return [writer for one in self._producers.values() for writer in one.writers]

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
        if not reason:
            return []
        count, first = len(self._blocked), self._blocked[0].key.hex()[:8]
        who = (
            f"producer {first}"
            if count == 1
            else f"{count} producers (producer {first} and others)"
        )
        return [(f"{who} to insert: {reason}", min(one.queue[0].since for one in self._blocked))]


def _steps(flags: Any) -> int:
    """Return how many rows are steps: FINAL ones are observations after them, or ends only."""
    return int(np.count_nonzero(flags & FINAL == 0))
