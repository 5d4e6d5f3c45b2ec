"""Which reader gets the next batch of a table.

# NOTE [whose turn]
Readers with credit stand in the ready queue. Where a draw uses rows up (a limiter's samples, a
queue's items), only the first reader draws: else a reader of small batches would always be served
before one of large batches. Readers behind it may be served with returned rows of a view that no
reader before them has. Where draws use nothing up, all readers draw.

# NOTE [rows that were sent ahead]
What a learner was sent and does not use yet holds its places in the queue: else its rows would be
older than the queue is long. The first of its batches is the one in use, as it gave back the one
before when it asked for this one. While a learner waits for rows that another one was sent ahead,
none are counted: the other may wait for this one. A reader of a cluster may hold several batches to
make one, so what it holds is not counted.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from async_loader.errors import ConfigError, Malformed
from async_loader.feeder.plain_values import sampler_from, view_from
from async_loader.feeder.server.counters import BlockedTime
from async_loader.feeder.server.dispatch import refused, too_late
from async_loader.feeder.server.policy_lag import versions_in
from async_loader.feeder.server.reader_state import (
    Column,
    OutgoingBatch,
    ReaderState,
    RequeuedRows,
    RowKind,
    SendBuffer,
    schema_of_batches,
)
from async_loader.feeder.wire import (
    MOST_AHEAD,
    BatchForm,
    ErrorCode,
    Limits,
    OpenReader,
    check_travels,
)
from async_loader.replay.table.nonblocking_table import NonblockingTable
from async_loader.replay.table.source_sampler import NewestOf, nothing_published
from async_loader.replay.views import View
from async_loader.schema import Schema

_log = logging.getLogger("async_loader")
MOST_SAMPLERS = 16
MOST_STEPS, MOST_VIEWS = 1024, 32
"""Steps of an n-step return: an item exists only when that many steps have followed. Views are kept
as long as their table; those of sequences take some memory for each row."""
OTHERS = "others come first"
Send = Callable[[ReaderState, Sequence[OutgoingBatch]], bool]


class BatchScheduler:
    """The readers of one table.

    Parameters
    ----------
    name : str
    table : NonblockingTable
    limits : Limits
        Bounds of what one reader may have on its way.

    Attributes
    ----------
    draining : bool
        No more rows come: a queue's last batches may be short.
    blocked : BlockedTime
        When readers had credit, and the table allowed none a draw.
    given : dict of str to int
        The oldest version of each weights in the last batch that was drawn from a queue.
    moving : Lock
        Held while rows are drawn, returned, or on their way to `unused`. Taken before the table's.
    """

    def __init__(self, name: str, table: NonblockingTable, limits: Limits) -> None:
        self.name, self.table, self._limits = name, table, limits
        self._line: deque[ReaderState] = deque()
        self._readers: set[ReaderState] = set()
        self.views: set[View | None] = set()  # that were used; the table keeps them
        self._returned = RequeuedRows()
        self.moving = threading.RLock()
        self._failed: list[tuple[ReaderState, Malformed]] = []
        self.draining = False
        self.batches = self.rows = self.redelivered = 0
        self.blocked = BlockedTime()
        self.given: dict[str, int] = {}
        table.ahead = self.rows_ahead
        self.kept: Any = None  # a `KeptLeases`

    def rows_ahead(self) -> int:
        """Return how many rows were sent ahead. See NOTE [rows that were sent ahead]."""
        ahead = 0
        if not self.table.is_queue:
            return 0
        for one in self._readers:
            if len(one.leases) > 1 and not one.takes_short:
                ahead += (len(one.leases) - 1) * one.batch_size
            elif one.hungry_since is not None:
                return 0
        return ahead

    def view_of(self, plain: dict[str, Any] | None) -> View | None:
        """Return a view of the wire as the table's. Raises ConfigError; Malformed, LIMIT."""
        if plain is None:
            return None
        view = view_from(plain)
        if (n := getattr(view, "n_steps", 1)) > MOST_STEPS:
            text = f"a server sums up {MOST_STEPS} at most: no step is drawn before they followed"
            raise ConfigError(f"n_steps={n}: {text}")
        if view not in self.views and len(self.views) >= MOST_VIEWS:
            text = f"readers of table {self.name!r} use {MOST_VIEWS} views, which is the limit"
            raise Malformed(text, ErrorCode.LIMIT)
        return view

    def open(
        self,
        session: int,
        number: int,
        wanted: OpenReader,
        shared: bool = False,
        newest_of: NewestOf = nothing_published,
    ) -> ReaderState:
        """Open a reader; the table has a schema.

        ``shared``: the reader will offer memory for batches. ``newest_of``: of published weights.

        Raises
        ------
        ConfigError
            If this table can never serve the view.
        Malformed
            TOO_LARGE, if a batch, or its schema, does not fit into a message; LIMIT.
        """
        view, limits, batch_size = self.view_of(wanted.view), self._limits, wanted.batch_size
        itself = wanted.sampler is not None or wanted.max_lag is not None
        if itself and sum(one.samples_itself for one in self._readers) >= MOST_SAMPLERS:
            text = (  # each may need as much memory as the table's
                f"readers of table {self.name!r} have {MOST_SAMPLERS} samplers of their own, which "
                "is the limit"
            )
            raise Malformed(text, ErrorCode.LIMIT)

        def check(schema: Schema) -> None:
            batches = schema_of_batches(self.table, schema)
            check_travels(batches, f"batches of table {self.name!r}", limits.control_bytes)
            nbytes = BatchForm.of(batches, batch_size).nbytes
            if not shared and nbytes > limits.message_bytes:
                text = f"a batch of {batch_size} rows takes {nbytes} bytes, a message"
                raise Malformed(
                    f"{text} {limits.message_bytes}: ask for fewer rows", ErrorCode.TOO_LARGE
                )

        drawing = self.table.drawing(
            view,
            wanted.rank,
            wanted.world_size,
            wanted.seed,
            None if wanted.sampler is None else sampler_from(wanted.sampler),
            wanted.min_size,
            check,
            wanted.max_lag,
            wanted.masses,
            newest_of,
        )
        try:
            schema = schema_of_batches(self.table, drawing.schema)
            form = BatchForm.of(schema, batch_size)
            drawing.why_not(batch_size)
        except BaseException:
            drawing.close()
            raise
        if wanted.seed is not None and not self.table.leased:
            drawing.drawn = wanted.first
        self.views.add(view)
        ahead = MOST_AHEAD if shared else limits.ahead(form.nbytes)
        send_buffer = (
            None if shared else SendBuffer(form, wanted.together, ahead, limits.message_bytes)
        )
        own = view in (None, self.table.view)
        reader = ReaderState(
            session, number, self.name, drawing, schema, form, wanted.timeout_s, ahead, send_buffer,
            wanted.wait_s, itself, wanted.masses, versions_in(drawing.schema),
            (form.schema_id, "" if own else json.dumps(wanted.view, sort_keys=True)),
        )  # fmt: skip
        self._readers.add(reader)
        return reader

    def published(self, weights: str, version: int) -> None:
        """Tell readers with a ``max_lag`` of the newest version of some weights."""
        for reader in self._readers:
            if reader.drawing.weights == weights:
                reader.drawing.publish(version)

    def want(self, reader: ReaderState, now: float) -> None:
        """Put a reader into the ready queue, if it has credit. Called with each of its messages."""
        if reader.has_credit and reader.hungry_since is None and reader in self._readers:
            reader.hungry_since = now
            self._line.append(reader)

    def settle(
        self, reader: ReaderState, arrived: int, seen: Collection[int], unused: Collection[int]
    ) -> None:
        """Take back the leases of a reader that closes; see `CloseReader`."""
        if reader not in self._readers:
            return
        with self.moving:
            for number, batch in reader.leases.items():
                if number >= arrived or number in seen or number in unused:
                    self._returned.put(reader.kind, batch, number in seen)
                else:
                    self.confirm(reader, batch)
            reader.leases.clear()

    def confirm(self, reader: ReaderState, batch: OutgoingBatch) -> None:
        """Note that a learner has used a batch, whose lease is over."""
        if self.kept is not None and batch.columns is not None:
            self.kept.confirmed(batch.columns[reader.drawing.index_place])

    def close(self, reader: ReaderState) -> None:
        """Close a reader; its leased batches go to others. May be called again."""
        if reader not in self._readers:
            return
        self._readers.remove(reader)
        self._leave_ready_queue(reader)
        with self.moving:
            for batch in reader.leases.values():
                self._returned.put(reader.kind, batch)
            reader.leases.clear()
        reader.let_go()
        reader.drawing.close()

    def _leave_ready_queue(self, reader: ReaderState) -> None:
        if reader.hungry_since is not None:
            self._line.remove(reader)
            reader.hungry_since = None
            if not self._line:
                self.blocked.drop()

    def serve(self, send: Send, now: float) -> int:
        """Draw and send batches of the longest waiting reader that can have some; return how many.

        ``send`` returns whether they were taken. See NOTE [whose turn].
        """
        served, passed = 0, []
        ahead: set[RowKind] = set()
        while self._line and not served:
            reader = self._line[0]
            with self.moving:
                batches = [] if reader.kind in ahead else self._some(reader, not ahead)
                if batches:
                    if reader.hungry_since is not None:
                        self._line.popleft()
                        reader.hungry_since = None
                    served = self._hand_over(reader, batches, send, now)
            if not batches and reader.hungry_since is not None:
                if self.table.uses_up:
                    ahead.add(reader.kind)
                    if not len(self._returned):
                        break
                passed.append(self._line.popleft())
        self._line.extendleft(reversed(passed))
        self.blocked.note(bool(self._line) and not served, now)
        return served

    def _some(self, reader: ReaderState, may_draw: bool) -> list[OutgoingBatch]:
        """Return the next batches of a reader, as many as one message holds."""
        found: list[OutgoingBatch] = []
        most = min(reader.together, reader.granted - reader.sent)
        while len(found) < most and reader.has_slot:
            batch = self._next_or_fail(reader, may_draw)
            if batch is None:
                break
            found.append(batch)
            if batch.rows < reader.batch_size:  # only the last of a message may be short
                break
        return found

    def _hand_over(
        self, reader: ReaderState, batches: list[OutgoingBatch], send: Send, now: float
    ) -> int:
        """Send batches; return how many. If that fails, the reader stays out of the ready queue
        until its next message; rows that were used up come again.
        """
        if not send(reader, batches):
            for one in reversed(batches):
                if reader.batch_ring is not None and one.batch_slot is not None:
                    reader.batch_ring.put_back(one.batch_slot)
                if self.table.leased:
                    self._returned.put(reader.kind, one, seen=False, front=True)
            if reader.send_buffer is not None:
                reader.send_buffer.clear()
            if reader.drawing.drawn is not None:
                reader.drawing.drawn -= len(batches)
            return 0
        for one in batches:
            one.batch_slot = None  # a leased batch has columns of its own
            if self.table.leased:
                reader.leases[reader.sent] = one
            reader.sent += 1
            self.batches += 1
            self.rows += one.rows
            self.redelivered += one.again
        self.want(reader, now)
        return len(batches)

    def unused(self) -> RequeuedRows:
        """Return the rows that were drawn and not used: returned ones, and those with learners.

        Any thread that has `moving`.
        """
        found = self._returned.copy()
        for reader in self._readers:
            for batch in reader.leases.values():
                found.put(reader.kind, batch)
        return found

    def unused_rows(self) -> int:
        """Return how many rows `unused` has, without a copy of them."""
        leased = (one.rows for reader in self._readers for one in reader.leases.values())
        return len(self._returned) + sum(leased)

    def forget_rows(self, returned: RequeuedRows | None = None) -> None:
        """Drop returned rows, and those with learners: the table was cleared or loaded."""
        self._returned = returned or RequeuedRows()
        for one in self._readers:
            one.leases.clear()
        if self.kept is not None:
            self.kept.forget()

    def _next_or_fail(self, reader: ReaderState, may_draw: bool) -> OutgoingBatch | None:
        """As `_next`.

        If the reader can never be served, clear its credit; `failed` gives the reason.
        """
        try:
            return self._next(reader, may_draw)
        except Exception as error:  # of one reader: it must end neither the others nor the loop
            refusal = refused(error)
            if refusal is None:
                _log.exception("a batch of table %r could not be drawn", self.name)
                text = f"{type(error).__name__}: {error}; the server's log has more"
                refusal = Malformed(text, ErrorCode.UNSUPPORTED)
            self._give_up(reader, refusal)
        return None

    def _give_up(self, reader: ReaderState, error: Malformed) -> None:
        self._leave_ready_queue(reader)
        reader.granted = reader.sent
        self._failed.append((reader, error))

    def _next(self, reader: ReaderState, may_draw: bool) -> OutgoingBatch | None:
        """Return the reader's next batch, if there is one."""
        if not self.table.leased:
            return self._filled(reader) if may_draw else None
        columns = self._made(reader, may_draw)
        if columns is None:
            return None
        # The columns stay here: the batch may have to go to another reader.
        slot, rows = reader.memory.take(), len(columns[0])
        for array, column in zip(slot.arrays, columns, strict=True):
            array[:rows] = column
        return OutgoingBatch(rows, columns, bool(columns[-1].any()), slot)

    def _filled(self, reader: ReaderState) -> OutgoingBatch | None:
        """Draw a batch straight into the memory that it is sent from."""
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

    def _made(self, reader: ReaderState, may_draw: bool) -> list[Column] | None:
        """Return the columns of a batch of returned and new rows."""
        kind, wanted, returned = reader.kind, reader.batch_size, self._returned
        old = returned.get(kind)
        if old is not None and (stale := reader.drawing.too_old(old)) is not None:
            returned.keep(kind, ~stale)
            old = returned.get(kind)
        there = 0 if old is None else min(wanted, len(old[0]))
        new = self._drawn(reader, wanted - there) if there < wanted and may_draw else None
        if old is None:
            return new
        if there < wanted and new is None and not (self.draining or reader.takes_short):
            return None
        # Copied: the others stay, and are joined with more.
        taken = [column[:there].copy() for column in old]
        returned.keep(kind, slice(there, None))
        if new is None:
            return taken
        return [np.concatenate(parts) for parts in zip(taken, new, strict=True)]

    def _drawn(self, reader: ReaderState, count: int) -> list[Column] | None:
        drawing = reader.drawing
        if drawing.why_not(count) is not None:
            short = self.draining or reader.takes_short
            count = drawing.most(count) if short else 0
        if not count:
            return None
        columns = drawing.arrays(count)
        self.given = {name: int(columns[i].min()) for name, i in reader.versions.items()}
        ids = columns[drawing.index_place]
        if self.kept is not None:
            self.kept.drawn(ids)
        return [*columns, self.table.take_seen(ids)]

    def refusals(self, now: float, rests: bool) -> list[tuple[ReaderState, Malformed]]:
        """Return readers that can never be served, and those that have waited for their time.

        The latter wait on, but for calls. ``rests``: the table is being loaded.
        """
        for reader in list(self._line):
            error = self._overdue(reader, now, rests)
            if error is not None and reader.wait_s is not None:
                self._give_up(reader, error)
            elif error is not None:
                reader.hungry_since = now
                self._failed.append((reader, error))
        failed, self._failed = self._failed, []
        return failed

    def _overdue(self, reader: ReaderState, now: float, rests: bool) -> Malformed | None:
        over, wait_s = reader.left_s(now) == 0.0, reader.wait_s
        at_once = wait_s is not None and wait_s < 0 and not rests and not self.table.limited
        if not over and not at_once:
            return None
        why = "the table is being loaded" if rests else self._why_not(reader)
        if over:
            why = why or OTHERS
            return Malformed(why, ErrorCode.TIMEOUT) if wait_s is None else too_late(wait_s, why)
        return None if why is None else refused(reader.drawing.nothing(reader.batch_size))

    def _why_not(self, reader: ReaderState) -> str | None:
        try:
            return reader.drawing.why_not(reader.batch_size)
        except Exception as error:
            return str(error)

    def left_s(self, now: float) -> float | None:
        """Return the seconds until a reader is overdue."""
        left = (one.left_s(now) for one in self._line)
        return min((one for one in left if one is not None), default=None)

    @property
    def has_credit(self) -> bool:
        """Whether a reader waits."""
        return bool(self._line)

    @property
    def finished(self) -> bool:
        """Whether no open reader has to be sent, or has to return, anything before the end."""
        if not self.table.leased or not self._readers:
            return True
        return not (
            len(self._returned) or len(self.table) or any(one.leases for one in self._readers)
        )

    @property
    def readers(self) -> list[ReaderState]:
        """The open readers, of all sessions."""
        return list(self._readers)

    def waiting(self) -> list[tuple[str, float]]:
        """Return which readers wait, why, and since when on the server's clock."""
        return [
            (f"reader {one.number} to sample {one.batch_size}: {reason}", one.hungry_since)
            for one in self._line
            if one.hungry_since is not None and (reason := self._why_not(one)) is not None
        ]
