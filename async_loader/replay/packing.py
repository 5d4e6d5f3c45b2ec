"""Items read straight into the records that travel. Takes no lock, and sends nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from async_loader.replay.reader import ReplayReader
from async_loader.replay.samplers.numbers import Numbers


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
        """Whether `any` can."""
        return self._reader.at_once(count)

    def any(self, count: int, numbers: Numbers) -> npt.NDArray[np.void] | None:
        """As `ReplayReader.any`: items that are all equally likely. Under the table's lock."""
        if len(self._rows) != count:
            start = -(-8 * count // 16) * 16
            self._rows, self._start = np.empty(count, np.int64), start
            self._fields[:, 3] = start + self._offsets
        make = np.zeros if self._gaps else np.empty
        block = make(self._start + count * self._row.itemsize, np.uint8)
        ids, packed = block[: 8 * count].view(np.int64), block[self._start :].view(self._row)
        ahead = numbers.ahead(2 * count)
        reader = self._reader
        used = reader._kernels.read_any(reader._storage.geometry, ahead, self._fields, ids, self._rows)
        numbers.drop(used)
        if not used:
            return None
        packed[self._index] = ids
        return packed
