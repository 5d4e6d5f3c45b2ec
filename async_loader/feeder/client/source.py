"""A table of a feeder as the loader's source: received batches, leases, and the end."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from msgspec import structs

from async_loader import tensors
from async_loader.errors import AsyncLoaderError, CannotSend, Closed, ConfigError
from async_loader.feeder.client.arguments import batch_size_of
from async_loader.feeder.client.batch_structure import BatchStructure, structure_of
from async_loader.feeder.client.calls import Call
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.reader_batches import (
    AHEAD_LEAST,
    ReaderPhase,
    ReceivedBatch,
    Transport,
)
from async_loader.feeder.client.reader_channel import ReaderChannel
from async_loader.feeder.wire import MOST_AHEAD, Message, OpenReader, Plane, Totals, TotalsReply
from async_loader.lifecycle import Deadline, EventFd, Patience
from async_loader.replay.arguments import per_item
from async_loader.replay.hindsight_view import Hindsight
from async_loader.replay.table_methods import TableMethods
from async_loader.shm.batch_buffer import BatchBuffer, ReadySlot
from async_loader.source import END, Applied, Plan, Ready

_GOODBYE_S = 1.0
"""How long a loader's close waits until the feeder has taken back what was not used."""
TOTALS_S = 0.05
"""How old what a feeder says of its totals may be, plus one answer's way."""
IN_A_HURRY_S = 0.01
"""A learner that asks for more twice in this time is busy, see `Waker.yield_to_io`."""


