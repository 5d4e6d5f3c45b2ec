"""Memory of clients of this host: rows of writers are read there, batches of readers written. A
loop polls the socket where it is offered.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.batch_layout import BatchLayout
from async_loader.errors import ConfigError, Malformed
from async_loader.feeder.memory_offer import Offer, answered, read_record
from async_loader.feeder.server.acceptor import NO_ROOM, owner_only
from async_loader.feeder.wire import Insert, RowLayout, SlotInsert
from async_loader.schema import Schema
from async_loader.shm.segment import Segment

Arrays = list[npt.NDArray[Any]]
_log = logging.getLogger("async_loader")
_CALLERS = 4096
_RECORD_S = 0.05
"""For a caller's record: it is sent as soon as the caller is connected."""


class InsertSlots:
    """Slots that the writer fills. It fills one again when the INSERT in it is acknowledged.

    Parameters
    ----------
    segment : Segment
        Closed with the slots. Rows that wait for their table keep the memory.
    offer : Offer
    """

    def __init__(self, segment: Segment, offer: Offer) -> None:
        self._segment, self._offer = segment, offer

    def insert(self, body: SlotInsert, layout: RowLayout) -> Insert:
        """Return the INSERT with its frames: the large ones as views of the slot.

        What is checked before it is used, small fields and bools, is copied: the writer's process
        could change it in between.

        Raises
        ------
        Malformed
            If there is no such slot, or the rows do not fit into one.
        """
        slots, slot_bytes = self._offer.slots, self._offer.slot_bytes
        if body.slot >= slots:
            raise Malformed(f"INSERT names slot {body.slot}, this writer has {slots}")
        places, nbytes = layout.slot_places(body.capacity)
        if nbytes > slot_bytes:
            raise Malformed(
                f"{body.capacity} rows take {nbytes} bytes, a slot of this writer has {slot_bytes}"
            )
        begin = body.slot * slot_bytes
        frames = [
            self._segment.view(begin + place, size)
            for place, size in zip(places, layout.sizes(body.rows), strict=True)
        ]
        frames[0] = memoryview(bytes(frames[0]))
        for frame, i in enumerate(layout.large, 1):
            if i in layout.bools:
                frames[frame] = memoryview(bytes(frames[frame]))
        return Insert(body.rows, frames)

    def close(self) -> None:
        """Unmap the memory, once no row in it waits. May be called again."""
        self._segment.close()


