"""Batches on their way out, and rows that come back: cut and joined again for whoever wants them next. Draws nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.feeder.shared import Spot

Column = npt.NDArray[Any]


@dataclass(slots=True, eq=False)
class Parcel:
    """A batch, ready to be sent.

    Attributes
    ----------
    columns : sequence of arrays [rows, *shape] | None
        One per field; of a table that leases its batches the last says which rows a learner may have had before. ``None``
        where the rows lie in a spot only, and are not wanted again.
    again : bool
        Whether a learner may have had any of its rows before.
    spot : Spot | None
        Where its rows lie to be sent: in shared memory, or in the reader's tray.
    """

    rows: int
    columns: Sequence[Column] | None = None
    again: bool = False
    spot: Spot | None = None

    @classmethod
    def of(cls, columns: Sequence[Column]) -> Parcel:
        """Rows of a table that leases its batches."""
        return cls(len(columns[-1]), columns, bool(columns[-1].any()))

    @classmethod
    def joined(cls, parts: Sequence[Parcel]) -> Parcel:
        """One of several, of the same schema."""
        if len(parts) == 1:
            return parts[0]
        return cls.of([np.concatenate(pieces) for pieces in zip(*(one._own for one in parts), strict=True)])

    def cut(self, rows: int) -> tuple[Parcel, Parcel]:
        """The first ``rows``, and the others."""
        first, rest = ([column[part].copy() for column in self._own] for part in (slice(rows), slice(rows, None)))
        return Parcel.of(first), Parcel.of(rest)

    def lie(self, spot: Spot) -> None:
        """Copy the rows there."""
        for array, column in zip(spot.arrays, self._own, strict=True):
            array[: self.rows] = column
        self.spot = spot

    def mark_redelivered(self) -> None:
        """All rows are rows that a learner may have had before."""
        self.again = True
        self.columns = [*self._own[:-1], np.ones(self.rows, np.bool_)]

    def stay(self) -> None:
        """Its spot is needed for others."""
        if self.columns is None:
            assert self.spot is not None
            self.columns = [array[: self.rows].copy() for array in self.spot.arrays]
        self.spot = None

    @property
    def _own(self) -> Sequence[Column]:
        assert self.columns is not None
        return self.columns


class Returned:
    """Rows that were sent, and not used: by the schema that they are of, in the order in which they came back."""

    def __init__(self) -> None:
        self._parcels: dict[int, deque[Parcel]] = {}

    def __len__(self) -> int:
        """Rows."""
        return sum(one.rows for parcels in self._parcels.values() for one in parcels)

    def put(self, schema: int, parcel: Parcel, seen: bool = True) -> None:
        """It was on its way, and perhaps was ``seen`` by a learner: then each of its rows says so from here on."""
        parcel.spot = None
        if seen:
            parcel.mark_redelivered()
        self._parcels.setdefault(schema, deque()).append(parcel)

    def put_back(self, schema: int, parcel: Parcel) -> None:
        """It was not on its way."""
        parcel.spot = None
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
