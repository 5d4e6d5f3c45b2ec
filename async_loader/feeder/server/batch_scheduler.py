"""Batches: who gets one when the table lets one out. Has no socket; what is sent is handed to a function.

NOTE [whose turn]. Readers with credit stand in a line. Where drawing uses something up (a limiter's samples, a queue's items),
the first of them draws or nobody does: else whoever wants little would always be served before whoever wants much. Those
behind may pass with what they take from nobody: rows that came back, of a view that nobody before them has. Elsewhere all may.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from async_loader.errors import Closed, ConfigError, Malformed
from async_loader.feeder.plain_values import sampler_from
from async_loader.feeder.server.outgoing_batches import OutgoingBatch, RequeuedRows
from async_loader.feeder.server.send_buffers import SendBuffer, send_buffer_for
from async_loader.feeder.shared import SharedBatchRing
from async_loader.feeder.wire import MOST_AHEAD, BatchForm, ErrorCode, Limits, OpenReader, View
from async_loader.replay.samplers import Sampler
from async_loader.replay.table.nonblocking_table import ServedTable
from async_loader.replay.table.sampler_session import SamplerSession
from async_loader.replay.views import Transitions
from async_loader.schema import Schema

MOST_SAMPLERS = 16
MOST_STEPS, MOST_VIEWS = 1024, 64
"""Of an n-step return: no step is an item before so many have followed. Views of a table are kept as long as it is."""


@dataclass(slots=True, eq=False)
class ReaderState:
    """A learner's reader.

    Attributes
    ----------
    session, number : int
    granted, sent : int
        Batches, counted from its opening.
    hungry_since : float | None
        Since when it has had credit and got nothing; ``None``: it does not stand in the line.
    kept : deque of Parcel
        What could not be sent; it is the next, when the reader has been heard again.
    leases : dict
        By the number of the batch: what it has not given back.
    opening : int
        The sequence of its OPEN_READER: what PULLs before it say of batches is of an earlier opening.
    index_place : int
        Which array of a batch is ``index``.
    send_buffer : SendBuffer | None
        What its batches are sent from; ``None``: they go into memory of its own, ``batch_ring``, as soon as it has offered that.
    asks : tuple | None
        Of a reader for SAMPLE: table, batch size and view of its calls. It has a tray, and may offer memory too.
    samples_itself : bool
        Whether it has brought a sampler of its own.
    """

    session: int = field(repr=False)
    number: int
    scheduler: BatchScheduler
    drawing: SamplerSession
    form: BatchForm
    timeout_s: float | None
    ahead: int
    opening: int
    send_buffer: SendBuffer | None
    index_place: int = 0
    granted: int = 0
    sent: int = 0
    hungry_since: float | None = None
    kept: deque[OutgoingBatch] = field(default_factory=deque)
    leases: OrderedDict[int, OutgoingBatch] = field(default_factory=OrderedDict)
    batch_ring: SharedBatchRing | None = None
    asks: tuple[Any, ...] | None = None
    samples_itself: bool = False

    @property
    def batch_size(self) -> int:
        """Rows."""
        return self.form.batch_size

    @property
    def schema(self) -> Schema:
        """Of a batch's rows; see `schema_of_batches`."""
        return schema_of_batches(self.scheduler.table, self.drawing.schema)

    @property
    def shared(self) -> bool:
        """Whether its batches go into memory of its own."""
        return self.send_buffer is None

    @property
    def takes_memory(self) -> bool:
        """Whether it may offer memory."""
        return self.send_buffer is None or self.asks is not None

    @property
    def has_credit(self) -> bool:
        """Whether it may be sent a batch."""
        return self.sent < self.granted and (self.send_buffer is not None or bool(self.kept) or self.has_slot)

    @property
    def has_slot(self) -> bool:
        """Whether the next batch can go into its memory."""
        return self.batch_ring is not None and self.batch_ring.free > 0

    @property
    def memory(self) -> SendBuffer | SharedBatchRing:
        """Where its batches go. It is hungry."""
        memory = self.batch_ring if self.send_buffer is None or self.has_slot else self.send_buffer
        assert memory is not None
        return memory

    def grant(self, total: int, received: int) -> None:
        """It takes so many batches, counted from its opening, and has got so many; fewer than before says nothing."""
        self.granted = max(self.granted, min(total, self.sent + self.ahead))
        if self.send_buffer is not None:
            self.send_buffer.received(min(received, self.sent))

    def take_back(self, slots: Iterable[int]) -> None:
        """It has no use for these slots any more. Raises Malformed for what it cannot give."""
        if self.batch_ring is None:
            raise Malformed(f"reader {self.number} gives slots, and has offered no memory: offer it first")
        self.batch_ring.give_back(slots)

    def let_go(self) -> None:
        """It is gone: its memory is unmapped."""
        batch_ring, self.batch_ring = self.batch_ring, None
        self.kept.clear()  # whose spots may lie in it
        if batch_ring is not None:
            batch_ring.close()

    def left_s(self, now: float) -> float | None:
        """Seconds until it has to be told that nothing came."""
        if self.timeout_s is None or self.hungry_since is None:
            return None
        return max(0.0, self.hungry_since + self.timeout_s - now)


