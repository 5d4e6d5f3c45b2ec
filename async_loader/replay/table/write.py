"""Writes records into a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from async_loader.replay.array_types import Array, Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.base.field_table import (
    ARRAY_ADDRESS,
    ARRAY_STRIDE,
    NO_FIELDS,
    WRITING,
    address_of,
)
from async_loader.replay.base.row_format import HEAD, RECORD_HEAD
from async_loader.replay.table import rebuild
from async_loader.replay.table.compressed_ring import CompressedRing, Packed
from async_loader.replay.table.items import FreeRows
from async_loader.replay.table.records import Batches, Heads, Records, RowSource, plain_heads
from async_loader.replay.table.step_packer import StepPacker
from async_loader.replay.table.streams import TableStreams
from async_loader.source import Applied

_GATHERED, _BYTES = 448, 1 << 18
"""Records that are gathered, and their bytes, at most."""
_ROW_BYTES = 1 << 12
"""Bytes of a record, beyond which a second copy costs more than a call."""


class TableWriting(TableStreams):
    """The layer of a table that writes rows. Under the table's lock."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        storage = self.storage
        schema, places = storage.layout.schema, storage.layout.places
        self._fields = np.array(
            [
                (storage.base + offset, stride, field.nbytes, 0, field.nbytes)
                for (offset, stride), field in zip(places, schema.fields, strict=True)
            ],
            np.int64,
        ).reshape(-1, WRITING)
        self.packer = packer = StepPacker(schema)
        each = packer.layout.row_bytes
        most = 1 if each > _ROW_BYTES else min(_GATHERED, _BYTES // each, 2 * self._burst - 1)
        # Behind the last step there is room for its final observation.
        self.records = Records(packer.layout, packer.pack_into, most + 1)
        self.records.limit = most
        self._singles = RowSource.of(self._of_records(), self.records.heads)
        self._source = self._singles
        self._batches: Batches | None = None
        self._ids = np.full(most + 1, -1, np.int64)

    def _of_records(self) -> Ids:
        """Return the table of fields of `records`. Small fields lie in them as they do in rows, and
        are copied together.
        """
        records, layout = self.records, self.storage.layout
        fields, packed = self.fields_of(records.views), records.layout
        places = [place for place, _ in layout.places]
        if (
            self.ring is not None
            or not packed.small
            or any(
                places[i] - r.HEAD_BYTES != (packed.offsets[i] or 0) - RECORD_HEAD
                for i in packed.small
            )
        ):
            return fields
        first, heads = self.storage.base + r.HEAD_BYTES, records.heads.ctypes.data
        nbytes = min(packed.stride - RECORD_HEAD, layout.stride - r.HEAD_BYTES)
        small = (first, layout.stride, nbytes, heads + RECORD_HEAD, packed.stride)
        return np.array([small, *fields[list(packed.large)].tolist()], np.int64)

    def fields_of(self, columns: Sequence[Array], which: list[int] | None = None) -> Ids:
        """Return the table of fields of records in these columns; all fields, or ``which``.

        Keep the columns while it is used.
        """
        fields = self._fields.copy() if which is None else self._fields[which]
        # `address_of` would find out by an exception that a column is strided
        fields[:, ARRAY_ADDRESS] = [
            address_of(one) if one.flags.c_contiguous else one.ctypes.data for one in columns
        ]
        fields[:, ARRAY_STRIDE] = [column.strides[0] for column in columns]
        return fields

    def ids_at(self, place: int, count: int) -> Ids:
        """Return the ids of ``count`` records from this place of `records` on."""
        if self.free is None:
            first = self.records.first + place
            return np.arange(first, first + count)
        return self._ids[place : place + count].copy()

    def write_records(self) -> None:
        """Write what was gathered, but for what an interrupted call has written."""
        records = self.records
        count, done = records.count, 0
        if self.free is None:
            done = int(self.g[r.CURSOR]) - records.first
        else:
            records.count = 0
        self.write(self._source, count, self._ids, done)
        records.count = 0

    def gather_batch(self, columns: Sequence[Array], heads: bytes) -> int:
        """Gather a batch of records. Return the place of the first; -1 if it is to be written
        at once: it is large, or not contiguous.
        """
        records, count = self.records, len(heads) // HEAD.itemsize
        if not 0 < 2 * count <= records.limit:
            return -1
        try:
            packed = b"".join((heads, *columns))  # type: ignore[arg-type]
        except (TypeError, ValueError, BufferError):  # also of columns without a buffer, as times
            return -1
        batches = self._batches
        if batches is None or count != batches.rows:
            self.single()
            batches = self._batches = Batches(self._fields, count, records.limit)
        if records.single or records.count + count > batches.most:
            self.finish()
            records.single, self._source = False, batches.source
        place = records.count
        if not place:
            records.first = int(self.g[r.CURSOR])
        at = place * batches.row_bytes
        batches.memory[at : at + len(packed)] = packed
        records.count = place + count
        return place

    def single(self) -> None:
        """Let single records be gathered, not batches."""
        self.finish()
        self.records.single, self._source = True, self._singles

    def write(self, source: RowSource, count: int, ids: Ids, start: int = 0) -> None:
        """Write records of a source, from ``start`` to ``count``.

        ``ids``: where their ids go, -1 for a record that only ends an episode.
        """
        if self._stale:
            self._begin_anew_before(source.heads.ravel()[start:count])
        while start < count:
            stop, free, (fields, heads, *places) = min(count, start + 2 * self._burst), -1, source
            if self.ring is not None:
                packed = self.ring.pack(fields, start, stop)
                fields, stop = packed.fields, packed.stop
                self._put_compressed(self.ring, packed)
            self._ready(stop - start)
            if self.free is not None:
                stop = start + 1
                free = self._take_row(self.free, heads.ravel()[start])
            self.unfinished = True
            self._k.write(self.g, fields, *places, start, stop, free, ids, self._changes)
            if self.ring is not None:
                self.ring.commit(packed, ids[start:stop])
            self.settle()
            start = stop

    def _take_row(self, free: FreeRows, head: Any) -> int:
        """Take the row of a record that needs one; the remover makes room for it."""
        if head["flags"] & r.FINAL:
            return -1
        if not free.left():
            self.remove(self.remover.draw(1).rows)
        self.unfinished = True
        return free.take()

    def _begin_anew_before(self, heads: Heads) -> None:
        """End the episodes that were open before the table was loaded and now begin anew."""
        for stream, flags in zip(heads["stream"].tolist(), heads["flags"].tolist(), strict=True):
            if flags & r.FINAL:
                self._stale.discard(stream)
            else:
                self.begin_anew((stream,))

    def end(self, numbers: Iterable[int], flags: int, final: Sequence[Array] = ()) -> None:
        """End the open episodes of these streams.

        ``final``: the observations after them, for a schema that shows these; see row_format.py,
        SHOWN.
        """
        listed = list(numbers)
        self._stale.difference_update(listed)
        heads, ids = plain_heads(len(listed)), np.empty(len(listed), np.int64)
        heads["stream"], heads["flags"] = listed, r.FINAL | flags
        fields = self.fields_of(final, self.packer.followed) if final else NO_FIELDS
        self.write(RowSource.of(fields, heads), len(heads), ids)

    def load_writing(self) -> None:
        """Load the kernel that writes, which the first steps would wait for: 0.3 s."""
        fields, _, *heads = self._source
        self._k.write(self.g, fields, *heads, 0, 0, -1, self._ids, self._changes)

    def _put_compressed(self, ring: CompressedRing, packed: Packed) -> None:
        """Put compressed values into the ring. The oldest steps leave the table if it is full."""
        cursor = int(self.g[r.CURSOR])
        first, stop = ring.expired(packed, cursor, self.window)
        if stop > first:
            self.unfinished = True
            self._k.retire_steps(self.g, first, stop, self._changes)
            self.settle()
        ring.put(packed, cursor)

    def compressed(self) -> int:
        """Return the bytes of the compressed values of steps that are in the table."""
        return 0 if self.ring is None else self.ring.held(int(self.g[r.CURSOR]), self.window)

    def finish(self) -> None:
        """Rebuild what an interrupted call left half done, and write what was gathered."""
        if self.unfinished:
            rebuild.rebuild(self)
        if self.records.count:
            self.write_records()

    def patch(self, ids: Ids, columns: dict[int, Array]) -> Applied:
        """Overwrite fields (by position) of the steps that are still there.

        Of an id that occurs twice the last value counts.

        A step that is an item no more, because it was deleted or drawn often enough, is still part
        of its neighbours' returns.
        """
        rows = np.empty(len(ids), np.int64)
        self._k.find(self.g, ids, rows, True)
        there = np.flatnonzero(rows >= 0)
        rows = rows[there]
        patched = np.unique(rows)
        self.unfinished = True
        self._k.turn_version(self.g, patched, True)
        for i, column in columns.items():
            self.storage.cell(i)[rows] = column[there]
        self._k.turn_version(self.g, patched, False)
        for changed in self._reads_fields:
            changed(patched)
        self.unfinished = False
        return Applied(len(rows), len(ids) - len(rows))

    def look_ahead(self, steps: int) -> None:
        """Keep ``steps`` successors with each item of an open episode from now on; a view needs
        them.
        """
        if steps > self.g[r.LOOKAHEAD]:
            self.finish()
            rebuild.look_ahead(self, steps)
