"""Batches as they travel, and rows that come back: cut and joined again for whoever wants them next. Draws nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.feeder.wire import Batch, InSlot, RowLayout, batch, read_batch
from async_loader.replay.served import Drawing

Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True, eq=False)
class Parcel:
    """A batch, ready to be sent.

    Attributes
    ----------
    frames : list of uint8 arrays [rows, bytes]
        As `RowLayout` says.
        None where the rows lie in a slot, and nobody will want them again.
    again : bool
        Whether any of its rows was sent before.
    place : InSlot | None
        Where its rows lie in shared memory.
    """

    rows: int
    frames: list[Bytes]
    again: bool = False
    place: InSlot | None = None

    @classmethod
    def drawn(cls, drawing: Drawing, layout: RowLayout, count: int) -> Parcel:
        """A new batch. `Drawing.why_not` said ``None``."""
        packed = drawing.packed(count, layout.packed) if not layout.large else None
        if packed is not None:
            return cls(count, [packed.view(np.uint8).reshape(count, -1)])
        body = batch(layout, list(drawing.arrays(count)))
        return cls(body.rows, [_rows(frame, body.rows) for frame in body.frames])

    @classmethod
    def joined(cls, parts: Sequence[Parcel]) -> Parcel:
        """One of several, of the same layout."""
        if len(parts) == 1:
            return parts[0]
        frames = [np.concatenate(pieces) for pieces in zip(*(one.frames for one in parts), strict=True)]
        return cls(sum(one.rows for one in parts), frames, any(one.again for one in parts))

    def cut(self, rows: int) -> tuple[Parcel, Parcel]:
        """The first ``rows``, and the others."""
        first, rest = ([np.ascontiguousarray(frame[part]) for frame in self.frames] for part in (slice(rows), slice(rows, None)))
        return Parcel(rows, first, self.again), Parcel(self.rows - rows, rest, self.again)

    def lie(self, layout: RowLayout, slot: int, generation: int, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Copy the rows into a slot, which has an array for each field."""
        for array, column in zip(arrays, read_batch(self.body, layout), strict=True):
            array[: self.rows] = column
        self.place = InSlot(slot, generation, self.rows)

    @property
    def body(self) -> Batch:
        return Batch(self.rows, [frame.reshape(-1) for frame in self.frames])


def _rows(frame: Any, rows: int) -> Bytes:
    flat = np.frombuffer(memoryview(frame), np.uint8) if memoryview(frame).nbytes else np.empty(0, np.uint8)
    return flat.reshape(rows, -1) if len(flat) else np.empty((rows, 0), np.uint8)


class Returned:
    """Rows that were sent, and not used: by the schema that they are of, in the order in which they came back."""

    def __init__(self) -> None:
        self._parcels: dict[int, deque[Parcel]] = {}

    def __len__(self) -> int:
        """Rows."""
        return sum(one.rows for parcels in self._parcels.values() for one in parcels)

    def put(self, schema: int, parcel: Parcel) -> None:
        """It was on its way, and perhaps was seen."""
        parcel.again, parcel.place = True, None
        self._parcels.setdefault(schema, deque()).append(parcel)

    def put_back(self, schema: int, parcel: Parcel) -> None:
        """It was not on its way."""
        parcel.place = None
        self._parcels.setdefault(schema, deque()).appendleft(parcel)

    def take(self, schema: int, most: int) -> Parcel | None:
        """Up to ``most`` rows, those first that came first."""
        parcels, parts, rows = self._parcels.get(schema), [], 0
        while parcels and rows < most:
            one = parcels.popleft()
            if rows + one.rows > most:
                one, rest = one.cut(most - rows)
                parcels.appendleft(rest)
            parts.append(one)
            rows += one.rows
        if parcels is not None and not parcels:
            del self._parcels[schema]
        return Parcel.joined(parts) if parts else None
