"""Batches that are drawn for a call: of one table, size and view.

::

    sample() ─▶ Call ─▶ SAMPLE, with free slots ─▶ the feeder draws ─▶ SAMPLED ─▶ sample()
                                                                          └─▶ take(), if given up

# NOTE [one round trip]
The first batch comes over the socket, with the schema of its rows. Then, on a shared host, memory
is made and offered in the background; once the feeder has taken it, batches come in it.

# NOTE [used up]
Of a table that gives each row once, a batch is leased until its call returns. A batch of a call
that was given up goes back with the next call; or the reader is closed, if no other call is under
way. A client that closes waits for the answer to CLOSE_READER: a RETURN that is still on its way
then is lost with the socket.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
import numpy.typing as npt

from async_loader.errors import Broken, Malformed, OutOfMemory, Unsupported
from async_loader.feeder.client.answer_deadline import AnswerDeadline
from async_loader.feeder.client.batch_copies import Unpacking
from async_loader.feeder.client.batch_structure import BatchStructure
from async_loader.feeder.client.calls import Call
from async_loader.feeder.client.channel import ASK_AGAIN_S, Failure, Request
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.goal_batches import structure_of
from async_loader.feeder.client.io_thread import IoThread
from async_loader.feeder.client.notifier import Notifier
from async_loader.feeder.client.offered_memory import FAILURES, OfferedMemory, endpoint_of
from async_loader.feeder.client.reader_state import ReaderPhase
from async_loader.feeder.client.sampled_leases import SampledLeases
from async_loader.feeder.client.slots import SPARE
from async_loader.feeder.wire import (
    Batch,
    BatchForm,
    Done,
    Error,
    InSlot,
    Message,
    Plane,
    Sample,
    Sampled,
    View,
    schema_of,
)
from async_loader.lifecycle import Deadline
from async_loader.replay.hindsight_view import Hindsight

_MOST_OPEN = 16
"""Kinds of calls that are kept open."""
SLOTS = 2
"""Batches that the feeder may write at a time."""
_MISSED = 4
"""Batches in a row over the socket after which memory is offered again."""
_log = logging.getLogger(__name__)


class SampleChannel:
    """Calls of `TableClient.sample` of one kind.

    Threads: any may sample; the rest belongs to the IO thread.

    Parameters
    ----------
    number : int
    table : str
    batch_size : int
    view : View | None

    Attributes
    ----------
    closed : bool
        Whether it takes no more calls. Set by any thread, which wakes the IO thread.
    news : Notifier
        Rung when it is over.
    """

    redelivered = 0
    """They are not counted: see the column of this name in a batch."""

    def __init__(self, number: int, table: str, batch_size: int, view: View | None) -> None:
        self.number = number
        self.wanted = Sample(table=table, batch_size=batch_size, view=view)
        self.lock = threading.Lock()
        self.news = Notifier(self.lock)
        self.closed = self._over = False
        self.batches = 0
        self._shown: BatchStructure | None = None
        self._unpacking: Unpacking | None = None
        self._memory = OfferedMemory()
        self._barred = False
        self._missed = 0
        self._pending = 0
        self._leases = SampledLeases()
        self._parting = Request()

    # -- any thread ------------------------------------------------------------------------------

    @property
    def phase(self) -> ReaderPhase:
        """READY, CLOSING or CLOSED."""
        if self._over:
            return ReaderPhase.CLOSED
        return ReaderPhase.CLOSING if self.closed else ReaderPhase.READY

    @property
    def leased(self) -> bool:
        """Whether the feeder may have to be told what became of leases."""
        leases = self._leases
        return leases.most >= 0 or bool(leases.used or leases.late or leases.parting)

    def sample(
        self,
        port: Connection,
        own_s: float | None,
        grace_s: float,
        waits: bool,
        goals: Hindsight | None = None,
    ) -> dict[str, Any]:
        """Return a batch.

        Parameters
        ----------
        own_s : float | None
            How long the feeder may wait; ``None``: without end.
        grace_s : float
            See `AnswerDeadline`.
        waits : bool
            See `wire.Sample`.
        goals : Hindsight, optional
            The view, if its functions are called here.

        Raises
        ------
        NotEnoughData, ConfigError, Timeout, Closed, Broken, Unsupported
        """
        own, sent = Deadline(own_s), list[int]()
        deadline = AnswerDeadline(port, own_s, grace_s)

        def make() -> Sample:  # the same bytes each time, so that they are cached
            left = own_s if not sent else own.left()
            sent[:] = [port.servers]
            return self._request(left, waits)

        with self.lock:
            self._pending += 1
        reply: Message | None = None
        try:
            where = f"table {self.wanted.table!r}"
            call = Call(self.wanted, Plane.PULL, self.number, make=make, where=where)
            reply = port.call(call, deadline)
            with self.lock:
                columns = self._columns(reply)
                shown = self._shown
            assert shown is not None
            if goals is not None:
                shown = structure_of(shown.schema, goals=goals)
            if isinstance(reply.body, Sampled) and reply.body.lease is not None:
                port.old_rows.look(self.wanted.table, shown.schema, columns)
            batch = shown.batch(columns, sent[0])
        except BaseException:
            if reply is not None:
                self._give_up(reply, port)
            raise
        finally:
            with self.lock:
                self._pending -= 1
            if self._leases.late:
                port.wake()
        return self._used_up(reply, batch, port)

    def _used_up(self, reply: Message, batch: dict[str, Any], port: Connection) -> dict[str, Any]:
        """Return the batch; note its lease: user code has it from here on."""
        body = reply.body
        assert isinstance(body, Sampled)
        self.batches += 1
        if body.lease is not None or self._offers:
            if body.lease is not None:
                self._leases.used.append(body.lease)
            port.wake()
        return batch

    def _give_up(self, reply: Message, port: Connection) -> None:
        body = reply.body
        if isinstance(body, Sampled) and body.lease is not None:
            self._leases.late.append(body.lease)
            port.wake()

    @property
    def _offers(self) -> bool:
        """Whether memory has to be made."""
        return self._memory.slots is None and not self._barred and self._shown is not None

    def _columns(self, reply: Message) -> list[npt.NDArray[Any]]:
        """Return the arrays of a batch. Under the lock."""
        body = reply.body
        assert isinstance(body, Sampled)
        if body.schema is not None:
            self._learn(body)
        if self._unpacking is None:
            raise Malformed(f"a batch of table {self.wanted.table!r} came without its schema")
        if body.slot is not None:
            if self._memory.slots is None:
                raise Malformed("a batch came in shared memory, and none was offered")
            self._missed = 0
            return self._memory.slots.take(InSlot(body.slot, 0, body.rows)).arrays()
        self._missed += self._memory.slots is not None and not self._memory.under_offer
        (lying,) = self._unpacking.form.blocks(Batch(body.rows, [reply.data]))
        return self._unpacking.arrays(lying)

    def _learn(self, body: Sampled) -> None:
        assert body.schema is not None
        schema = schema_of(body.schema)
        form = BatchForm.of(schema, self.wanted.batch_size)
        if self._unpacking is None or form.schema_id != self._unpacking.form.schema_id:
            self._shown = BatchStructure(schema, body.eta is not None)
            self._unpacking = Unpacking(form)
            self._missed = _MISSED  # the memory is for batches of the old schema

    # -- the IO thread -----------------------------------------------------------------------------

    def _request(self, left: float | None, waits: bool) -> Sample:
        with self.lock:
            slots: tuple[int, ...] = ()
            if self._memory.slots is not None and not self._memory.under_offer:
                slots = tuple(self._memory.slots.give())
            leases = self._leases
            unused, leases.late = tuple(leases.late[:64]), leases.late[64:]
            known = 0 if self._unpacking is None else self._unpacking.form.schema_id
            return msgspec.structs.replace(
                self.wanted, timeout_s=left, waits=waits, known=known, slots=slots, unused=unused
            )

    def begin(self) -> None:
        """See `Channel`."""
        with self.lock:
            self._memory.forget()
            self._barred = False
            self._leases.begin()
            if self.closed:
                self._over = True
            self._parting.done()
        self.news.ring()

    def step(self, now: float, port: IoThread) -> float | None:
        """See `Channel`."""
        leases = self._leases
        if not leases.late and not leases.used and self._settled and not self.closed:
            return None
        with self.lock:
            if self._over or (self.closed and not port.is_open):
                self._close(port)
                if port.is_open and leases.parting is None:  # it failed
                    port.send(Plane.CONTROL, leases.closing(), self.number, port.sequence())
            elif port.is_open:
                if leases.used:
                    port.send(Plane.PULL, leases.returned(), self.number, port.sequence())
                if self.closed:
                    self._part(now, port)
                elif leases.late and not self._pending:
                    port.send(Plane.CONTROL, leases.closing(), self.number, port.sequence())
                    self._memory.forget()
                elif not self._settled:
                    self._offer(port)
            dues = self._parting.again_at, self._memory.answer_at(now)
            due = min((one for one in dues if one is not None), default=None)
        if self._over:
            self.news.ring()
        return due

    def _part(self, now: float, port: IoThread) -> None:
        """Send CLOSE_READER, if it is due. See NOTE [used up]."""
        request, leases = self._parting, self._leases
        if request.again_at is not None and now < request.again_at:
            return
        self._memory.forget()
        if leases.parting is None:
            leases.parting = leases.closing()
        request.sent(port.sequence(), now + ASK_AGAIN_S)
        port.send(Plane.CONTROL, leases.parting, self.number, request.sequence)

    @property
    def _settled(self) -> bool:
        """Whether memory needs nothing."""
        if self._barred:
            return True
        if self._memory.slots is None:
            return self._shown is None
        held = not self._memory.under_offer and self._missed < _MISSED
        return held and not self._memory.slots.worn

    def _offer(self, port: IoThread) -> None:
        """Make memory and offer it, or check whether it was taken. See NOTE [one round trip]."""
        if endpoint_of(port) is None or self._shown is None:
            self._barred = self._shown is not None
            return
        try:
            if self._memory.under_offer:
                self._memory.taken()
                return
            schema, rows = self._shown.schema, self.wanted.batch_size
            self._missed = 0
            self._memory.offer(schema, rows, SLOTS, SPARE, self.number, port)
        except (Unsupported, OutOfMemory, Malformed, Broken, OSError) as error:
            self._memory.forget()
            self._barred = True
            _log.debug(FAILURES, self.wanted.table, port.address, error)

    def _close(self, port: IoThread) -> None:
        self._memory.forget()
        self._parting.done()
        self._over = True
        port.forget(self)

    def take(self, message: Message, now: float) -> None:
        """See `Channel`. Keep the lease of a call that was given up."""
        body = message.body
        if isinstance(body, Done | Error):
            request = self._parting
            self._over = self._over or (self.closed and request.is_answer(message))
        elif isinstance(body, Sampled):
            with self.lock:
                if body.slot is not None and self._memory.slots is not None:
                    self._memory.slots.take(InSlot(body.slot, 0, body.rows)).arrays()
                if body.lease is not None:
                    self._leases.late.append(body.lease)

    def end(self, failure: Failure) -> None:
        """See `Channel`."""
        with self.lock:
            self._memory.forget()
            self._parting.done()
            self.closed = self._over = True
        self.news.ring()


class SampleChannels:
    """The channels of one table, by batch size and view. Any thread.

    Parameters
    ----------
    connection : Connection
    table : str
    opened : callable
        Called with each new channel.
    """

    def __init__(
        self, connection: Connection, table: str, opened: Callable[[SampleChannel], None]
    ) -> None:
        self._connection, self._table, self._opened = connection, table, opened
        self._lock = threading.Lock()
        self.open: OrderedDict[tuple[int, View | None], SampleChannel] = OrderedDict()

    def get(self, batch_size: int, view: View | None) -> SampleChannel:
        """Return the channel for calls of this kind; close the least recently used of many."""
        key = batch_size, view
        self._connection.check_fork()  # before the lock: in a fork its holder may not exist
        with self._lock:
            channel = self.open.get(key)
            if channel is not None and not channel.closed:
                self.open.move_to_end(key)
                return channel
            made: SampleChannel = self._connection.add(
                lambda number: SampleChannel(number, self._table, batch_size, view)
            )
            self.open[key] = made
            self._opened(made)
            if len(self.open) > _MOST_OPEN:
                _, gone = self.open.popitem(last=False)
                gone.closed = True
            return made
