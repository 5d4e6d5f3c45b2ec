"""Batches on their way out, and returned rows, which are cut and joined for the next reader."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.feeder.shared import BatchSlot

Column = npt.NDArray[Any]


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

    @classmethod
    def of(cls, columns: Sequence[Column]) -> OutgoingBatch:
        """Return a batch of a table that leases its batches."""
        return cls(len(columns[-1]), columns, bool(columns[-1].any()))

    @classmethod
    def joined(cls, parts: Sequence[OutgoingBatch]) -> OutgoingBatch:
        """Join batches of the same schema."""
        if len(parts) == 1:
            return parts[0]
        return cls.of(
            [np.concatenate(pieces) for pieces in zip(*(one._own for one in parts), strict=True)]
        )

    def cut(self, rows: int) -> tuple[OutgoingBatch, OutgoingBatch]:
        """Return the first ``rows`` rows, and the others."""
        first, rest = (
            [column[part].copy() for column in self._own]
            for part in (slice(rows), slice(rows, None))
        )
        return OutgoingBatch.of(first), OutgoingBatch.of(rest)

    def without(self, rows: npt.NDArray[np.bool_]) -> OutgoingBatch:
        """Return the other rows."""
        return OutgoingBatch.of([column[~rows] for column in self._own])

    def lie(self, batch_slot: BatchSlot) -> None:
        """Copy the rows into a slot."""
        for array, column in zip(batch_slot.arrays, self._own, strict=True):
            array[: self.rows] = column
        self.batch_slot = batch_slot

    def mark_redelivered(self) -> None:
        """Mark all rows: a learner may have had them before."""
        self.again = True
        self.columns = [*self._own[:-1], np.ones(self.rows, np.bool_)]

    @property
    def _own(self) -> Sequence[Column]:
        assert self.columns is not None
        return self.columns


class RequeuedRows:
    """Rows that were sent and not used, by schema, in the order of their return."""

    def __init__(self) -> None:
        self._outgoing_batches: dict[int, deque[OutgoingBatch]] = {}

    def __len__(self) -> int:
        """Return the number of rows."""
        return sum(
            one.rows
            for outgoing_batches in self._outgoing_batches.values()
            for one in outgoing_batches
        )

    def put(self, schema: int, outgoing_batch: OutgoingBatch, seen: bool = True) -> None:
        """Append a returned batch. ``seen``: a learner may have had its rows; they are marked."""
        outgoing_batch.batch_slot = None
        if seen:
            outgoing_batch.mark_redelivered()
        self._outgoing_batches.setdefault(schema, deque()).append(outgoing_batch)

    def put_back(self, schema: int, outgoing_batch: OutgoingBatch) -> None:
        """Put a batch back in front: it was not sent."""
        outgoing_batch.batch_slot = None
        self._outgoing_batches.setdefault(schema, deque()).appendleft(outgoing_batch)

    def take(self, schema: int, most: int) -> OutgoingBatch | None:
        """Take up to ``most`` rows, oldest first."""
        outgoing_batches, parts, rows = self._outgoing_batches.get(schema), [], 0
        while outgoing_batches and rows < most:
            one = outgoing_batches.popleft()
            if rows + one.rows > most:
                one, rest = one.cut(most - rows)
                outgoing_batches.appendleft(rest)
            parts.append(one)
            rows += one.rows
        if outgoing_batches is not None and not outgoing_batches:
            del self._outgoing_batches[schema]
        return OutgoingBatch.joined(parts) if parts else None
