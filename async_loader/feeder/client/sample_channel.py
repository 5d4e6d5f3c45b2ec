"""Batches that are drawn when a call asks for one, of one table, size and view: memory for them, and what came too late.

::

    sample() ──▶ Call ──▶ SAMPLE, with the slots that are free ──▶ the feeder draws ──▶ SAMPLED ──▶ sample()
                                                                                          └──▶ take(): no call waits any more

NOTE [one round trip]. The first batch comes over the socket, with the schema of its rows. Then memory is made and offered, on a
host that both share, without anybody waiting for it; batches come in it as soon as the feeder has taken it.

NOTE [used up]. Of a table that gives each row once, a batch is leased until the call that asked for it returns. What came for
a call that was given up goes back with the next call; or the reader is closed, when no other is under way.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import Broken, Malformed, OutOfMemory, Unsupported
from async_loader.feeder.client.batch_copies import Unpacking
from async_loader.feeder.client.batch_structure import BatchStructure
from async_loader.feeder.client.connection import Connection, Failure
from async_loader.feeder.client.reader_channel import ReaderPhase
from async_loader.feeder.client.slots import ReaderSlots
from async_loader.feeder.client.sockets import Plane
from async_loader.feeder.shared import Offering
from async_loader.feeder.wire import (
    Batch,
    BatchForm,
    CloseReader,
    InSlot,
    Message,
    Return,
    Sample,
    Sampled,
    View,
    schema_of,
)
from async_loader.lifecycle import Deadline

SLOTS, SPARE = 2, 4
"""Batches that the feeder may fill at a time; that a user may hold without their being copied."""
_MISSED = 4
"""Batches that come over the socket, one after the other, until memory is offered again."""
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
    """

    def __init__(self, number: int, table: str, batch_size: int, view: View | None) -> None:
        self.number, self.table, self.batch_size, self.view = number, table, batch_size, view
        self.lock = threading.Lock()
        self.closed = False
        self.batches = self.redelivered = 0
        self._shown: BatchStructure | None = None
        self._schema_id = 0
        self._unpacking: Unpacking | None = None
        self._slots: ReaderSlots | None = None
        self._offering: Offering | None = None
        self._barred = False
        self._missed = 0
        self._pending = 0
        self._late: list[int] = []
        self._used: deque[int] = deque()
        self._most_lease = -1

    # -- any thread ------------------------------------------------------------------------------

    @property
    def phase(self) -> ReaderPhase:
        """Whether it is over."""
        return ReaderPhase.CLOSED if self.closed else ReaderPhase.READY

    def sample(self, port: Connection, own_s: float | None, grace_s: float, waits: bool) -> dict[str, Any]:
        """A batch.

        Parameters
        ----------
        own_s : float | None
            How long the feeder may wait for it; ``None``: without end.
        grace_s : float
            How long its answer may take on top.
        waits : bool
            See `wire.Sample`.

        Raises
        ------
        NotEnoughData, ConfigError, Timeout, Closed, Broken, Unsupported
        """
        body = Sample(table=self.table, batch_size=self.batch_size, view=self.view)
        own, sent = Deadline(own_s), list[int]()
        deadline = Deadline(None if own_s is None else own_s + grace_s)

        def make() -> Sample:  # the same bytes each time, but for a second sending
            left = own_s if not sent else own.left()
            sent[:] = [port.servers]
            return self._request(left, waits)

        with self.lock:
            self._pending += 1
        reply: Message | None = None
        try:
            where = f"table {self.table!r}"
            reply = port.call(body, deadline, plane=Plane.PULL, number=self.number, make=make, where=where)
            with self.lock:
                columns = self._columns(reply)
                shown = self._shown
            assert shown is not None
            batch = shown.batch(columns, sent[0])
        except BaseException:
            if reply is not None:
                self._give_up(reply, port)
            raise
        finally:
            with self.lock:
                self._pending -= 1
            if self._late:
                port.wake()
        return self._used_up(reply, batch, port)

    def _used_up(self, reply: Message, batch: dict[str, Any], port: Connection) -> dict[str, Any]:
        """The batch, which is user code's from here on."""
        body = reply.body
        assert isinstance(body, Sampled)
        self.batches += 1
        if body.lease is not None or self._offers:
            if body.lease is not None:
                self._used.append(body.lease)
            port.wake()
        return batch

    def _give_up(self, reply: Message, port: Connection) -> None:
        body = reply.body
        if isinstance(body, Sampled) and body.lease is not None:
            self._late.append(body.lease)
            port.wake()

    @property
    def _offers(self) -> bool:
        """Whether memory is to be made."""
        return self._slots is None and not self._barred and self._shown is not None

    def _columns(self, reply: Message) -> list[npt.NDArray[Any]]:
        """The arrays of a batch. Under the lock."""
        body = reply.body
        assert isinstance(body, Sampled)
        if body.schema is not None:
            self._learn(body)
        if self._unpacking is None:
            raise Malformed(f"a batch of table {self.table!r} came without its schema")
        if body.slot is not None:
            if self._slots is None:
                raise Malformed("a batch came in shared memory, and none was offered")
            self._missed = 0
            return self._slots.take(InSlot(body.slot, 0, body.rows)).arrays()
        self._missed += self._slots is not None and self._offering is None
        (lying,) = self._unpacking.form.blocks(Batch(body.rows, [reply.data]))
        return self._unpacking.arrays(lying)

    def _learn(self, body: Sampled) -> None:
        assert body.schema is not None
        schema = schema_of(body.schema)
        form = BatchForm.of(schema, self.batch_size)
        if form.schema_id != self._schema_id:
            self._shown, self._unpacking = BatchStructure(schema), Unpacking(form)
            self._schema_id = form.schema_id
            self._missed = _MISSED  # memory is for batches of the schema from before

    # -- the IO thread -----------------------------------------------------------------------------

    def _request(self, left: float | None, waits: bool) -> Sample:
        with self.lock:
            slots: tuple[int, ...] = ()
            if self._slots is not None and self._offering is None:
                slots = tuple(self._slots.give())
            unused, self._late = tuple(self._late[:64]), self._late[64:]
            return Sample(
                table=self.table, batch_size=self.batch_size, view=self.view, timeout_s=left,
                waits=waits, known=self._schema_id, slots=slots, unused=unused,
            )  # fmt: skip

    def begin(self) -> None:
        """See `Line`."""
        with self.lock:
            self._forget_memory()
            self._barred = False
            self._late.clear()
            self._used.clear()

    def step(self, now: float, port: Connection) -> float | None:
        """See `Line`."""
        if not self._late and not self._used and self._settled and not self.closed:
            return None
        with self.lock:
            if not port.is_open:
                if self.closed:
                    self._close(port)
                return None
            if self._used:
                leases = [self._used.popleft() for _ in range(len(self._used))]
                self._most_lease = max(self._most_lease, *leases)
                body = Return(np.array(leases, np.uint64))
                port.send(Plane.PULL, body, self.number, port.sequence())
            if self.closed or (self._late and not self._pending):
                late, self._late = self._late, []
                arrived = max([self._most_lease, *late]) + 1
                gone = CloseReader(arrived, 0, np.array(late, np.uint64))
                port.send(Plane.CONTROL, gone, self.number, port.sequence())
                self._forget_memory()
                if self.closed:
                    self._close(port)
            elif not self._settled:
                self._offer(port)
        return None

    @property
    def _settled(self) -> bool:
        """Whether nothing is to be done for memory."""
        if self._barred:
            return True
        if self._slots is None:
            return self._shown is None
        return self._offering is None and self._missed < _MISSED and not self._slots.worn

    def _offer(self, port: Connection) -> None:
        """Make memory and offer it; or look whether it was taken. See NOTE [one round trip]."""
        welcome = port.session.welcome
        if welcome is None or welcome.memory_endpoint is None or self._shown is None:
            self._barred = self._shown is not None
            return
        try:
            if self._offering is not None:
                if self._offering.taken():
                    self._offering.close()
                    self._offering = None
                return
            self._forget_memory()
            slots = self._slots = ReaderSlots(self._shown.schema, self.batch_size, SLOTS, SPARE)
            offer = slots.offer(port.session.number, self.number)
            self._offering = Offering(welcome.memory_endpoint, offer, slots.fileno())
            port.watch(self._offering)
        except (Unsupported, OutOfMemory, Malformed, Broken, OSError) as error:
            self._forget_memory()
            self._barred = True
            text = "batches of table %r from %s come over its socket, not in shared memory: %s"
            _log.debug(text, self.table, port.address, error)

    def _forget_memory(self) -> None:
        slots, self._slots, self._missed = self._slots, None, 0
        offering, self._offering = self._offering, None
        if offering is not None:
            offering.close()
        if slots is not None:
            slots.close()

    def _close(self, port: Connection) -> None:
        self._forget_memory()
        port.forget(self)

    def take(self, message: Message, now: float) -> None:
        """See `Line`: what came for a call that was given up."""
        body = message.body
        if not isinstance(body, Sampled):
            return
        with self.lock:
            if body.slot is not None and self._slots is not None:
                self._slots.take(InSlot(body.slot, 0, body.rows)).arrays()
            if body.lease is not None:
                self._late.append(body.lease)

    def end(self, failure: Failure) -> None:
        """See `Line`."""
        with self.lock:
            self._forget_memory()
