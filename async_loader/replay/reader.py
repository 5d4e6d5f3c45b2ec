"""What reads a replay buffer's rows, in any process. Takes no lock and delivers no torn row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import SchemaError
from async_loader.replay.sampler import Uniform
from async_loader.replay.storage import COLUMN_BYTES, IN_ORDER, Storage
from async_loader.schema import Field, Schema
from async_loader.source import Seed, Window

Ids = npt.NDArray[np.int64]
Arrays = list[npt.NDArray[Any]]

# Rows are gathered whole into this much warm memory, then split into fields: it should stay in the second-level cache.
_SCRATCH_BYTES = 256 << 10
_LINE = 64


class ReplayReader:
    """Fills batches with rows by id. Pickles while a process is being spawned, and may be inherited by a fork.

    A row that was overwritten since it was planned, or while it was read, is replaced by another live one, drawn with
    the seed of that part of the batch; ``index`` holds the ids that were delivered. See storage.py's
    NOTE [reserve, write, publish].

    Thread rule: one thread at a time. Cost: about 40 us for 256 rows of 176 bytes out of a million, 250 us for 4096.

    Parameters
    ----------
    storage : Storage
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        layout = storage.layout
        self._columns = [(i, storage.cells[i].reshape(layout.rows, -1)) for i in layout.columns]
        self._scratch_rows = max(1, _SCRATCH_BYTES // layout.row.stride)
        self._empties = [_Empty(field) for field in layout.schema.fields]
        fields = layout.schema.fields[:-1]
        packed = [(i, offset) for i, offset in zip(layout.packed, layout.row.offsets, strict=True) if i < len(fields)]
        self._small = [(i, offset, _void(fields[i])) for i, offset in packed if fields[i].nbytes]
        self._scratch: npt.NDArray[np.uint8] | None = None
        self._views: dict[int, tuple[npt.NDArray[np.uint8], Arrays]] = {}

    @property
    def schema(self) -> Schema:
        """Of a step, with ``index`` (int64) at the end."""
        return self._storage.layout.schema

    def read(self, index: Ids, into: Window, seed: Seed) -> None:
        """Fill ``into`` with the steps of ``index`` (int64 ids), replacing those that are gone.

        Raises
        ------
        SchemaError
            For an id that was never given out.
        Unsupported
            In another process than the owner's, on a machine that does not keep stores in order.
        """
        if not len(index):
            return
        ids = np.array(index, np.int64)
        first, end = self._storage.live()
        low = int(ids.min())
        if low < 0 or ids.max() >= end:
            raise SchemaError(f"ids {low} to {ids.max()} were asked for, the buffer gave out 0 to {end - 1}: use its own")
        others = Uniform(seed)
        intact = self._storage.intact()
        if low < intact:
            gone = np.flatnonzero(ids < intact)
            ids[gone] = others.draw(first, end, len(gone))
        self.fill(ids, min(first, max(low, intact)), into, others)

    def fetch(self, index: Ids, seed: Seed) -> Sequence[Any]:
        """The steps of ``index`` as a list of samples."""
        into = self.fresh(len(index))
        self.read(index, into, seed)
        return [self.schema.rebuild(array[i] for array in into.fields) for i in range(len(index))]

    def fresh(self, rows: int) -> Window:
        """New uninitialised arrays ``[rows, *shape]``, one per field."""
        return Window([empty(rows) for empty in self._empties])

    def fill(self, ids: Ids, first: int, into: Window, others: Uniform) -> None:
        """Gather the rows of ids from ``first`` on that were live a moment ago; change ``ids`` where they no longer are."""
        if IN_ORDER:
            self._gather(ids, into)
            self._revalidate(ids, first, into, others)
        else:
            with self._storage.alone():
                self._gather(ids, into)
                self._revalidate(ids, first, into, others)  # what was given away before the lock was ours

    def _revalidate(self, ids: Ids, first: int, into: Window, others: Uniform) -> None:
        """Read again, as others, the rows that were given away while they were read. Spare rows make that rare."""
        while first < (intact := self._storage.intact()):
            first = intact  # of all ids, from here on
            gone = np.flatnonzero(ids < intact)
            if len(gone):
                ids[gone] = others.draw(*self._storage.live(), len(gone))
                again = self.fresh(len(gone))
                self._gather(ids[gone], again)
                for field, array in zip(into.fields, again.fields, strict=True):
                    field[gone] = array

    def _gather(self, ids: Ids, into: Window) -> None:
        layout = self._storage.layout
        # Every intact id less this is below 2 * rows, where mode="wrap" is one subtraction and % would be a division.
        intact = self._storage.intact()
        rows = ids - (intact - intact % layout.rows)
        packed = into.packed
        if packed is not None and packed.shape[1] == layout.row.stride and not layout.columns:
            self._storage.block.take(rows, 0, packed, "wrap")
            return
        if self._small:
            self._gather_packed(rows, into.fields)
        into.fields[-1][...] = ids
        for i, column in self._columns:
            self._gather_column(rows, column, into.fields[i])

    def _gather_packed(self, rows: Ids, fields: Arrays) -> None:
        items = [_items(fields[i], void) for i, _, void in self._small]
        count = len(rows)
        step = -(-count // -(-count // self._scratch_rows))
        for start in range(0, count, step):
            stop = min(start + step, count)
            block, views = self._views.get(stop - start) or self._scratch_views(stop - start)
            self._storage.block.take(rows[start:stop], 0, block, "wrap")
            for item, view in zip(items, views, strict=True):
                item[start:stop] = view

    def _scratch_views(self, count: int) -> tuple[npt.NDArray[np.uint8], Arrays]:
        """The first ``count`` rows of the scratch memory, and the fields within them as items."""
        layout = self._storage.layout
        if self._scratch is None:
            self._scratch = np.empty((self._scratch_rows, layout.row.stride), np.uint8)
        if len(self._views) >= 16:
            self._views.clear()
        views: Arrays = [
            np.ndarray((count,), void or layout.schema.fields[i].dtype, self._scratch, offset, (layout.row.stride,))
            for i, offset, void in self._small
        ]
        self._views[count] = made = (self._scratch[:count], views)
        return made

    def _gather_column(self, rows: Ids, column: npt.NDArray[Any], into: npt.NDArray[Any]) -> None:
        if into.flags.c_contiguous:
            column.take(rows, 0, into.reshape(len(rows), -1), "wrap")
        else:
            into[...] = column.take(rows, 0, mode="wrap").reshape(into.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return ReplayReader, (self._storage,)


def _void(field: Field) -> np.dtype[Any] | None:
    """The dtype as which a field is copied: numpy copies 17 floats as one item in less than half the time of 17 items."""
    return np.dtype((np.void, field.nbytes)) if field.shape else None


def _items(array: npt.NDArray[Any], void: np.dtype[Any] | None) -> npt.NDArray[Any]:
    """``array`` as one item per row."""
    if void is None:
        return array
    return (array if array.ndim == 2 else array.reshape(len(array), -1)).view(void)[:, 0]


class _Empty:
    """Makes uninitialised arrays of one field; large ones start on a cache line.

    Rows of whole pages (64 x 64 x 3 images) are copied 4 to 5 times slower on AMD's Zen 3 when the target lies 16 bytes
    behind the source within a page (1274 against 256 us for 256 rows), and that is where malloc puts large arrays.
    """

    __slots__ = ("_dtype", "_row_bytes", "_shape")

    def __init__(self, field: Field) -> None:
        self._shape, self._dtype, self._row_bytes = field.shape, field.dtype, field.nbytes

    def __call__(self, rows: int) -> npt.NDArray[Any]:
        if self._row_bytes < COLUMN_BYTES:
            return np.empty((rows, *self._shape), self._dtype)
        raw = np.empty(rows * self._row_bytes + _LINE, np.uint8)
        return np.ndarray((rows, *self._shape), self._dtype, raw, -raw.ctypes.data % _LINE)
