"""Inserts: which are new, in which order they go into a table, and what their writers are told. Has no socket and no clock.

NOTE [exactly once]. Inserts of a producer are numbered; `received` is the number of the next that is new. What has a lower one
was received before, is acknowledged and dropped; what has a higher one came after a loss, and is asked for again from `received`
on.
What was received waits in the producer's queue until the table lets it in, and is acknowledged then. The queue belongs to the
producer, not to a session: when its client connects again, what it had sent is still there, and is not taken twice.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError, Malformed, SchemaError, Unsupported
from async_loader.feeder.server.policy_lag import PolicyVersions
from async_loader.feeder.wire import ErrorCode, Insert, RowLayout, check_id, read_insert
from async_loader.replay.table.nonblocking_table import Incoming, ServedTable
from async_loader.schema import Schema

_STREAMS = 1 << 16  # of one producer
GONE, CLOSED = 4096, 256
"""Producers that are remembered though nothing writes for them: those that went without a word, for they may come back; and
those that closed in good order, since the answer to that may be lost. Of more than these the earliest are forgotten."""
_NOBODY = -1
_NO_STREAMS: npt.NDArray[np.int64] = np.empty(0, np.int64)


class Receipt(Enum):
    """What became of an insert."""

    NEW = "new"
    AGAIN = "again"
    """It had come before."""
    GAP = "gap"
    """Others are missing before it, which its writer is to be told."""
    AFTER_GAP = "after gap"
    """As GAP, and its writer was told before it can have sent this one."""


@dataclass(slots=True, eq=False)
class Queued:
    """An insert that was received, since when (on the server's clock), and how far it is in the table."""

    steps: Incoming
    nbytes: int
    since: float
    done: int = 0


@dataclass(slots=True, eq=False)
class Producer:
    """One that numbers its inserts, over all its sessions.

    Attributes
    ----------
    received, applied : int
        Inserts with lower numbers were received; are in the table.
    writers : list of WriterState
        Who writes for it now.
    versions : dict of str to int
        The newest weights that its steps were made with; see `PolicyVersions`.
    """

    key: bytes
    epoch: int
    received: int = 0
    applied: int = 0
    queue: deque[Queued] = field(default_factory=deque)
    queued_bytes: int = 0
    queued_rows: int = 0
    writers: list[WriterState] = field(default_factory=list)
    streams: npt.NDArray[np.int64] = field(default_factory=lambda: _NO_STREAMS)
    versions: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class WriterState:
    """A producer in a session.

    Attributes
    ----------
    fenced_by : int | None
        The epoch of whoever took the producer over.
    told : int
        What its last ACK said was applied.
    untold_bytes, untold_rows : int
        Of the INSERTs that came since.
    heard : float
        When its last INSERT came, on the server's clock.
    gap : tuple of (int, int)
        The newest gap: what was missing, and the highest number that came without it.
    """

    session: int = field(repr=False)
    number: int
    insert_queue: InsertQueue
    producer: Producer
    epoch: int
    told: int = 0
    untold_bytes: int = 0
    untold_rows: int = 0
    heard: float = 0.0
    gap: tuple[int, int] = (-1, -1)

    @property
    def fenced_by(self) -> int | None:
        return self.producer.epoch if self.producer.epoch != self.epoch else None

    def check(self) -> None:
        """Raises Malformed, FENCED."""
        if self.fenced_by is not None:
            text = f"epoch {self.epoch} of this producer is fenced off by epoch {self.fenced_by}: stop this writer"
            raise Malformed(text, ErrorCode.FENCED, self.fenced_by)


class InsertQueue:
    """The inserts of one table.

    Parameters
    ----------
    name : str
    table : ServedTable
    window_bytes, window_rows : int
        What a producer may have waiting; an insert that is larger may be alone.

    Attributes
    ----------
    on_forget : callable
        Told of each producer that is not remembered any more.
    rests : bool
        The table is being loaded: nothing goes in.
    moved : dict of Producer to None
        Those with inserts that came into the table and were not acknowledged yet; whoever does that clears it.
    """

    def __init__(self, name: str, table: ServedTable, window_bytes: int, window_rows: int) -> None:
        self.name, self.table = name, table
        self._window_bytes, self._window_rows = window_bytes, window_rows
        self._layout: RowLayout | None = None
        self._made_by: PolicyVersions | None = None
        self._producers: dict[bytes, Producer] = {}
        self._gone: OrderedDict[bytes, Producer] = OrderedDict()
        self._closed: OrderedDict[bytes, Producer] = OrderedDict()
        self._blocked: deque[Producer] = deque()
        self.on_forget: Callable[[bytes], None] = lambda key: None
        self.moved: dict[Producer, None] = {}
        self.rows = self.duplicates = self.gaps = 0
        self.rests = False

    @property
    def layout(self) -> RowLayout:
        """How rows travel. The table has a schema."""
        if self._layout is None:
            assert self.table.schema is not None
            self._layout = RowLayout.of(self.table.schema)
        return self._layout

    # -- who writes ------------------------------------------------------------------------------------------------------

    def open(self, session: int, number: int, key: bytes, epoch: int, schema: Schema | None) -> tuple[WriterState, bool]:
        """A writer, and whether its producer is known from before.

        Raises
        ------
        Malformed
            SCHEMA, FENCED.
        AsyncLoaderError
            If there can be no table of this schema.
        """
        if self.table.closed:
            raise Unsupported(f"table {self.name!r} was closed: nothing is added to it any more")
        self._agree(schema)
        known = self._producers.get(key)
        resumed = known is not None and known.epoch == epoch
        if known is None:
            known = self._producers[key] = Producer(key, epoch)
        elif epoch < known.epoch:
            text = f"epoch {epoch} of this producer is fenced off by epoch {known.epoch}: a later one of it writes now"
            raise Malformed(text, ErrorCode.FENCED, known.epoch)
        elif epoch > known.epoch:
            self._begin(known, epoch)
        writer = WriterState(session, number, self, known, epoch, known.applied)
        known.writers.append(writer)
        self._gone.pop(key, None)
        self._closed.pop(key, None)
        return writer, resumed

    def leave(self, writer: WriterState, closed: bool = False) -> None:
        """It writes no more; its producer is remembered for a while, see `GONE`. Again does nothing.

        ``closed``: in good order, with everything in the table.
        """
        producer = writer.producer
        if writer in producer.writers:
            producer.writers.remove(writer)
            self._release(producer)
            if not producer.writers:
                (self._closed if closed else self._gone)[producer.key] = producer
                self._forget_some(self._closed, CLOSED)
                self._forget_some(self._gone, GONE)

    def _release(self, producer: Producer) -> None:
        """Let the table forget its streams whose episodes have ended, if it does not write. It may go on with the others."""
        if producer.writers or producer.queue or not len(producer.streams):
            return
        left = producer.streams.copy()
        left[[one for one in np.flatnonzero(left != _NOBODY) if not self.table.is_open(int(left[one]))]] = _NOBODY
        self.table.release(producer.streams[producer.streams != left].tolist())
        producer.streams = left if (left != _NOBODY).any() else _NO_STREAMS

    def _agree(self, schema: Schema | None) -> None:
        if self.table.schema is None:
            if schema is None:
                raise Malformed(f"table {self.name!r} has no schema yet: send one", ErrorCode.SCHEMA)
            RowLayout.of(schema).rows_within()
            self.table.start(schema)
        elif schema is not None and RowLayout.of(schema).schema_id != self.layout.schema_id:
            text = f"table {self.name!r} holds ({self.table.schema}), the writer has ({schema})"
            raise Malformed(text[:500], ErrorCode.SCHEMA, self.layout.schema_id)

    def _begin(self, producer: Producer, epoch: int) -> None:
        """Its earlier process is gone for good: what that sent is let in as far as possible, its open episodes are cut off."""
        self._advance(producer)
        self._drop_queue(producer)
        self.table.end([int(one) for one in producer.streams if one != _NOBODY])
        producer.epoch, producer.received, producer.applied = epoch, 0, 0
        producer.writers.clear()
        self._release(producer)
        self.moved.pop(producer, None)

    def _drop_queue(self, producer: Producer) -> None:
        if producer.queue:
            self._blocked.remove(producer)
        producer.queue.clear()
        producer.queued_bytes = producer.queued_rows = 0

    def _forget_some(self, idle: OrderedDict[bytes, Producer], most: int) -> None:
        """Actors come and go for weeks: of those that are gone only the last ones are remembered."""
        if len(idle) <= most:
            return
        forgotten = next((one for one in idle.values() if not one.queue), None)
        if forgotten is not None:
            del idle[forgotten.key], self._producers[forgotten.key]
            self.moved.pop(forgotten, None)
            streams = [int(one) for one in forgotten.streams if one != _NOBODY]
            self.table.end(streams)
            self.table.release(streams)
            self.on_forget(forgotten.key)

    def knows(self, key: bytes) -> bool:
        """Whether a producer is remembered."""
        return key in self._producers

    # -- what they write -------------------------------------------------------------------------------------------------

    def receive(self, writer: WriterState, sequence: int, body: Insert, schema: int, seen: bool = False) -> Receipt:
        """Take an insert. ``seen``: an earlier server may have handed its rows out.

        Raises
        ------
        Malformed
            FENCED, SCHEMA, LIMIT, and for rows that are not what the schema says. Nothing was received then.
        """
        writer.check()
        producer = writer.producer
        if sequence < producer.received:
            self.duplicates += 1
            return Receipt.AGAIN
        if sequence > producer.received:
            self.gaps += 1
            (missing, highest), writer.gap = writer.gap, (producer.received, sequence)
            return Receipt.AFTER_GAP if missing == producer.received and sequence > highest else Receipt.GAP
        nbytes = body.nbytes
        if producer.queue and (
            producer.queued_bytes + nbytes > 2 * self._window_bytes or producer.queued_rows + body.rows > 2 * self._window_rows
        ):
            text = f"{producer.queued_rows} rows ({producer.queued_bytes} bytes) of this writer wait to be inserted"
            raise Malformed(f"{text}: keep to the window", ErrorCode.LIMIT)
        steps = self._read(producer, body, schema, seen)
        if self._made_by is None:
            assert self.table.schema is not None
            self._made_by = PolicyVersions(self.table.schema)
        self._made_by.note(steps.columns, producer.versions)
        producer.queue.append(Queued(steps, nbytes, writer.heard))
        producer.queued_bytes += nbytes
        producer.queued_rows += len(steps)
        producer.received += 1
        if len(producer.queue) == 1 and not self._advance(producer):
            self._blocked.append(producer)
        return Receipt.NEW

    def _read(self, producer: Producer, body: Insert, schema: int, seen: bool) -> Incoming:
        """Its steps, if they are as they should be."""
        if self.table.closed:
            raise Malformed(f"table {self.name!r} was closed: nothing is added to it any more", ErrorCode.UNSUPPORTED)
        check_id(schema, self.layout.schema_id)
        rows = read_insert(body, self.layout)
        flags, priorities = rows.flags.astype(np.int64), np.ascontiguousarray(rows.priorities)
        try:
            self.table.check(Incoming(rows.streams.astype(np.int64), flags, priorities, rows.columns))
        except (SchemaError, ConfigError) as error:
            raise Malformed(str(error)) from None
        return Incoming(self._streams(producer, rows.streams), flags, priorities, rows.columns, seen)

    def _streams(self, producer: Producer, said: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """The table's streams for those that a producer numbers by itself."""
        most = int(said.max())
        if most >= len(producer.streams):
            if most >= _STREAMS:
                raise Malformed(f"a row is of stream {most}, a producer has at most {_STREAMS}: number streams from 0")
            more = np.full(max(most + 1, 2 * len(producer.streams)), _NOBODY, np.int64)
            more[: len(producer.streams)] = producer.streams
            producer.streams = more
        numbers = producer.streams[said]
        if (numbers < 0).any():
            for one in np.unique(said[numbers < 0]).tolist():
                producer.streams[one] = self.table.stream((producer.key.hex(), one))
            numbers = producer.streams[said]
        return numbers

    def _advance(self, producer: Producer) -> bool:
        """Let in what the table takes now; whether that is everything."""
        while producer.queue:
            if not self._advance_one(producer):
                return False
        return True

    def _advance_one(self, producer: Producer) -> bool:
        """Let its next insert in; whether all of it is."""
        first = producer.queue[0]
        before = first.done
        first.done = self.table.insert(first.steps, before)
        self.rows += first.done - before
        if first.done < len(first.steps):
            return False
        producer.queue.popleft()
        producer.queued_bytes -= first.nbytes
        producer.queued_rows -= len(first.steps)
        producer.applied += 1
        self.moved[producer] = None
        if not producer.writers:
            self._release(producer)
        return True

    def advance(self) -> bool:
        """Let in what waits, an insert of each producer in turn; whether anything came in."""
        before = self.rows
        while self._blocked and self._advance_one(self._blocked[0]):
            producer = self._blocked.popleft()
            if producer.queue:
                self._blocked.append(producer)
        return self.rows > before

    def begin_anew(self) -> None:
        """The table was loaded: its streams have other numbers, and are found by their names."""
        for producer in self._producers.values():
            before = {number: said for said, number in enumerate(producer.streams.tolist()) if number != _NOBODY}
            producer.streams = _NO_STREAMS
            for one in producer.queue:
                one.steps = self._again(producer, one.steps, before)

    def _again(self, producer: Producer, steps: Incoming, before: dict[int, int]) -> Incoming:
        """Steps that wait, under the numbers that their streams have now."""
        said = np.array([before[one] for one in steps.streams.tolist()], np.uint32)
        return replace(steps, streams=self._streams(producer, said))

    def give_up(self) -> list[WriterState]:
        """The table was closed: what waits is dropped. Who wrote to it."""
        for producer in list(self._blocked):
            self._drop_queue(producer)
        return [writer for one in self._producers.values() for writer in one.writers]

    @property
    def blocked(self) -> bool:
        """Whether inserts wait for the table."""
        return bool(self._blocked)

    def waiting(self) -> list[tuple[str, float]]:
        """Who waits and for what, and since when on the server's clock."""
        reason = self.table.why_not_insert() if self._blocked else None
        if not reason:
            return []
        count, first = len(self._blocked), self._blocked[0].key.hex()[:8]
        who = f"producer {first}" if count == 1 else f"{count} producers (producer {first} and others)"
        return [(f"{who} to insert: {reason}", min(one.queue[0].since for one in self._blocked))]
