"""A learner's reader, as the server knows it: credit, leases, memory of its batches."""

from __future__ import annotations

import io
import json
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import Malformed
from async_loader.feeder.server.peer_connection import PeerConnection
from async_loader.feeder.server.shared_memory import BatchSlot, SharedBatchRing
from async_loader.feeder.wire import BatchForm
from async_loader.replay.table.nonblocking_table import NonblockingTable
from async_loader.replay.table.source_sampler import SamplerSession
from async_loader.schema import Schema

Column = npt.NDArray[Any]
OWN_FRAME_FROM = 128 << 10
"""Bytes of a batch that has a frame to itself, which the learner uses where it came."""
_TOGETHER, _LARGE_TOGETHER = 2 << 20, 6 << 20
"""Bytes of batches in one message, and of such as have frames of their own.

A message costs both sides as much as some dozens of small batches.
"""
_TOLD_BYTES = 1 << 20
"""Filled slots of this size are told of in one message."""


@dataclass(slots=True, eq=False)
class OutgoingBatch:
    """A batch, ready to be sent.

    Attributes
    ----------
    columns : sequence of arrays [rows, *shape] | None
        One per field; of a table that leases its batches the last one is ``redelivered``. ``None``
        if the rows are in ``batch_slot`` only, because they cannot come back.
    again : bool
        Whether a learner may have had any of its rows before.
    batch_slot : BatchSlot | None
        Where its rows are sent from: shared memory, or the reader's send buffer.
    """

    rows: int
    columns: Sequence[Column] | None = None
    again: bool = False
    batch_slot: BatchSlot | None = None


RowKind = tuple[int, str]
"""A schema's number, and the view that the rows were read by, as JSON."""


class RequeuedRows:
    """Rows that were sent and not used, by their kind, in the order of their return."""

    def __init__(self, columns: dict[RowKind, list[Column]] | None = None) -> None:
        self._columns = columns or {}

    @classmethod
    def load(cls, content: bytes) -> RequeuedRows:
        """Return what was dumped. Raises ValueError."""
        columns: dict[RowKind, list[Column]] = {}
        with np.load(io.BytesIO(content)) as file:
            for name in file.files:  # in their order
                schema, view, _ = json.loads(name)
                columns.setdefault((schema, view), []).append(file[name])
        return cls(columns)

    def dump(self) -> bytes:
        """Return the rows as the bytes of an npz file."""
        file, columns = io.BytesIO(), dict[str, Any]()
        for kind, found in self._columns.items():
            columns |= {json.dumps([*kind, i]): column for i, column in enumerate(found)}
        np.savez(file, **columns)
        return file.getvalue()

    def mark(self) -> None:
        """Mark all rows: a learner may have had them."""
        for columns in self._columns.values():
            columns[-1][:] = True

    def copy(self) -> RequeuedRows:
        return RequeuedRows(dict(self._columns))

    def kinds(self) -> list[RowKind]:
        """Return the kinds of the rows."""
        return list(self._columns)

    def __len__(self) -> int:
        """Return the number of rows."""
        return sum(len(columns[0]) for columns in self._columns.values())

    def get(self, kind: RowKind) -> list[Column] | None:
        """Return the rows of a kind."""
        return self._columns.get(kind)

    def put(
        self, kind: RowKind, batch: OutgoingBatch, seen: bool = True, front: bool = False
    ) -> None:
        """Add the rows of a batch. ``seen``: a learner may have had them; they are marked."""
        assert batch.columns is not None
        columns, before = list(batch.columns), self._columns.get(kind)
        if seen:
            columns[-1] = np.ones(batch.rows, np.bool_)
        if before is not None:
            parts = (columns, before) if front else (before, columns)
            columns = [np.concatenate(some) for some in zip(*parts, strict=True)]
        self._columns[kind] = columns

    def keep(self, kind: RowKind, rows: slice | npt.NDArray[np.bool_]) -> None:
        """Drop all rows of a kind but these."""
        columns = [column[rows] for column in self._columns[kind]]
        if len(columns[0]):
            self._columns[kind] = columns
        else:
            del self._columns[kind]


@dataclass(slots=True, eq=False)
class _Block:
    """Memory for the batches of one message."""

    data: npt.NDArray[np.uint8]
    slots: list[BatchSlot] = field(default_factory=list)
    route: PeerConnection | None = None
    mark: int = 0