class RemoteSource:
    """Batches that a feeder draws, some of them ahead. Made by `TableClient.source`.

    The first plan opens a reader. When the connection is lost, the reader is opened again with the
    next session: batches of a replay table that were on their way are drawn anew, those of a queue
    are delivered again.

    Of a queue, each batch is leased until the consumer has used it; see `Leasing`. What is leased
    when the source is closed goes back, except batches that were handed out.

    Parameters
    ----------
    connection : Connection
    wanted : OpenReader
        But for the size of batches, and how many may be ahead.
    prefetch : int | None
        Batches that the feeder may send ahead; see `TableClient.source`.
    transport : "auto" | "shm" | "tcp"
    timeout_s : float
        For `update_priorities` and `close`.
    table : TableMethods | None
        Lives as long as this does.
    goals : Hindsight, optional
        The view, if its functions are called here.
    """

    def __init__(
        self,
        connection: Connection,
        wanted: OpenReader,
        prefetch: int | None,
        transport: Transport,
        timeout_s: float,
        table: TableMethods | None,
        goals: Hindsight | None = None,
    ) -> None:
        self._goals = goals
        self._connection, self._wanted, self._timeout_s = connection, wanted, timeout_s
        self._table, self._transport = table, transport
        self._prefetch, self._planned = prefetch, 0
        self._channel: ReaderChannel | None = None
        self._lock = threading.Lock()
        self._over = False
        self._asked_at = -math.inf
        self.structure: BatchStructure | None = None
        """Of the newest batch; ``None`` before the first."""
        self._closed = False
        self._wait_s: float | None = None  # of the present call, see `call`
        self._totals: Message | None = None
        self._totals_call: Call | None = None
        self._totals_at = -math.inf
        # See `Finishing`.
        self.finishes: Callable[[Any], Any] | None = None

    def note_ahead(self, batch_size: int, batches: int) -> None:
        """Raise the prefetch to the number of batches that a loader plans ahead."""
        if self._channel is None:
            self._planned = min(batches, MOST_AHEAD)
            if self._prefetch is not None:
                self._prefetch = max(self._prefetch, self._planned)

    @property
    def transport(self) -> Literal["shm", "tcp"] | None:
        """How batches are received; ``None`` before that is known."""
        return None if self._channel is None else self._channel.transport

    @property
    def sequences(self) -> bool:
        """Whether the rows of the newest batch are sequences of steps."""
        return self.structure is not None and len(self.structure.ids) > 1

    @property
    def leased(self) -> bool:
        """Whether batches have to be returned, as far as is known."""
        return self._channel is not None and self._channel.leased

    def plan(self, batch_size: int, patience: Patience) -> Plan:
        """Return the next batch, as it was drawn: contiguous arrays that nothing writes to.

        Raises
        ------
        Timeout
            No batch could be drawn for ``timeout_s``, or the deadline of ``patience`` passed.
        Closed, Broken, ...
            What ended the reader.
        """
        found = self.draw_now(batch_size)
        if found is None:
            channel = self._reader_channel(batch_size)
            bell = EventFd()
            try:
                channel.listen(bell)
                while (found := self._attempt(channel)) is None:
                    state = self._connection.state()
                    patience.wait(bell, f"batches of table {channel.wanted.table!r} ({state})")
                    bell.clear()  # before looking: later changes ring it again
            finally:
                channel.listen(None)
                bell.close()
        return found

    def draw_now(self, batch_size: int) -> Plan | None:
        """See `AnyThread`: a batch that has arrived."""
        return self._attempt(self._reader_channel(batch_size))

    def _attempt(self, channel: ReaderChannel) -> Plan | None:
        """Return the next batch or the end, or raise the next error; ``None``: none of them yet."""
        with channel.lock:
            received = self._next(channel)
        ready = self._ready(channel, received) if isinstance(received, ReceivedBatch) else None
        if received is END:
            self._over = True
        if channel.due or channel.settled:
            now = time.monotonic()
            hurries = now - self._asked_at < IN_A_HURRY_S
            if ready is not None and hurries and channel.due:
                self._connection.yield_to_io()
            else:
                self._connection.wake()
            self._asked_at = now
        return END if received is END else ready

    def _next(self, channel: ReaderChannel) -> Any:
        """As `_attempt`, under the channel's lock."""
        if (received := channel.next()) is not None:
            return received
        if channel.ended:
            return END
        if self._closed:
            raise Closed("this source is closed")
        if (complaint := channel.complaint) is not None:
            channel.complaint = None
            raise complaint
        if channel.failure is not None:
            raise channel.failure()
        return None

    # -- calls of `TableClient.sample` -------------------------------------------------------------

    def call(self, batch_size: int, wait_s: float, deadline: Deadline) -> Ready:
        """Draw a batch now. ``wait_s``: see `OpenReader`. Raises as `TableClient.sample`."""
        self._wait_s = wait_s
        channel = self._reader_channel(batch_size)
        with channel.lock:
            channel.wait_s = wait_s
        found: Any = None

        def attempt() -> bool:
            nonlocal found
            found = self._attempt(channel)
            return found is not None

        connection = self._connection
        while True:
            connection.news.until(attempt, deadline, lambda: connection.no_answer("PULL"))
            if found.lease is None or self.hand_out(found.lease):
                ready: Ready = found
                return ready

    @property
    def in_step(self) -> bool:
        """Whether no batch is on its way, waits here, or has to be returned."""
        channel = self._channel
        if channel is None or channel.phase is not ReaderPhase.READY or self._closed:
            return False
        known = channel.granted == channel.received
        return known and not channel.leases and not channel.waiting

    def drop(self) -> None:
        """Close without waiting: what was not settled goes back."""
        self._closed = True
        self.ask_anew()
        if self._channel is not None:
            self._channel.close(used=False)
            self._connection.wake()

    # -- for a source of several feeders -----------------------------------------------------------

    @property
    def server(self) -> int:
        """The server that was asked last to open the reader: see `Connection.servers`."""
        return 0 if self._channel is None else self._channel.server

    @property
    def end_has_come(self) -> bool:
        """Whether the feeder has sent its END; batches from before may be here."""
        channel = self._channel
        return channel is not None and channel.ended_after is not None

    @property
    def eta(self) -> float | None:
        """Of sequences, the share of the largest error in a priority."""
        return None if self._channel is None else self._channel.eta

    def totals(self, batch_size: int) -> TotalsReply | None:
        """Return what the feeder has said of how much there is to draw from, in this session.

        Does not wait. Asks again if that is older than `TOTALS_S`.
        """
        channel, connection = self._reader_channel(batch_size), self._connection
        if channel.failure is not None:
            raise channel.failure()
        asked, now = self._totals_call, connection.clock()
        if asked is not None and (asked.reply is not None or asked.error is not None):
            self._totals, self._totals_call = asked.reply, None
        if self._totals_call is None and now - self._totals_at >= TOTALS_S:
            self._totals_at = now
            self._totals_call = connection.ask(
                Call(
                    Totals(), Plane.PULL, channel.number,
                    ready=lambda _: channel.asked, done=channel.ring,
                )
            )  # fmt: skip
        known: Any = self._totals
        return known.body if known and known.session == connection.session.number else None

    def ask_anew(self) -> None:
        """Forget what the feeder has said."""
        if self._totals_call is not None:
            self._connection.forget_call(self._totals_call)
        self._totals, self._totals_call, self._totals_at = None, None, -math.inf

    def listen(self, batch_size: int, bell: EventFd | None) -> None:
        """Have a bell rung when there is something new, until another is given, or none."""
        channel = self._channel if bell is None else self._reader_channel(batch_size)
        if channel is not None:
            channel.listen(bell)

    # -- leases, see `Leasing` ---------------------------------------------------------------------

    def hand_out(self, lease: object) -> bool:
        """Return whether the batch is still this learner's; if so it counts as handed out."""
        assert isinstance(lease, ReceivedBatch)
        return lease.reader.hand_out(lease)

    def settle(self, lease: object) -> None:
        """Note that a batch was used.

        The feeder is told with the next PULL, or at once if no plan waits.
        """
        assert isinstance(lease, ReceivedBatch)
        reader = lease.reader
        reader.settle(lease)
        if reader.bell is not None or self._over or self._wait_s is not None:
            self._connection.wake()

    def release(self, timeout_s: float) -> None:
        """Give back what was not settled.

        The source may be planned from again, with any batch size.

        A source of a table without leases goes on where it is.
        """
        channel = self._channel
        if channel is None or not channel.leased or self._closed:
            return
        self._channel, self._over = None, False
        with contextlib.suppress(AsyncLoaderError):
            self._connection.check()  # before the lock: in a fork its holder may not exist
            channel.close(used=False)
            self._wait_closed(channel, min(timeout_s, _GOODBYE_S))

    def _wait_closed(self, channel: ReaderChannel, timeout_s: float) -> None:
        self._connection.wake()
        no_answer = self._connection.no_answer
        channel.wait_closed(Deadline(timeout_s), lambda: no_answer("CLOSE_READER"))

    # -- the end -----------------------------------------------------------------------------------

    def reader(self) -> None:
        """Return None: no rows are planned."""
        return

    def update_priorities(
        self, index: npt.NDArray[np.int64], priority: npt.NDArray[np.float64]
    ) -> Applied:
        """Set new priorities for rows of earlier batches; waits for the result.

        Errors ``[rows, time]`` of sequences become the priority of each: see `Sequences`.

        Raises
        ------
        ConfigError, Unsupported, Timeout, Closed, Broken
        """
        if self._closed:
            raise Closed("this source is closed")
        channel = self._channel
        if channel is None:
            text = "there is nothing to give new priorities to"
            raise ConfigError(f"update_priorities before the first batch: {text}")
        eta, deadline = channel.eta, Deadline(self._timeout_s)
        rows = tensors.to_ids(index).size
        values: Any = priority if eta is None else per_item(priority, rows, eta)
        self._connection.check()
        self._connection.news.until(  # the reader's own sampler has to be there
            lambda: channel.phase is not ReaderPhase.WANTED,
            deadline,
            lambda: self._connection.no_answer("OPEN_READER"),
        )
        if channel.failure is not None:
            raise channel.failure()
        assert self._table is not None
        return self._table._apply("update_priorities", index, {"priority": values}, deadline)

    def update(self, index: Any, /, **fields: Any) -> Applied:
        """Set new values of some fields, by id: see `TableClient.update`."""
        if self._closed:
            raise Closed("this source is closed")
        assert self._table is not None
        return self._table.update(index, **fields)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __repr__(self) -> str:
        wanted = self._wanted
        how = "" if self.transport is None else f" transport={self.transport!r}"
        state, address = "closed" if self._closed else "open", self._connection.address
        return f"<RemoteSource of table {wanted.table!r} at {address}{how} {state}>"

    def __reduce__(self) -> Any:
        text = "send the client's address, and say connect(address).table(name) there"
        raise CannotSend(f"a source stays in its process: {text}")

    def waiting_for(self) -> str | None:
        """Return None: other processes produce what this waits for."""
        return None

    def close(self, timeout_s: float | None = None) -> None:
        """Give back what was not handed out.

        Twice does no harm. Raises Timeout if the feeder does not answer.
        """
        self._closed = True
        channel = self._channel
        if channel is None:
            return
        self._connection.check_fork()
        self.ask_anew()
        channel.close(used=True)
        self._wait_closed(channel, self._timeout_s if timeout_s is None else timeout_s)

    def _reader_channel(self, batch_size: int) -> ReaderChannel:
        self._connection.check()
        channel = self._channel
        if channel is not None and channel.wanted.batch_size == batch_size and not self._closed:
            return channel
        with self._lock:
            if self._closed:
                raise Closed("this source is closed")
            if self._channel is None:
                batch_size = batch_size_of(batch_size)
                self._open_channel(batch_size)
            channel = self._channel
        assert channel is not None
        if channel.wanted.batch_size != batch_size:
            text = f"this source was opened for {channel.wanted.batch_size}: make another"
            raise ConfigError(f"batch_size={batch_size}, and {text}")
        return channel

    def _open_channel(self, batch_size: int) -> None:
        ahead = self._prefetch
        if ahead is None:
            ahead = max(AHEAD_LEAST, self._planned)
        wanted = structs.replace(self._wanted, batch_size=batch_size, prefetch=max(1, ahead))
        channel: ReaderChannel = self._connection.add(
            lambda number: ReaderChannel(
                self._connection, number, wanted, self._prefetch, self._transport, self._planned,
                self._wait_s,
            )
        )  # fmt: skip
        weakref.finalize(self, _drop, self._connection, channel).atexit = False
        self._channel = channel

    def _ready(self, channel: ReaderChannel, received: ReceivedBatch) -> Ready:
        schema, structure = channel.schema, self.structure
        assert schema is not None
        if structure is None or schema is not structure.schema:
            structure = self.structure = structure_of(schema, channel.eta is not None, self._goals)
        columns = received.arrays()
        block, slots, layout = received.block, received.slots, received.layout
        assert block is not None
        received.block = None  # a lease does not keep the memory
        lease = received if channel.leased else None
        if channel.leased:
            self._connection.old_rows.look(channel.wanted.table, schema, columns)
        batch = structure.batch(columns, received.server)
        if self._goals is None and slots is not None and received.rows == channel.wanted.batch_size:
            buffer = BatchBuffer(slots.ring, received.slot, block)
            return ReadySlot(batch, lent=True, lease=lease, buffer=buffer, layout=layout)
        return Ready(batch, lent=True, lease=lease)


def _drop(connection: Connection, channel: ReaderChannel) -> None:
    """Close the reader of a source that was garbage-collected.

    May run in any thread at any point, so it takes no lock: the IO thread closes the reader.
    """
    channel.dropped = True
    connection.wake()
