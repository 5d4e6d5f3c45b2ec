"""A writer between its user's threads and the IO thread: what is being filled, what is to be sent, where it stands.

NOTE [writer's lock]. Rows, outbox and phase change under ``lock`` only. The IO thread holds it for one message at a time.
"""

from __future__ import annotations

import enum
import secrets
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence

from async_loader.errors import AsyncLoaderError, Closed, Malformed, SchemaError
from async_loader.feeder.client.connection import Connection, Failure
from async_loader.feeder.client.errors import error_of
from async_loader.feeder.client.notifier import Notifier
from async_loader.feeder.client.outbox import Entry, Outbox
from async_loader.feeder.client.row_packer import CheckedRows, InsertPayload, RowBuffer, RowPacker
from async_loader.feeder.client.sockets import Plane
from async_loader.feeder.wire import (
    ACK_NOW,
    SENT_BEFORE,
    Ack,
    CloseWriter,
    Error,
    ErrorCode,
    Gap,
    Message,
    OpenWriter,
    Writer,
    schema_of,
    spec_of,
)  # fmt: skip
from async_loader.schema import Schema

SPARE_BYTES = 16 << 20
"""Of parts that are kept to be filled again: a page that is touched for the first time costs more than the step on it."""
MESSAGE_BYTES = 4 << 20
"""Of an INSERT at most, but for rows that are larger: several fit into a window, and none holds up the next for long."""
MESSAGE_BYTES_MOST = 64 << 20
"""Of any message, where the server has not said less."""
ASK_AGAIN_S = 5.0
"""After which an OPEN_WRITER or CLOSE_WRITER without an answer is sent again: its connection may have been another."""
PROBE_S, PROBE_MOST_S = 1.0, 10.0
"""After which the newest INSERT is sent again when nothing is acknowledged: it may be lost, and with it the GAP for others."""


class WriterPhase(enum.Enum):
    WANTED = "wanted"
    """An OPEN_WRITER is to be sent."""
    OPENING = "opening"
    NAMELESS = "nameless"
    """The table has no schema yet, and neither has the writer: the first step gives it."""
    READY = "ready"
    CLOSED = "closed"
    FAILED = "failed"