class SendBuffer:
    """Memory for the batches of a reader over a socket.

    The batches of a message lie in one block, which is sent without a copy and filled again when
    the socket has sent it.

    Parameters
    ----------
    form : BatchForm
    together, ahead : int
        Batches in a message, and on their way, at most.
    message_bytes : int
    """

    def __init__(self, form: BatchForm, together: int, ahead: int, message_bytes: int) -> None:
        self._form, self._large = form, form.nbytes >= OWN_FRAME_FROM
        most = min(_LARGE_TOGETHER if self._large else _TOGETHER, message_bytes) // form.nbytes
        self.most = max(1, min(together, ahead, most))
        self._free: list[_Block] = []
        self._sent: deque[_Block] = deque()
        self._taken = 0

    def take(self) -> BatchSlot:
        """Return an empty slot. There is one while fewer than `most` wait to be sent."""
        nbytes, at = self._form.nbytes, self._taken
        if not self._free:
            self._reuse()
        block = self._free[-1]
        if at == len(block.slots):
            views = self._form.layout.views(block.data[at * nbytes : (at + 1) * nbytes])
            block.slots.append(BatchSlot(at, 0, views))
        self._taken += 1
        return block.slots[at]

    def _reuse(self) -> None:
        while self._sent and self._has_left(self._sent[0]):
            self._free.append(self._sent.popleft())
        if not self._free:  # zeros: gaps between arrays are sent too
            self._free.append(_Block(np.zeros(self.most * self._form.nbytes, np.uint8)))

    def _has_left(self, block: _Block) -> bool:
        return block.route is None or block.route.has_sent(block.mark)

    def put_back(self, batch_slot: BatchSlot) -> None:
        """Give back the slot that was taken last, unused."""
        self._taken -= 1

    def frames(self) -> list[Any]:
        """Return the frames of all slots that were taken."""
        nbytes, data = self._form.nbytes, self._free[-1].data
        size = nbytes if self._large else self._taken * nbytes
        return [data[at : at + size] for at in range(0, self._taken * nbytes, size)]

    def sent(self, route: PeerConnection) -> None:
        """Note that the frames were given to a connection."""
        block = self._free.pop()
        block.route, block.mark = route, route.mark
        self._sent.append(block)
        self._taken = 0

    def clear(self) -> None:
        """Give back all slots that were taken and not sent."""
        self._taken = 0


@dataclass(slots=True, eq=False)
class ReaderState:
    """A learner's reader.

    Attributes
    ----------
    session, number : int
    table : str
        Its name.
    schema : Schema
        Of a batch's rows; see `schema_of_batches`.
    granted, sent : int
        Batches, counted from the opening.
    hungry_since : float | None
        Since when it has had credit and got no batch; ``None``: it is not in the ready queue.
    leases : dict
        Batches that were not given back, by number.
    send_buffer : SendBuffer | None
        What its batches are sent from; ``None``: they are written into ``batch_ring``, memory that
        the learner offers.
    wait_s : float | None
        Of a reader for calls: how long its call may wait; see `OpenReader`.
    until : float | None
        When that is over, on the server's clock.
    refused : int
        ERRORs that took the place of a batch.
    samples_itself : bool
        Whether it has a sampler of its own.
    takes_short : bool
        Whether its batches of a queue may have fewer rows: others come from other servers.
    versions : dict of str to int
        See `versions_in`.
    kind : RowKind
        Of its rows: those of one kind may come to any of its readers.
    """

    session: int = field(repr=False)
    number: int
    table: str
    drawing: SamplerSession
    schema: Schema
    form: BatchForm
    timeout_s: float | None
    ahead: int
    send_buffer: SendBuffer | None
    wait_s: float | None
    samples_itself: bool
    takes_short: bool
    versions: dict[str, int]
    kind: RowKind
    granted: int = 0
    sent: int = 0
    hungry_since: float | None = None
    leases: OrderedDict[int, OutgoingBatch] = field(default_factory=OrderedDict)
    batch_ring: SharedBatchRing | None = None
    until: float | None = None
    refused: int = 0

    @property
    def batch_size(self) -> int:
        """Rows of a batch."""
        return self.form.batch_size

    @property
    def together(self) -> int:
        """Batches of one message."""
        if self.send_buffer is not None:
            return self.send_buffer.most
        return max(1, _TOLD_BYTES // self.form.nbytes)

    @property
    def shared(self) -> bool:
        """Whether its batches go into memory that the learner offers."""
        return self.send_buffer is None

    @property
    def has_credit(self) -> bool:
        """Whether it may be sent a batch."""
        return self.sent < self.granted and self.has_slot

    @property
    def has_slot(self) -> bool:
        """Whether there is memory for its next batch."""
        if self.send_buffer is not None:
            return True
        return self.batch_ring is not None and self.batch_ring.free > 0

    @property
    def memory(self) -> SendBuffer | SharedBatchRing:
        """Where its next batch goes. The reader has credit."""
        memory = self.batch_ring if self.send_buffer is None else self.send_buffer
        assert memory is not None
        return memory

    def grant(self, total: int, wait_s: float, now: float) -> None:
        """Set absolute credit; a lower value than before is ignored."""
        if self.wait_s is not None and total > self.granted:
            self.wait_s, self.until = wait_s, now + abs(wait_s)
        self.granted = max(self.granted, min(total, self.sent + self.ahead))

    def refuse(self) -> int:
        """Return the sequence of an ERROR, which takes the place of a batch in a call."""
        sequence = self.sent
        if self.wait_s is not None:
            self.sent += 1
            self.refused += 1
        return sequence

    def take_back(self, slots: Sequence[int]) -> None:
        """Take slots back. Raises Malformed for slots that the learner does not have."""
        if self.batch_ring is None:
            raise Malformed(
                f"reader {self.number} gives slots, and has offered no memory: offer it first"
            )
        self.batch_ring.give_back(slots)

    def let_go(self) -> None:
        """Unmap the memory of a closed reader."""
        batch_ring, self.batch_ring = self.batch_ring, None
        if batch_ring is not None:
            batch_ring.close()

    def left_s(self, now: float) -> float | None:
        """Return the seconds until the reader is sent a TIMEOUT."""
        if self.until is not None:
            return max(0.0, self.until - now)
        if self.timeout_s is None or self.hungry_since is None:
            return None
        return max(0.0, self.hungry_since + self.timeout_s - now)


def schema_of_batches(table: NonblockingTable, drawn: Schema) -> Schema:
    """Return the schema of batches: rows of a leasing table have ``redelivered`` too."""
    return drawn.with_field("redelivered", np.bool_) if table.leased else drawn
