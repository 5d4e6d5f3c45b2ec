"""Rows in one block of shared memory, and the marks that say which of them are whole. Decides nothing about sampling.

::

    header page          packed rows                          columns
    reserved published | row 0: small fields + id, row 1 ... | large field 0: row 0, row 1 ... | large field 1 ...

The row of an id is ``id % rows``. Ids count up from 0, are 64 bits wide and never reused.

# NOTE [spare rows]
There are more rows than the capacity: new steps are written into rows that no live step occupies, so that all of the
newest `capacity` steps can be read at every moment, also while the writer is in the middle of a row or was killed
there, and a reader that drew the oldest step has that many additions of time to read it.

# NOTE [reserve, write, publish]
The writer raises the reserved mark, writes the rows, and raises the published mark. A reader draws below the
published mark, gathers, and then reads the reserved mark again: an id at or above ``reserved - rows`` had not been
touched when the mark was read, hence not when its bytes were; every other is drawn again. Nobody waits for anybody.

This rests on three things. Marks are aligned 8-byte words that numpy loads and stores as one machine word. CPython
and numpy are compiled apart, so that no compiler moves an access across the calls. And the machine keeps stores
in order with stores and loads in order with loads, as x86-64 does (Intel SDM volume 3, 9.2.2; AMD64 manual volume 2,
7.2; copies by string instructions or past the cache, as memcpy uses for large rows, are complete before the store
that follows them there). Other machines do not promise the last: there the owner reads under its writers'
lock, and other processes are refused (`Storage.alone`).
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import Unsupported
from async_loader.schema import PackedRow, Schema
from async_loader.shm.segment import Segment

IN_ORDER = platform.machine().lower() in ("x86_64", "amd64")  # See NOTE [reserve, write, publish].

# Fields of this size and above are columns. 256 rows with one field beside 176 bytes of others, drawn out of 300 MB:
# as a column 28 us at 64 bytes, 31 at 256, 67 at 1 KiB; within the packed row 35, 41 and 77, for the second copy that
# unpacking is. But every further column costs as much again (five of them 61 us against 17), so fields share
# a row until copying their bytes twice outweighs another pass.
COLUMN_BYTES = 1024

_PAGE = 4096
_RESERVED, _PUBLISHED = 0, 8  # words of the header; on cache lines of their own


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """Where every field of every row lies. Pure arithmetic.

    Attributes
    ----------
    schema : Schema
        Of a step, with the field ``index`` at the end, in which the step's id is stored.
    capacity : int
        Steps that are live at most.
    rows : int
        Rows in memory. See NOTE [spare rows].
    packed : tuple of int
        Which fields, by position, share the packed row; ``index`` always does.
    row : PackedRow
        Where they lie within it.
    columns : dict of int to int
        Byte offset of the column of each of the other fields.
    nbytes : int
        Of everything.
    """

    schema: Schema
    capacity: int
    rows: int
    packed: tuple[int, ...]
    row: PackedRow
    columns: dict[int, int]
    nbytes: int

    @classmethod
    def of(cls, schema: Schema, capacity: int, spare: int | None = None) -> StorageLayout:
        """For steps of ``schema``, which has no ``index`` yet. ``spare`` is for tests."""
        full = schema.with_field("index", np.int64)
        small = tuple(i for i, field in enumerate(full.fields) if field.nbytes < COLUMN_BYTES)
        row = PackedRow.of([full.fields[i] for i in small])
        rows = capacity + (_spare(capacity, full.nbytes) if spare is None else spare)
        end = _PAGE + _pages(rows * row.stride)
        columns = {}
        for i, field in enumerate(full.fields):
            if i not in small:
                columns[i] = end
                end += _pages(rows * field.nbytes)
        return cls(full, capacity, rows, small, row, columns, end)

    @property
    def burst(self) -> int:
        """Rows that are reserved at a time at most."""
        return max(1, (self.rows - self.capacity) // 2)


def _spare(capacity: int, nbytes: int) -> int:
    """A thirty-second of the capacity or 64 KiB, whichever is more; at least 2, at most 1024."""
    return max(2, min(1024, max(capacity // 32, (64 << 10) // nbytes)))


def _pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


class Storage:
    """The rows. Its owner writes; whoever has a copy (by fork, or by pickling while being spawned) reads.

    Thread rule: `append` and `extend` under the owner's lock; everything else from any thread of any process.

    Parameters
    ----------
    segment : Segment
    layout : StorageLayout
    lock : Lock | None
        The lock under which the owner writes; ``None`` in other processes.
    """

    def __init__(self, segment: Segment, layout: StorageLayout, lock: threading.Lock | None = None) -> None:
        self.layout = layout
        self._segment = segment
        self._lock = lock
        self._pid = os.getpid()
        self._marks = segment.bytes(0, _PAGE).view(np.int64)
        packed = segment.bytes(_PAGE, layout.rows * layout.row.stride)
        self.block: npt.NDArray[np.uint8] = packed.reshape(layout.rows, layout.row.stride)
        self.cells = [self._cell(i, packed) for i in range(len(layout.schema.fields))]

    @classmethod
    def create(cls, layout: StorageLayout, lock: threading.Lock) -> Storage:
        """In a new segment, whose pages are taken as they are written.

        Raises
        ------
        OutOfMemory
            When the full table would not fit, before anything is allocated.
        """
        purpose = f"replay buffer of {layout.capacity} steps of {layout.schema.nbytes} bytes"
        return cls(Segment.create(layout.nbytes, purpose, commit=False), layout, lock)

    def _cell(self, i: int, packed: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Field ``i`` of all rows, ``[rows, *shape]``."""
        layout, field = self.layout, self.layout.schema.fields[i]
        shape = (layout.rows, *field.shape)
        if i in layout.columns:
            column = self._segment.bytes(layout.columns[i], layout.rows * field.nbytes)
            return column.view(field.dtype).reshape(shape)
        within = np.empty(field.shape, field.dtype).strides
        offset = layout.row.offsets[layout.packed.index(i)]
        return np.ndarray(shape, field.dtype, packed, offset, (layout.row.stride, *within))

    def published(self) -> int:
        """The first id that does not exist yet."""
        return int(self._marks[_PUBLISHED])

    def live(self) -> tuple[int, int]:
        """The first live id, and the first id that does not exist yet."""
        end = int(self._marks[_PUBLISHED])
        return max(0, end - self.layout.capacity), end

    def intact(self) -> int:
        """The first id whose row has not been given away. See NOTE [reserve, write, publish]."""
        return max(0, int(self._marks[_RESERVED]) - self.layout.rows)

    def alone(self) -> contextlib.AbstractContextManager[Any]:
        """What to hold while reading, where the machine does not keep accesses in order.

        Raises
        ------
        Unsupported
            In a process other than the owner's.
        """
        if self._lock is None or self._pid != os.getpid():
            raise Unsupported(
                f"worker processes cannot read a replay buffer's memory on {platform.machine()}, which does not keep "
                "stores in order: use num_workers=0 or 1"
            )
        return self._lock

    def append(self, values: Sequence[Any]) -> int:
        """Write one step of checked ``values``, one per field but ``index``; return its id."""
        marks, cells = self._marks, self.cells
        new = int(marks[_PUBLISHED])
        self._reserve(new + 1)
        row = new % self.layout.rows
        for cell, value in zip(cells, values, strict=False):
            cell[row] = value
        cells[-1][row] = new
        marks[_PUBLISHED] = new + 1
        return new

    def extend(self, columns: Sequence[npt.NDArray[Any]], count: int) -> int:
        """Write ``count`` steps of checked ``columns``; return the id of the first."""
        first = int(self._marks[_PUBLISHED])
        done = 0
        while done < count:
            row = (first + done) % self.layout.rows
            some = min(self.layout.burst, count - done, self.layout.rows - row)
            self._reserve(first + done + some)
            for cell, column in zip(self.cells, columns, strict=False):
                cell[row : row + some] = column[done : done + some]
            self.cells[-1][row : row + some] = np.arange(first + done, first + done + some)
            done += some
            self._marks[_PUBLISHED] = first + done
        return first

    def _reserve(self, mark: int) -> None:
        # Never lowered: what an interrupted burst reserved may have been scribbled on.
        if mark > self._marks[_RESERVED]:
            self._marks[_RESERVED] = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self._segment, self.layout)
