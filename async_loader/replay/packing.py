"""Items read straight into the records that travel. Takes no lock, and sends nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from async_loader.replay.reader import ReplayReader
from async_loader.replay.samplers import Reading


class Packing:
    """Reads batches of small single rows as records, one after the other.

    Parameters
    ----------
    reader : ReplayReader
    row : numpy.dtype
        ``f<i>`` is field i of the reader's schema.
    """

    def __init__(self, reader: ReplayReader, row: np.dtype[np.void]) -> None:
        self._reader, self._row = reader, row
        self._index = f"f{len(reader.schema.fields) - 1}"  # the last, as there is no weight
        assert row.fields is not None
        assert row.names is not None
        known = [row.fields[name] for name in row.names]
        self._gaps = sum(one[0].itemsize for one in known) < row.itemsize
        self._fields = reader._template.copy()
        self._fields[:, 4] = row.itemsize
        self._offsets = np.array([one[1] for one in known[: len(self._fields)]], np.int64)
        self._rows = np.empty(0, np.int64)

    def fits(self, count: int) -> bool:
        """Whether `drawn` can."""
        return self._reader.at_once(min(count, max(1, self._reader._short)))

    def drawn(self, count: int, draw_into: Callable[[Reading], bool]) -> npt.NDArray[np.void] | None:
        """As `ReplayReader.drawn`, for samplers without weights and batches of any size. Under the table's lock."""
        if len(self._rows) != count:
            self._rows, self._start = np.empty(count, np.int64), -(-8 * count // 16) * 16
        make = np.zeros if self._gaps else np.empty
        block = make(self._start + count * self._row.itemsize, np.uint8)
        ids, packed = block[: 8 * count].view(np.int64), block[self._start :].view(self._row)
        geometry, most = self._reader._storage.geometry, self._reader._short
        for at in range(0, count, most):
            part = slice(at, at + most)
            self._fields[:, 3] = self._start + self._offsets + at * (self._row.itemsize - ids.itemsize)  # from the part's ids on
            if not draw_into(Reading(geometry, self._fields, self._rows[part], ids[part], None)):
                return None
        packed[self._index] = ids
        return packed