class WriterChannel:
    """One writer of one table.

    Parameters
    ----------
    number : int
    table : str
    schema : Schema | None
    batch_rows, linger_s, buffer_bytes : int, float, int
    drop_oldest : bool
        Rather than to wait for room.
    """

    def __init__(
        self,
        number: int,
        table: str,
        schema: Schema | None,
        batch_rows: int,
        linger_s: float,
        buffer_bytes: int,
        drop_oldest: bool,
    ) -> None:
        self.number, self.table = number, table
        self.lock = threading.Lock()
        self.news = Notifier(self.lock)
        self.phase = WriterPhase.WANTED
        self.outbox = Outbox(buffer_bytes, self._done)
        self.packer: RowPacker | None = None
        self.part: RowBuffer | None = None
        self.no_priorities: str | None = None
        self.closing = False
        self.failure: Failure | None = None
        self.rows_in = 0
        self._schema, self._batch_rows, self._linger_s, self._drops = schema, batch_rows, linger_s, drop_oldest
        self._producer, self._epoch = secrets.token_bytes(16), 1
        self._part_due: float | None = None
        self._asked = 0  # sequence of the OPEN_WRITER or CLOSE_WRITER that waits for its answer
        self._ask_at: float | None = None
        self._probe_at: float | None = None
        self._probe_s = PROBE_S
        self._hurried = 0  # messages up to this one are waited for
        self._streams: set[int] = set()
        self._broken_off: set[int] = set()
        self._untold_losses = 0
        self._spares: dict[int, list[RowBuffer]] = {}  # by their rows
        self._spare_bytes = 0

    # -- under the lock, any thread ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises what ended this writer, if anything has."""
        if self.failure is not None:
            raise self.failure()
        if self.closing:
            raise Closed(f"this writer of {self.table!r} is closed")

    def propose(self, schema: Schema) -> None:
        """The first step's, for a table that has none."""
        if self.phase is WriterPhase.NAMELESS:
            self._schema, self.phase, self._ask_at = schema, WriterPhase.WANTED, None

    def room(self) -> bool:
        """Whether the part that is filled may be followed by another; with drop_oldest there always is, whatever it takes."""
        assert self.packer is not None
        return self.fits(self.packer.part_bytes)

    def fits(self, nbytes: int) -> bool:
        if self._drops:
            while not self.outbox.room(nbytes) and self.outbox.drop_oldest(self._cut):
                continue
        return self.outbox.room(nbytes)

    @property
    def gives_up_rows(self) -> bool:
        """Whether rows that find no room are dropped."""
        return self._drops

    def give_up(self, rows: int, streams: Iterable[int]) -> None:
        """These rows found no room, since everything was sent already and may arrive."""
        self.outbox.counts.rows_dropped += rows
        self._broken_off.update(streams)

    def begin_buffer(self, now: float, rows: int = 1) -> RowBuffer:
        """An empty one, with room for so many. The IO thread must be woken, which sends it when it has lingered."""
        assert self.packer is not None
        self._mend()
        self.part = self._new_buffer(max(rows, self.packer.part_rows))
        self._part_due = now + self._linger_s
        return self.part

    def _new_buffer(self, rows: int) -> RowBuffer:
        assert self.packer is not None
        spares = self._spares.get(rows)
        if not spares:
            return self.packer.part(rows)
        part = spares[-1]
        nbytes = part.nbytes
        del spares[-1]  # no call from here on: Ctrl-C comes before both or after
        self._spare_bytes -= nbytes
        return part

    def _keep(self, part: RowBuffer) -> None:
        """It may be filled again; those of other sizes go first."""
        if self._spare_bytes + part.nbytes > SPARE_BYTES:
            self._drop_spares(part.most)
        if self._spare_bytes + part.nbytes <= SPARE_BYTES:
            self._spares.setdefault(part.most, []).append(part.emptied())
            self._spare_bytes += part.nbytes

    def _drop_spares(self, but: int | None = None) -> None:
        self._spares = {rows: parts for rows, parts in self._spares.items() if rows == but}
        self._spare_bytes = sum(part.nbytes for parts in self._spares.values() for part in parts)

    def _done(self, entry: Entry) -> None:
        part = entry.payload.part
        if part is not None:
            self._keep(part)

    def seal(self) -> None:
        """What is filled so far becomes a message."""
        part = self.part
        if part is None or not part.count:
            self.part = self._part_due = None
            return
        self._put_buffer(part)

    def seal_full(self) -> None:
        """`seal`, if there is no room for another row."""
        if self.part is not None and self.part.count >= self.part.most:
            self.seal()

    def put_rows(self, rows: CheckedRows, first: int, count: int) -> None:
        """Some of many, as a whole message; what is filled was sealed before."""
        self._mend()
        part = self._new_buffer(count)
        part.put_rows(rows, first, count)
        self._put_buffer(part)

    def _put_buffer(self, part: RowBuffer) -> None:
        payload = part.sealed()
        self._put(Entry(payload, part.count, payload.nbytes), part)
        if payload.part is None:
            self._keep(part)

    def end_streams(self, numbers: Iterable[int]) -> None:
        """The episodes of these streams end where they are, whether there is room for saying it or not."""
        assert self.packer is not None
        self._mend()
        self._put(_cut_of(self.packer.cut(numbers)))

    def _mend(self) -> None:
        """Say where rows are missing, before anything is taken for their continuation."""
        if self._broken_off:
            assert self.packer is not None
            self._put(_cut_of(self.packer.cut(self._broken_off)))
            self._broken_off = set()  # after it: said twice it does no harm

    def _put(self, entry: Entry, part: RowBuffer | None = None) -> None:
        """``part``: what it was made of, which is not filled any more from the moment in which the entry is put."""
        entry.finals = entry.payload.finals
        streams, rows = self._streams | entry.payload.streams, self.rows_in + entry.steps
        filled, due = (None, None) if part is self.part else (self.part, self._part_due)
        box = self.outbox
        box.nbytes += entry.nbytes  # no call from here on: Ctrl-C comes before all of it or after
        box.entries += (entry,)
        self.part, self._part_due, self._streams, self.rows_in = filled, due, streams, rows

    def steps(self) -> int:
        """Steps that were added, also those that are not in a message yet."""
        part = self.part
        return self.rows_in + (0 if part is None else part.count - part.finals)

    def hurry(self) -> int:
        """Hurry what was put so far until it is acknowledged; how many messages that were."""
        self._hurried = self.outbox.put_total
        return self._hurried

    def warn(self) -> None:
        """Tell the user's thread what the server has lost. Not under the lock."""
        if self._untold_losses:
            lost, self._untold_losses = self._untold_losses, 0
            warnings.warn(
                f"the feeder lost {lost} rows of table {self.table!r} that it had acknowledged: it was started anew", stacklevel=4
            )

    def _cut(self, taken: Sequence[Entry]) -> Entry:
        assert self.packer is not None
        return _cut_of(self.packer.cut(frozenset().union(*(entry.payload.streams for entry in taken))))

    # -- the IO thread -----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.phase is WriterPhase.READY

    def begin(self) -> None:
        """See `Line`."""
        with self.lock:
            if self.phase in (WriterPhase.OPENING, WriterPhase.READY):
                self.phase = WriterPhase.WANTED
            self._ask_at, self._asked = None, 0

    def step(self, now: float, port: Connection) -> float | None:
        """See `Line`."""
        with self.lock:
            if self._part_due is not None and now >= self._part_due:
                self.seal()
            self._ask(now, port)
        while port.is_open and self._send_one(now, port):
            continue
        with self.lock:
            self._probe(now, port)
            dues = [self._part_due]
            if port.is_open:
                dues += [self._ask_at, self._probe_at]
            return min((due for due in dues if due is not None), default=None)

    def _ask(self, now: float, port: Connection) -> None:
        """OPEN_WRITER; or CLOSE_WRITER, when everything is acknowledged."""
        if self.closing and self.phase is WriterPhase.WANTED and not self.outbox.put_total:
            self.phase = WriterPhase.CLOSED  # nothing was written, so the feeder need not know of it
        if self.phase is WriterPhase.CLOSED:
            port.forget(self)
        if not port.is_open or (self._ask_at is not None and now < self._ask_at):
            return
        body: OpenWriter | CloseWriter | None = None
        if self.phase in (WriterPhase.WANTED, WriterPhase.OPENING):
            schema = None if self._schema is None else spec_of(self._schema)
            body = OpenWriter(table=self.table, producer=self._producer, epoch=self._epoch, schema=schema)
            self.phase = WriterPhase.OPENING
        elif self.phase is WriterPhase.READY and self.closing and self.part is None and not len(self.outbox):
            body = CloseWriter(last=self.outbox.base)
        if body is None:
            self._ask_at = None
            return
        self._asked = port.sequence()
        self._ask_at = now + ASK_AGAIN_S
        port.send(Plane.CONTROL, body, self.number, self._asked)

    def _send_one(self, now: float, port: Connection) -> bool:
        """Send the next message, if the window has room for it; whether it was."""
        with self.lock:
            found = self.outbox.next() if self.phase is WriterPhase.READY else None
            if found is None:
                return False
            assert self.packer is not None
            sequence, entry = found
            last = self._hurried > self.outbox.done_total and self.outbox.unsent == 1
            flags = (ACK_NOW if last else 0) | (SENT_BEFORE if entry.elsewhere else 0)
            try:
                if not port.send_insert(entry.payload.insert, self.number, sequence, self.packer.layout.schema_id, flags):
                    return False
            except Malformed as error:
                text = str(error)
                self._fail(lambda: Malformed(text))
                return False
            self.outbox.sent()
            if self._probe_at is None:
                self._probe_at = now + self._probe_s
            return True

    def _probe(self, now: float, port: Connection) -> None:
        if self.phase is not WriterPhase.READY or not self.outbox.under_way:
            self._probe_at = None
        elif port.is_open and self._probe_at is not None and now >= self._probe_at:
            found = self.outbox.probe()
            assert found is not None
            assert self.packer is not None
            flags = ACK_NOW | (SENT_BEFORE if found[1].elsewhere else 0)
            port.send_insert(found[1].payload.insert, self.number, found[0], self.packer.layout.schema_id, flags)
            self._probe_s = min(2 * self._probe_s, PROBE_MOST_S)
            self._probe_at = now + self._probe_s

    def take(self, message: Message, now: float) -> None:
        """See `Line`."""
        body = message.body
        with self.lock:
            if isinstance(body, Writer):
                if self.phase is WriterPhase.OPENING and message.sequence == self._asked:
                    self._opened(body, now)
            elif isinstance(body, Ack):
                self._acked(message, body, now)
            elif isinstance(body, Error):
                self._refused(message, body)
        self.news.ring()

    def end(self, failure: Failure) -> None:
        """See `Line`."""
        with self.lock:
            if self.phase is not WriterPhase.CLOSED:
                self._fail(failure)
        self.news.ring()

    def _opened(self, body: Writer, now: float) -> None:
        self._ask_at, self.no_priorities = None, body.no_priorities
        if self.packer is None:
            self._schema = schema_of(body.schema)
            try:
                self.packer = RowPacker(self._schema, self._batch_rows, min(MESSAGE_BYTES, self._limit))
            except Malformed:  # a row is larger than that
                self.packer = RowPacker(self._schema, 1, self._limit)
        elif body.schema != spec_of(self.packer.schema):
            text = f"table {self.table!r} has another schema since the feeder was started anew: open a new writer"
            self._fail(lambda: SchemaError(text))
            return
        cut = None
        if self._streams:
            cut = _cut_of(self.packer.cut(self._streams))
        self._untold_losses += self.outbox.reopened(body.applied, body.resumed, cut)
        self.outbox.window(body.window_bytes, body.window_rows)
        self._probe_at, self._probe_s = None, PROBE_S
        self.phase = WriterPhase.READY

    _limit = MESSAGE_BYTES_MOST

    def limit(self, message_bytes: int) -> None:
        """What the server takes at most."""
        self._limit = message_bytes

    def _acked(self, message: Message, body: Ack, now: float) -> None:
        self.outbox.window(body.window_bytes, body.window_rows)
        if isinstance(body, Gap):
            self.outbox.gap(body.applied)
            return
        if self.phase is not WriterPhase.READY:
            return
        if self.outbox.acked(body.applied):
            self._probe_s = PROBE_S
            self._probe_at = now + self._probe_s
        if self.closing and message.sequence == self._asked and not len(self.outbox) and self._ask_at is not None:
            self.phase, self._ask_at = WriterPhase.CLOSED, None
            self._drop_spares()

    def _refused(self, message: Message, error: Error) -> None:
        if error.code == ErrorCode.UNKNOWN_WRITER:
            if self.phase is WriterPhase.READY:
                self.phase, self._ask_at = WriterPhase.WANTED, None
        elif self.phase is WriterPhase.OPENING and message.sequence != self._asked:
            return  # the answer to a question that was asked again since
        elif error.code == ErrorCode.SCHEMA and self.phase is WriterPhase.OPENING and self._schema is None:
            self.phase, self._ask_at = WriterPhase.CLOSED if self.closing else WriterPhase.NAMELESS, None
        elif error.retryable and not (self.phase is WriterPhase.OPENING and error.code == ErrorCode.LIMIT):  # too many writers
            return  # it is sent again by itself: a probe, or an answer that is asked for again
        else:
            self._fail(lambda: error_of(error, f"table {self.table!r}"))

    def _fail(self, failure: Callable[[], AsyncLoaderError]) -> None:
        self.failure = self.failure or failure
        self.phase = WriterPhase.FAILED
        self._ask_at = self._part_due = self._probe_at = None
        self._drop_spares()


def _cut_of(payload: InsertPayload) -> Entry:
    return Entry(payload, payload.insert.rows, payload.nbytes, cut=True)
