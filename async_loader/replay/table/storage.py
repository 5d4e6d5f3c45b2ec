"""The memory of a table: where each field of each row lies in one block of shared memory, or of a
mapped file.

::

    packed rows                                            columns
    row 0: head, small fields | row 1: head, small ... | large field 0: row 0 ... | field 1 ...

The row of an id is ``id % rows``; ids are 64 bits wide and never reused. The head is described in
row_format.py.

# NOTE [spare rows]
There are more rows than the capacity: what leaves the newest `capacity` steps stays readable until
as many more as there are spare rows have come. So all of the newest `capacity` can be drawn at
every moment, also while the writer is in the middle of a row, and the oldest one, once drawn,
stays readable for that many additions.

A field with a codec has no column: its row holds where its compressed value lies in the ring of
compressed values at the end of the block. See compressed_ring.py.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from async_loader.errors import ConfigError, OutOfMemory
from async_loader.name_hints import nearest
from async_loader.replay.array_types import Array, Bytes, Ids
from async_loader.replay.base import row_format
from async_loader.schema import Field, PackedRow, Schema
from async_loader.shm.hugepages import HugePages, advise
from async_loader.shm.limits import human
from async_loader.shm.segment import Segment

# Fields of this size and above are columns. 256 rows with one field beside 176 bytes of others,
# drawn out of 300 MB: as a column 28 us at 64 bytes, 31 at 256, 67 at 1 KiB; within the packed row
# 35, 41 and 77, for the second copy that unpacking is. But every further column costs as much again
# (five of them 61 us against 17), so fields share a row until copying their bytes twice outweighs
# another pass.
COLUMN_BYTES = 1024

_PAGE = mmap.PAGESIZE
_INT64 = np.dtype(np.int64)
# At the end: a byte that says whether the rows are being loaded; and from byte 8 on the two words
# of the ring of compressed values; at byte 24 how often ids began again.
_MARK_BYTES = 64
LOCATOR_BYTES = 16
"""In a row, for a field with a codec: where its value begins, and its bytes, each 8 bytes."""
_LEAST_STEPS = 64
"""Steps that do not compress which the ring of compressed values holds at least."""


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """Where each field of each row lies. Pure arithmetic.

    Attributes
    ----------
    schema : Schema
        Of a step, as it is stored.
    capacity : int
        Steps that are live at most.
    rows : int
        Rows in memory. See NOTE [spare rows].
    stride : int
        Bytes from packed row to packed row.
    places : tuple of (int, int)
        For every field: its offset in row 0 from the start of the block, and the bytes from row to
        row.
    nbytes : int
        Of everything, with the mark at the end.
    ring : (int, int)
        Of the ring of compressed values: its offset in the block, and its bytes; 0 without one.
    """

    schema: Schema
    capacity: int
    rows: int
    stride: int
    places: tuple[tuple[int, int], ...]
    nbytes: int
    ring: tuple[int, int] = (0, 0)

    @classmethod
    def of(
        cls, schema: Schema, capacity: int, spare: int | None = None, ring: int | None = None
    ) -> StorageLayout:
        """Compute the layout for steps of ``schema``. ``spare`` is for tests, and for what was
        saved; ``ring``: the bytes of the compressed values, by default room for steps that do not
        compress.
        """
        stored = stored_fields(schema)
        small = [i for i, field in enumerate(stored) if field.nbytes < COLUMN_BYTES]
        packed = PackedRow.of([stored[i] for i in small])
        stride = row_format.HEAD_BYTES + (packed.stride if small else 0)
        stride = (
            -(-stride // 16) * 16 if any(stored[i].dtype.itemsize > 8 for i in small) else stride
        )
        count = capacity + (_spare(capacity, stride + schema.nbytes) if spare is None else spare)
        places = {
            i: (row_format.HEAD_BYTES + offset, stride)
            for i, offset in zip(small, packed.offsets, strict=True)
        }
        end = count * stride
        for i, field in enumerate(stored):
            if i not in places:
                places[i] = (_pages(end), field.nbytes)
                end = _pages(end) + count * field.nbytes
        most = _most_compressed(schema)
        if most:
            begin, end = _pages(end), _pages(end)
            # also for what is being written while the oldest rows are still there
            end += _pages((2 * count - capacity + _LEAST_STEPS) * most if ring is None else ring)
        room = (begin, end - begin) if most else (0, 0)
        nbytes = _pages(end + _MARK_BYTES)
        return cls(
            schema,
            capacity,
            count,
            stride,
            tuple(places[i] for i in range(len(stored))),
            nbytes,
            room,
        )

    @classmethod
    def within(cls, schema: Schema, nbytes: int, capacity: int | None = None) -> StorageLayout:
        """Compute the largest layout within ``nbytes``, of at most ``capacity`` steps.

        Raises
        ------
        ConfigError
            If not even one step fits.
        """
        if capacity is not None and (whole := cls.of(schema, capacity)).nbytes <= nbytes:
            return whole
        if _most_compressed(schema):
            return cls._within_ring(schema, nbytes, capacity)
        low, high = 0, max(1, nbytes // row_format.HEAD_BYTES)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if cls.of(schema, middle).nbytes <= nbytes else (low, middle - 1)
            )
        if low == 0:
            least = cls.of(schema, 1).nbytes
            raise ConfigError(
                f"capacity of {human(nbytes)}: one step of {schema.nbytes} bytes already takes "
                f"{human(least)}"
            )
        return cls.of(schema, low)

    @classmethod
    def _within_ring(cls, schema: Schema, nbytes: int, capacity: int | None) -> StorageLayout:
        """Give the compressed values what the rows leave."""
        names = ", ".join(repr(field.name) for field in schema.fields if field.codec)
        if capacity is None:
            raise ConfigError(
                f"capacity of {human(nbytes)}: how many steps fit depends on how well {names} "
                f"compress: give the steps as capacity, and max_bytes='{nbytes}B'"
            )
        least = _LEAST_STEPS * _most_compressed(schema)
        rows = cls.of(schema, capacity, ring=0).nbytes
        left = (nbytes - rows) // _PAGE * _PAGE
        if left < least:
            raise ConfigError(
                f"max_bytes of {human(nbytes)}: {capacity:,} steps take {human(rows)} without "
                f"{names}, and {human(least)} is the least for those: raise max_bytes, or lower "
                "the capacity"
            )
        return cls.of(schema, capacity, ring=left)

    @property
    def whole(self) -> bool:
        """Whether the ring holds all steps, however little they compress."""
        return self.ring[1] >= StorageLayout.of(self.schema, self.capacity, self.spare).ring[1]

    @property
    def spare(self) -> int:
        """Rows beyond the capacity."""
        return self.rows - self.capacity


def stored_fields(schema: Schema) -> tuple[Field, ...]:
    """Return the fields as they lie in rows: those with a codec as locators, int64 ``[2]``."""
    return tuple(
        field if field.codec is None else replace(field, shape=(2,), dtype=_INT64, codec=None)
        for field in schema.fields
    )


def _most_compressed(schema: Schema) -> int:
    """Return the bytes of the fields with a codec in a step that does not compress; 0 without."""
    return sum(-(-field.nbytes // 8) * 8 for field in schema.fields if field.codec is not None)


def _spare(capacity: int, nbytes: int) -> int:
    """A thirty-second of the capacity or 64 KiB, whichever is more; at least 4, at most 1024."""
    return max(4, min(1024, max(capacity // 32, (64 << 10) // nbytes)))


def _pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


class RowParts(Protocol):
    """The rows of a table as a save has them: packed ones, then each large field."""

    @property
    def widths(self) -> list[int]:
        """Bytes of a row of each part."""

    def copy(self, rows: Ids, into: Sequence[Bytes]) -> None:
        """Copy these rows into ``[rows, width]`` of each part."""

    def put(self, rows: Ids, ids: Ids, values: Sequence[Bytes]) -> None:
        """Write these rows, which have these ids, from ``[rows, width]`` of each part."""


class Storage:
    """The rows of a table, in this process.

    A copy in another process (by fork, or by pickling while it is spawned) shares them.

    Parameters
    ----------
    segment : Segment
    layout : StorageLayout
    on_disk : bool
        Whether the segment is a file.

    Attributes
    ----------
    geometry : int64 array
        What kernels know of the table; see row_format.py. The table fills in the rest.
    ready : int
        Rows for which `make_ready` has been called.
    """

    def __init__(self, segment: Segment, layout: StorageLayout, on_disk: bool = False) -> None:
        self.layout, self.on_disk = layout, on_disk
        self.resumed = False  # whether it has what another process has left
        self.punches = not on_disk  # on a disk the room was taken at the beginning
        self.segment = segment
        self._block = segment.bytes(0, layout.nbytes)
        self._mark = segment.bytes(layout.nbytes - _MARK_BYTES, _MARK_BYTES)
        self._emptied = self._mark[24:32].view(np.int64)
        self.base = self._block.ctypes.data
        self.geometry = self.fresh_geometry()
        self.pid = os.getpid()
        self._huge = HugePages(self.base, 0 if on_disk else layout.nbytes)
        if on_disk:  # the pages around a row that is drawn at random are not wanted
            advise(self.base, layout.nbytes, mmap.MADV_RANDOM)
        self.ready = 0

    @classmethod
    def create(cls, layout: StorageLayout, folder: str | None = None) -> Storage:
        """Allocate a segment, whose pages the kernel provides as they are written.

        ``folder``: on whose disk, in place of memory.

        Raises
        ------
        OutOfMemory
            When the full table would not fit, before anything is allocated.
        """
        purpose = f"replay buffer of {layout.capacity} steps of {layout.schema.nbytes} bytes"
        try:
            if folder is not None:
                return cls(Segment.on_disk(folder, layout.nbytes, purpose), layout, on_disk=True)
            return cls(Segment.create(layout.nbytes, purpose, commit=False), layout)
        except OutOfMemory as error:
            if layout.ring[1]:
                raise OutOfMemory(
                    f"{error} (that is with room for values that do not compress: max_bytes= gives "
                    "less to those with a codec)"
                ) from None
            raise

    @property
    def loading(self) -> bool:
        """Whether a save is being loaded into the rows. Each process that shares them sees it."""
        return bool(self._mark[0])

    @loading.setter
    def loading(self, loading: bool) -> None:
        self._mark[0] = loading

    @property
    def emptied(self) -> int:
        """How often ids began again. Each process that shares the rows sees it."""
        return int(self._emptied[0])

    def note_emptied(self) -> None:
        """Tell every reader that what it remembers of ids is void: after the rows lost theirs, and
        before any row gets a new one.
        """
        self._emptied[0] += 1

    @property
    def ring_words(self) -> Ids:
        """The two words of the ring of compressed values; see compressed_ring.py."""
        return self._mark[8:24].view(np.int64)

    def make_ready(self, rows: int) -> None:
        """Put huge pages under the first ``rows`` rows and some more, before they are written for
        the first time.
        """
        layout = self.layout
        regions = {
            (0, layout.stride),
            *((offset, stride) for offset, stride in layout.places if stride != layout.stride),
        }
        ends = [
            (self._huge.under(offset + self.ready * stride, offset + rows * stride) - offset)
            // stride
            for offset, stride in regions
        ]
        self.ready = min(ends) if self._huge.wanted and min(ends) < layout.rows else sys.maxsize

    def bring_in(self, begins: Ids, ends: Ids) -> None:
        """Have a disk bring in the bytes from ``begins`` to ``ends``. Waits for none of them."""
        for begin, end in zip(
            (begins // _PAGE).tolist(), (-(-ends // _PAGE)).tolist(), strict=True
        ):
            advise(self.base + begin * _PAGE, (end - begin) * _PAGE, mmap.MADV_WILLNEED)

    def fresh_geometry(self) -> Ids:
        """Return the geometry of an empty table."""
        geometry = np.zeros(row_format.PLACES, np.int64)
        geometry[row_format.BASE] = self.base
        geometry[row_format.STRIDE] = self.layout.stride
        geometry[row_format.ROWS] = self.layout.rows
        return geometry

    def cell(self, i: int) -> Array:
        """Return field ``i`` of all rows, ``[rows, *shape]``; its locators if it has a codec."""
        field = stored_fields(self.layout.schema)[i]
        offset, stride = self.layout.places[i]
        within = np.empty(field.shape, field.dtype).strides
        return np.ndarray(
            (self.layout.rows, *field.shape), field.dtype, self._block, offset, (stride, *within)
        )

    def column(self, name: str) -> Array:
        """Return the field of a name of all rows, ``[rows, *shape]``.

        Raises ConfigError for an unknown one.
        """
        names = [field.name for field in self.layout.schema.fields]
        if name not in names:
            raise ConfigError(f"steps have no field {name!r}: {nearest(name, names)}")
        return self.cell(names.index(name))

    def row_parts(self) -> list[Bytes]:
        """Return the bytes of rows: the packed ones, then each column, ``[rows, bytes of one]``."""
        layout = self.layout
        packed, beside = (0, layout.stride), layout.rows * layout.stride
        places = [packed, *(place for place in layout.places if place[0] >= beside)]
        return [np.ndarray((layout.rows, width), np.uint8, self._block, at) for at, width in places]

    @property
    def widths(self) -> list[int]:
        """See `RowParts`."""
        return [part.shape[1] for part in self.row_parts()]

    def copy(self, rows: Ids, into: Sequence[Bytes]) -> None:
        """See `RowParts`."""
        first, stop = rows[0], rows[-1] + 1
        for part, copy in zip(self.row_parts(), into, strict=True):
            if stop - first == len(rows):
                np.copyto(copy, part[first:stop])
            else:
                np.take(part, rows, axis=0, out=copy, mode="clip")  # "raise" copies once more

    def put(self, rows: Ids, ids: Ids, values: Sequence[Bytes]) -> None:
        """See `RowParts`."""
        for part, value in zip(self.row_parts(), values, strict=True):
            part[rows] = value

    def heads(self) -> Ids:
        """Return the heads of all rows, ``[rows, 4]``. See row_format.py."""
        return np.ndarray((self.layout.rows, 4), np.int64, self._block, 0, (self.layout.stride, 8))

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self.segment, self.layout, self.on_disk)
