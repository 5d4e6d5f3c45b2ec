"""Inserts: which are new, in which order they go into a table, and what their writers are told. Has no socket and no clock.

NOTE [exactly once]. Inserts of a producer are numbered; `received` is the number of the next that is new. What has a lower one was
received before, is acknowledged and dropped; what has a higher one came after a loss, and is asked for again from `received` on.
What was received waits in the producer's queue until the table lets it in, and is acknowledged then. The queue belongs to the
producer, not to a session: when its client connects again, what it had sent is still there, and is not taken twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError, Malformed, SchemaError
from async_loader.feeder.wire import ErrorCode, Insert, Message, RowLayout, check_id, read_insert
from async_loader.replay.served import Incoming, ServedTable
from async_loader.schema import Schema

_STREAMS = 1 << 20  # of one producer


@dataclass(slots=True, eq=False)
class Queued:
    """An insert that was received: how far it is in the table."""

    steps: Incoming
    nbytes: int
    done: int = 0


@dataclass(slots=True, eq=False)
class Producer:
    """One that numbers its inserts, over all its sessions.

    Attributes
    ----------
    received, applied : int
        Inserts with lower numbers were received; are in the table.
    """

    name: str
    epoch: int
    received: int = 0
    applied: int = 0
    queue: deque[Queued] = field(default_factory=deque)
    queued_bytes: int = 0
    streams: npt.NDArray[np.int64] = field(default_factory=lambda: np.full(8, -1, np.int64))


@dataclass(slots=True, eq=False)
class WriterState:
    """A producer in a session.

    Attributes
    ----------
    fenced_by : int | None
        The epoch of whoever took the producer over.
    told : int
        What its last ACK said was applied.
    closing : tuple of (int, Message) | None
        How many inserts have to be in the table before a CLOSE_WRITER is answered, and that message.
    """

    number: int
    intake: Intake
    producer: Producer
    epoch: int
    told: int = 0
    closing: tuple[int, Message] | None = None

    @property
    def fenced_by(self) -> int | None:
        return self.producer.epoch if self.producer.epoch != self.epoch else None


class Intake:
    """The inserts of one table.

    Parameters
    ----------
    name : str
    table : ServedTable
    """

    def __init__(self, name: str, table: ServedTable) -> None:
        self.name, self.table = name, table
        self._layout: RowLayout | None = None
        self._producers: dict[bytes, Producer] = {}
        self._blocked: deque[Producer] = deque()
        self.rows = self.duplicates = self.gaps = 0

    @property
    def layout(self) -> RowLayout:
        """How rows travel. The table has a schema."""
        if self._layout is None:
            assert self.table.schema is not None
            self._layout = RowLayout.of(self.table.schema, headed=True)
        return self._layout

    def open(self, number: int, producer: bytes, epoch: int, schema: Schema | None) -> tuple[WriterState, bool]:
        """A writer, and whether its producer is known from before.

        Raises
        ------
        Malformed
            SCHEMA, FENCED.
        AsyncLoaderError
            If there can be no table of this schema.
        """
        self._agree(schema)
        known = self._producers.get(producer)
        if known is not None and epoch < known.epoch:
            text = f"epoch {epoch} of this producer is fenced off by epoch {known.epoch}: a later one of it writes now"
            raise Malformed(text, ErrorCode.FENCED, known.epoch)
        if known is None or epoch > known.epoch:
            if known is not None:
                self._end(known)
            known = self._producers[producer] = Producer(producer.hex(), epoch)
            return WriterState(number, self, known, epoch), False
        return WriterState(number, self, known, epoch), True

    def _agree(self, schema: Schema | None) -> None:
        if self.table.schema is None:
            if schema is None:
                raise Malformed(f"table {self.name!r} has no schema yet: send one", ErrorCode.SCHEMA)
            self.table.start(schema)
        elif schema is not None and RowLayout.of(schema, headed=True).schema_id != self.layout.schema_id:
            text = f"table {self.name!r} holds ({self.table.schema}), the writer has ({schema})"
            raise Malformed(text[:500], ErrorCode.SCHEMA, self.layout.schema_id)

    def _end(self, producer: Producer) -> None:
        """Its process is gone for good: what it sent is let in as far as possible, its open episodes are cut off."""
        self._advance(producer)
        if producer in self._blocked:
            self._blocked.remove(producer)
        self.table.end([int(one) for one in producer.streams if one >= 0])

    def receive(self, writer: WriterState, sequence: int, body: Insert, schema: int) -> bool:
        """Take an insert; whether its writer should be told that some are missing.

        Raises
        ------
        Malformed
            FENCED, SCHEMA, and for rows that are not what the schema says. Nothing was received then.
        """
        producer = writer.producer
        if writer.fenced_by is not None:
            text = f"epoch {writer.epoch} of this producer is fenced off by epoch {writer.fenced_by}: stop this writer"
            raise Malformed(text, ErrorCode.FENCED, writer.fenced_by)
        if sequence < producer.received:
            self.duplicates += 1
            return False
        if sequence > producer.received:
            self.gaps += 1
            return True
        check_id(schema, self.layout.schema_id)
        steps = read_insert(body, self.layout)
        streams = self._streams(producer, steps.streams)
        nbytes = body.nbytes
        incoming = Incoming(streams, steps.flags.astype(np.int64), np.ascontiguousarray(steps.priorities), steps.columns)
        try:
            self.table.check(incoming)
        except (SchemaError, ConfigError) as error:
            raise Malformed(str(error)) from None
        producer.queue.append(Queued(incoming, nbytes))
        producer.queued_bytes += nbytes
        producer.received += 1
        if producer not in self._blocked and not self._advance(producer):
            self._blocked.append(producer)
        return False

    def _streams(self, producer: Producer, said: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """The table's streams for those that a producer numbers by itself."""
        most = int(said.max())
        if most >= len(producer.streams):
            if most >= _STREAMS:
                raise Malformed(f"a row is of stream {most}, a producer has at most {_STREAMS}: number streams from 0")
            more = np.full(max(most + 1, 2 * len(producer.streams)), -1, np.int64)
            more[: len(producer.streams)] = producer.streams
            producer.streams = more
        numbers = producer.streams[said]
        if (numbers < 0).any():
            for one in np.unique(said[numbers < 0]).tolist():
                producer.streams[one] = self.table.stream((producer.name, producer.epoch, one))
            numbers = producer.streams[said]
        return numbers

    def _advance(self, producer: Producer) -> bool:
        """Let in what the table takes now; whether that is everything."""
        while producer.queue:
            first = producer.queue[0]
            before = first.done
            first.done = self.table.insert(first.steps, before)
            self.rows += first.done - before
            if first.done < len(first.steps):
                return False
            producer.queue.popleft()
            producer.queued_bytes -= first.nbytes
            producer.applied += 1
        return True

    def advance(self) -> bool:
        """Let in what waits, whoever waits longest first; whether anything came in."""
        before = self.rows
        while self._blocked:
            if not self._advance(self._blocked[0]):
                break
            self._blocked.popleft()
        return self.rows > before

    @property
    def blocked(self) -> bool:
        """Whether inserts wait for the table."""
        return bool(self._blocked)

    def waiting(self) -> list[str]:
        """Who waits, and for what."""
        reason = self.table.why_not_insert() if self._blocked else None
        return [f"producer {one.name[:8]} to insert: {reason}" for one in self._blocked] if reason else []