Send = Callable[[ReaderState, OutgoingBatch], bool]


def schema_of_batches(table: ServedTable, drawn: Schema) -> Schema:
    """What a reader gets: rows of a table that leases its batches say whether a learner may have had them before."""
    return drawn.with_field("redelivered", np.bool_) if table.leased else drawn


class BatchScheduler:
    """The batches of one table.

    Parameters
    ----------
    name : str
    table : ServedTable
    limits : Limits
        Of what one reader may have on its way.

    Attributes
    ----------
    draining : bool
        Nothing more comes in: a queue's last batches may be short.
    """

    def __init__(self, name: str, table: ServedTable, limits: Limits) -> None:
        self.name, self.table, self._limits = name, table, limits
        self._line: deque[ReaderState] = deque()
        self._readers: set[ReaderState] = set()
        self._views: set[Transitions | None] = set()
        self._returned = RequeuedRows()
        self._failed: list[tuple[ReaderState, str]] = []
        self.draining = False
        self.batches = self.rows = self.redelivered = 0

    def open(self, session: int, number: int, wanted: OpenReader, opening: int, shared: bool = False) -> ReaderState:
        """A reader. The table has a schema. ``shared``: its batches go into memory that it will offer.

        Raises
        ------
        ConfigError
            For what this table can never show.
        Malformed
            TOO_LARGE, for batches that do not fit into a message; LIMIT.
        """
        view = view_of(self, wanted.view)

        def check(schema: Schema) -> None:
            form = BatchForm.of(schema_of_batches(self.table, schema), wanted.batch_size)
            if not shared:
                self._check(form)

        drawing = self.table.drawing(
            view,
            wanted.rank,
            wanted.world_size,
            wanted.seed,
            self._own_sampler(wanted),
            wanted.min_size,
            wanted.batch_size,
            check,
        )
        try:
            form = BatchForm.of(schema_of_batches(self.table, drawing.schema), wanted.batch_size)
            drawing.why_not(wanted.batch_size)
        except BaseException:
            drawing.close()
            raise
        self.use_view(view)
        ahead = MOST_AHEAD if shared else self._limits.ahead(form.nbytes)
        send_buffer = None if shared else send_buffer_for(form, wanted.together, ahead, self._limits.message_bytes)
        place = drawing.index_place
        reader = ReaderState(session, number, self, drawing, form, wanted.timeout_s, ahead, opening, send_buffer, place)
        reader.samples_itself = wanted.sampler is not None
        self._readers.add(reader)
        return reader

    def _own_sampler(self, wanted: OpenReader) -> Sampler | None:
        """That a reader brings. Raises Malformed, LIMIT: each may take as much memory as the table's."""
        if wanted.sampler is None:
            return None
        if sum(one.samples_itself for one in self._readers) >= MOST_SAMPLERS:
            text = f"readers of table {self.name!r} have {MOST_SAMPLERS} samplers of their own, which is all there can be"
            raise Malformed(text, ErrorCode.LIMIT)
        return sampler_from(wanted.sampler)

    def check_view(self, view: Transitions) -> None:
        """Raise Malformed, LIMIT, for one view too many."""
        if view not in self._views and len(self._views) >= MOST_VIEWS:
            raise Malformed(f"readers of table {self.name!r} use {MOST_VIEWS} views, which is all there can be", ErrorCode.LIMIT)

    def use_view(self, view: Transitions | None) -> None:
        """It is kept as long as the table is."""
        self._views.add(view)

    def _check(self, form: BatchForm) -> None:
        most = self._limits.message_bytes
        if form.nbytes > most:
            text = f"a batch of {form.batch_size} rows takes {form.nbytes} bytes, a message {most}: ask for fewer rows"
            raise Malformed(text, ErrorCode.TOO_LARGE)

    def want(self, reader: ReaderState, now: float) -> None:
        """It was heard of, and may have been granted more."""
        if reader.has_credit and reader.hungry_since is None and reader in self._readers:
            reader.hungry_since = now
            self._line.append(reader)

    def settle(self, reader: ReaderState, arrived: int, seen: Collection[int], unused: Collection[int]) -> None:
        """It closes in good order, and says of each lease what became of it; see `CloseReader`."""
        if reader not in self._readers:
            return
        for number in [number for number in reader.leases if number < arrived]:
            outgoing_batch = reader.leases.pop(number)
            if number in seen or number in unused:
                self._returned.put(reader.form.schema_id, outgoing_batch, number in seen)
        for outgoing_batch in reader.leases.values():
            self._returned.put(reader.form.schema_id, outgoing_batch, seen=False)
        reader.leases.clear()

    def take_back(self, reader: ReaderState, numbers: Collection[int]) -> None:
        """No user code has had these batches: they go to others, as if they had never been sent."""
        for number in numbers:
            outgoing_batch = reader.leases.pop(number, None)
            if outgoing_batch is not None:
                self._returned.put(reader.form.schema_id, outgoing_batch, seen=False)

    def close(self, reader: ReaderState) -> None:
        """It is gone: what it had not given back goes to others. Again does nothing."""
        if reader not in self._readers:
            return
        self._readers.remove(reader)
        self._leave_ready_queue(reader)
        for outgoing_batch in reader.leases.values():
            self._returned.put(reader.form.schema_id, outgoing_batch)
        for outgoing_batch in reader.kept if self.table.leased else ():
            self._returned.put(reader.form.schema_id, outgoing_batch, seen=False)
        reader.leases.clear()
        reader.kept.clear()
        reader.let_go()
        reader.drawing.close()

    def _leave_ready_queue(self, reader: ReaderState) -> None:
        if reader.hungry_since is not None:
            self._line.remove(reader)
            reader.hungry_since = None

    def serve(self, send: Send, now: float, most: int) -> int:
        """Draw and send up to ``most`` batches, whoever has waited longest first; how many were sent. See NOTE [whose turn].

        ``send`` says whether the batch is on its way.
        """
        served, passed = 0, []
        ahead: set[int] = set()
        while served < most and self._line:
            reader = self._line[0]
            schema = reader.form.schema_id
            outgoing_batch = None if schema in ahead else self._next_or_fail(reader, not ahead)
            if outgoing_batch is not None:
                self._line.popleft()
                served += self._hand_over(reader, outgoing_batch, send, now)
            elif reader.hungry_since is not None:
                if self.table.uses_up:
                    ahead.add(schema)
                    if not len(self._returned):
                        break
                passed.append(self._line.popleft())
        self._line.extendleft(reversed(passed))
        return served

    def draw(self, reader: ReaderState) -> OutgoingBatch | None:
        """A batch for a call, in the reader's memory; ``None``: there is none yet. Raises ConfigError if there never can be."""
        return self._next(reader, True)

    def handed_over(self, reader: ReaderState, outgoing_batch: OutgoingBatch) -> None:
        """Count what `draw` gave, and remember it where it may have to come back."""
        if self.table.leased:
            reader.leases[reader.sent] = outgoing_batch
        reader.sent += 1
        self.batches += 1
        self.rows += outgoing_batch.rows
        self.redelivered += outgoing_batch.again

    def forget_rows(self) -> None:
        """The table was cleared or loaded: what came back is of rows that are no more."""
        self._returned = RequeuedRows()

    @property
    def oldest(self) -> float | None:
        """Since when the first in the line waits."""
        return self._line[0].hungry_since if self._line else None

    def _hand_over(self, reader: ReaderState, outgoing_batch: OutgoingBatch, send: Send, now: float) -> bool:
        """Whoever cannot be sent to leaves the line until it is heard of."""
        reader.hungry_since = None
        if not send(reader, outgoing_batch):
            self._keep(reader, outgoing_batch)
            return False
        self.handed_over(reader, outgoing_batch)
        self.want(reader, now)
        return True

    def unsent(self, reader: ReaderState, outgoing_batches: Sequence[OutgoingBatch]) -> None:
        """The last that it was handed could not be sent after all: as in `_hand_over`."""
        self._leave_ready_queue(reader)
        for outgoing_batch in reversed(outgoing_batches):
            reader.sent -= 1
            reader.leases.pop(reader.sent, None)
            self._keep(reader, outgoing_batch)
            self.batches -= 1
            self.rows -= outgoing_batch.rows
            self.redelivered -= outgoing_batch.again

    def _keep(self, reader: ReaderState, outgoing_batch: OutgoingBatch) -> None:
        if reader.send_buffer is not None:  # nothing of this reader waits in it
            outgoing_batch.stay()
            reader.send_buffer.clear()
        reader.kept.appendleft(outgoing_batch)

    def _next_or_fail(self, reader: ReaderState, may_draw: bool) -> OutgoingBatch | None:
        """As `_next`; whoever wants what can never be loses what it had been granted, and `failed` says why."""
        try:
            return self._next(reader, may_draw)
        except (ConfigError, Closed) as error:
            self._leave_ready_queue(reader)
            reader.granted = reader.sent
            self._failed.append((reader, str(error)))
            return None

    def _next(self, reader: ReaderState, may_draw: bool) -> OutgoingBatch | None:
        """What the reader gets, if there is something for it."""
        if reader.kept:
            outgoing_batch: OutgoingBatch | None = reader.kept.popleft()
        elif not self.table.leased:
            return self._filled(reader) if may_draw else None
        else:
            outgoing_batch = self._made(reader, may_draw)
        if (
            outgoing_batch is not None and outgoing_batch.batch_slot is None
        ):  # a copy stays here: it may have to go to somebody else
            outgoing_batch.lie(reader.memory.take())
        return outgoing_batch

    def _filled(self, reader: ReaderState) -> OutgoingBatch | None:
        """A new batch, read straight to where it is sent from."""
        if reader.drawing.why_not(reader.batch_size) is not None:
            return None
        batch_slot = reader.memory.take()
        try:
            if batch_slot.target is None:
                batch_slot.target = reader.drawing.target(batch_slot.arrays)
            reader.drawing.fill(batch_slot.target)
        except BaseException:
            reader.memory.put_back(batch_slot)
            raise
        return OutgoingBatch(reader.batch_size, batch_slot=batch_slot)

    def _made(self, reader: ReaderState, may_draw: bool) -> OutgoingBatch | None:
        """A batch in memory of its own."""
        schema, wanted = reader.form.schema_id, reader.batch_size
        old = self._returned.take(schema, wanted) if len(self._returned) else None
        missing = wanted - (old.rows if old is not None else 0)
        new = self._drawn(reader, missing) if missing and may_draw else None
        if old is None:
            return new
        if missing and new is None and not self.draining:
            self._returned.put_back(schema, old)
            return None
        return OutgoingBatch.joined([old] if new is None else [old, new])

    def _drawn(self, reader: ReaderState, count: int) -> OutgoingBatch | None:
        if reader.drawing.why_not(count) is not None:
            count = reader.drawing.most(count) if self.draining and self.table.leased else 0
        if not count:
            return None
        columns = reader.drawing.arrays(count)
        return OutgoingBatch.of([*columns, self.table.take_seen(columns[reader.index_place])])

    def give_back(self, reader: ReaderState, numbers: Sequence[int]) -> None:
        """The learner has used these batches."""
        for number in numbers:
            reader.leases.pop(number, None)

    def failed(self) -> list[tuple[ReaderState, str]]:
        """Readers that want what can never be, and why; each once for every grant."""
        failed, self._failed = self._failed, []
        return failed

    def overdue(self, now: float) -> list[tuple[ReaderState, str]]:
        """Readers that have waited for too long, and for what. They wait on, and are told again after as long."""
        found = []
        for reader in self._line:
            if reader.left_s(now) == 0.0:
                reader.hungry_since = now
                found.append((reader, self._why_not(reader) or "others come first"))
        return found

    def _why_not(self, reader: ReaderState) -> str | None:
        try:
            return reader.drawing.why_not(reader.batch_size)
        except (ConfigError, Closed) as error:
            return str(error)

    def left_s(self, now: float) -> float | None:
        """Seconds until a reader is overdue."""
        return min((left for one in self._line if (left := one.left_s(now)) is not None), default=None)

    @property
    def has_credit(self) -> bool:
        """Whether anybody waits."""
        return bool(self._line)

    @property
    def finished(self) -> bool:
        """Whether there is nothing that a learner who is here should still get, or give back, before the end."""
        if not self.table.leased or not self._readers:
            return True
        return not (len(self._returned) or len(self.table) or any(one.leases or one.kept for one in self._readers))

    @property
    def readers(self) -> list[ReaderState]:
        """Of all sessions."""
        return list(self._readers)

    def waiting(self) -> list[tuple[str, float]]:
        """Who waits and for what, and since when on the server's clock."""
        groups: dict[tuple[int, str], list[tuple[int, float]]] = {}
        for one in self._line:
            if one.hungry_since is not None and (reason := self._why_not(one)) is not None:
                groups.setdefault((one.batch_size, reason), []).append((one.number, one.hungry_since))
        return [
            (
                f"{f'reader {some[0][0]}' if len(some) == 1 else f'{len(some)} readers'} to sample {rows}: {reason}",
                min(since for _, since in some),
            )
            for (rows, reason), some in groups.items()
        ]


def view_of(scheduler: BatchScheduler, said: View | None) -> Transitions | None:
    """As it travels, for a table. Raises ConfigError, and Malformed: LIMIT."""
    if said is None:
        return None
    if said.n > MOST_STEPS:
        text = f"n_steps={said.n}: a server sums up {MOST_STEPS} at most, no step could be drawn before they followed"
        raise ConfigError(text)
    view = Transitions(n_steps=said.n, gamma=said.gamma, reward=said.reward)
    scheduler.check_view(view)
    return view