class CallSlots:
    """Slots with arrays of calls, and for arrays of answers. Parameters: see `InsertSlots`."""

    def __init__(self, segment: Segment, offer: Offer) -> None:
        self._segment, self._slots, self._slot_bytes = segment, offer.slots, offer.slot_bytes

    def bytes(self, slot: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return the beginning of a slot: it may change at any time. Raises Malformed."""
        if slot >= self._slots or nbytes > self._slot_bytes:
            text = f"{nbytes} bytes in slot {slot} of {self._slots}, each of {self._slot_bytes}"
            raise Malformed(text)
        return self._segment.bytes(slot * self._slot_bytes, nbytes)

    def room(self, slot: int, nbytes: int) -> npt.NDArray[np.uint8] | None:
        """As `bytes`; ``None``: it is too small."""
        return self.bytes(slot, nbytes) if nbytes <= self._slot_bytes else None


@dataclass(slots=True, eq=False)
class BatchSlot:
    """Memory for one batch.

    Attributes
    ----------
    slot, generation : int
        Its number in the reader's memory; in shared memory, how often it was taken.
    arrays : list of arrays [batch_size, *shape]
    target : object
        The arrays as a target for `SamplerSession.fill`, made by the first fill.
    """

    slot: int
    generation: int
    arrays: Arrays
    target: Any = None


class SharedBatchRing:
    """Slots that the learner has freed, each with the arrays of a batch.

    Parameters
    ----------
    segment : Segment
        Closed with the ring.
    offer : Offer
    schema : Schema
        Of a batch's rows.
    rows : int
        Of a batch.

    Raises
    ------
    Malformed
        If a batch does not fit into a slot.
    """

    def __init__(self, segment: Segment, offer: Offer, schema: Schema, rows: int) -> None:
        layout = BatchLayout.contiguous(schema, rows)
        if layout.nbytes > offer.slot_bytes:
            raise Malformed(
                f"a batch takes {layout.nbytes} bytes, a slot has {offer.slot_bytes}: offer larger "
                "ones"
            )
        self._segment = segment
        self._batch_slots = [
            BatchSlot(i, 0, layout.views(segment.bytes(i * offer.slot_bytes, offer.slot_bytes)))
            for i in range(offer.slots)
        ]
        self._free: deque[int] = deque()
        self._lent = set(range(offer.slots))

    def give_back(self, slots: Sequence[int]) -> None:
        """Free slots that the learner uses no more. The first one is taken next.

        Raises
        ------
        Malformed
            For a slot that does not exist, or is free already.
        """
        for slot in reversed(slots):
            if slot not in self._lent:
                raise Malformed(
                    f"slot {slot} was given back and is not lent: there are "
                    f"{len(self._batch_slots)}"
                )
            self._lent.remove(slot)
            self._free.appendleft(slot)  # see NOTE [the slot that came back last comes next]

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> BatchSlot:
        """Take a free slot. There is one."""
        batch_slot = self._batch_slots[self._free.popleft()]
        self._lent.add(batch_slot.slot)
        batch_slot.generation = (batch_slot.generation + 1) & 0xFFFFFFFF
        return batch_slot

    def put_back(self, batch_slot: BatchSlot) -> None:
        """Free a slot that was taken and not used."""
        self._lent.remove(batch_slot.slot)
        self._free.appendleft(batch_slot.slot)

    def close(self) -> None:
        self._batch_slots.clear()
        self._free.clear()
        self._segment.close()


class Listener:
    """Receives offers.

    Parameters
    ----------
    path : str
        Of the unix socket, which only this user can connect to.
    take : callable
        Called with an `Offer` and a descriptor, which it owns. Raises Malformed to refuse.

    Raises
    ------
    ConfigError
        If it cannot be bound.
    """

    def __init__(self, path: str, take: Callable[[Offer, int], None]) -> None:
        self.path, self._take = path, take
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            with owner_only():
                self._socket.bind(path)
            self._socket.listen(_CALLERS)
        except OSError as error:
            self._socket.close()
            raise ConfigError(
                f"{path} (shared memory) cannot be bound: {error.strerror}: name another address"
            ) from None

    def fileno(self) -> int:
        """Return what to poll for reading."""
        return self._socket.fileno()

    def handle(self) -> bool:
        """Hear a caller. Called when it is readable. Return False if no descriptor is left."""
        try:
            caller, _ = self._socket.accept()
        except OSError as error:
            return error.errno not in NO_ROOM
        with caller:
            caller.settimeout(_RECORD_S)
            self._hear(caller)
        return True

    def _hear(self, caller: socket.socket) -> None:
        fds: list[int] = []
        reason: str | None = None
        try:
            record, fds, _, _ = socket.recv_fds(caller, 4096, 8, socket.MSG_CMSG_CLOEXEC)
            offer = read_record(record)
            if len(fds) != 1:
                text = f"an offer of memory came with {len(fds)} descriptors, it takes one"
                raise Malformed(text)
            offer.check(fds[0])
            self._take(offer, os.dup(fds[0]))
        except Malformed as error:
            reason = str(error)
        except OSError as error:
            reason = f"the memory could not be mapped: {error}"
        except Exception as error:  # of one caller: it must not end the loop
            _log.exception("an offer of memory could not be answered")
            reason = f"{type(error).__name__}: {error}; the server's log has more"
        finally:
            for fd in fds:
                os.close(fd)
        with contextlib.suppress(OSError):
            caller.send(answered(reason))

    def close(self) -> None:
        """Close the socket, and remove its file."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self._socket.close()
