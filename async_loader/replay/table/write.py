"""Writes steps into a table."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from async_loader.replay.array_types import Array, Floats, Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.base.field_table import NO_FIELDS, NO_PRIORITIES
from async_loader.replay.table import rebuild
from async_loader.replay.table.compressed_ring import CompressedRing, Packed
from async_loader.replay.table.free_rows import FreeRows
from async_loader.replay.table.room import TableRoom
from async_loader.source import Applied


class Staged(Protocol):
    """Steps that are to be written together: `staged_steps.StagedSteps`."""

    count: int

    def taken(self) -> tuple[Any, ...]:
        """Return the arguments of `TableWriting._write` after the first."""


class TableWriting(TableRoom):
    """The layer of a table that writes rows. Under the table's lock."""

    staged: Staged | None = None
    """Steps that `finish` writes. See staged_steps.py, NOTE [staged steps]."""
    _staged_at = -1
    """The id of the first of these, while they are written."""

    def write(
        self,
        fields: Ids,
        final: Ids,
        count: int,
        streams: Ids,
        flags: Ids,
        given: Floats,
        ids: Ids,
        keep: object = None,
    ) -> None:
        """Write ``count`` steps whose sources ``fields`` describes (see `kernels.write`).

        ``ids``: where their ids go, -1 each before. ``keep``: what the sources lie in.
        """
        if self._stale:
            self.begin_anew(streams.tolist())
        self._write(0, fields, (count, 0), final, count, streams, flags, given, ids, keep)

    def load_writing(self) -> None:
        """Load the kernel that writes, which the first steps would wait for: 0.3 s."""
        none = np.empty(0, np.int64)
        self._k.write(
            self.g, NO_FIELDS, 0, 0, 1, 0, NO_FIELDS, none, none, NO_PRIORITIES, none, self._changes
        )

    def _write(
        self,
        start: int,
        fields: Ids,
        block: tuple[int, int],
        final: Ids,
        count: int,
        streams: Ids,
        flags: Ids,
        given: Floats,
        ids: Ids,
        keep: object,
    ) -> None:
        """As `write`, from step ``start`` on; ``block``: ``per`` and ``between`` of the kernel."""
        while start < count:
            if self.free is not None:
                stop = start + 1
                self._overwrite(self.free, fields, start, streams, flags, given, ids)
            else:
                stop = min(count, start + self._burst)
                source, last = fields, final
                self.unfinished = True
                if self.ring is not None:
                    packed = self.ring.pack(fields, final, start, stop, flags)
                    source, last, stop = packed.fields, packed.final, packed.stop
                    self._put_compressed(self.ring, packed)
                self._ready(2 * (stop - start))
                self.unfinished = True
                self._k.write(
                    self.g,
                    source,
                    start,
                    stop,
                    *block,
                    last,
                    streams,
                    flags,
                    given,
                    ids,
                    self._changes,
                )
            self._commit_compressed()
            self.settle()
            start = stop

    def _put_compressed(self, ring: CompressedRing, packed: Packed) -> None:
        """Put compressed values into the ring. The oldest steps leave the table if it is full."""
        cursor = int(self.g[r.CURSOR])
        first, stop = ring.expired(packed, cursor, self.window)
        if stop > first:
            self.unfinished = True
            self._k.retire_steps(self.g, first, stop, self._changes)
            self.settle()
        ring.put(packed, cursor)

    def _commit_compressed(self) -> None:
        if self.ring is not None:
            self.ring.commit(int(self.g[r.CURSOR]))

    def compressed(self) -> int:
        """Return the bytes of the compressed values of steps that are in the table."""
        return 0 if self.ring is None else self.ring.held(int(self.g[r.CURSOR]), self.window)

    def end_stream(self, stream: int, flags: int, final: Ids) -> None:
        """See `TableStreams.end_stream`."""
        packed = None  # until the kernel has copied its locators
        if self.ring is not None and len(final) and self.last[stream] >= 0:
            packed = self.ring.pack_final(final)
            self._put_compressed(self.ring, packed)
            final = packed.fields
        super().end_stream(stream, flags, final)
        self._commit_compressed()
        del packed

    def _overwrite(
        self, free: FreeRows, fields: Ids, i: int, streams: Ids, flags: Ids, given: Floats, ids: Ids
    ) -> None:
        if not free.left():
            self.remove(self.remover.draw(1).rows)
        self.unfinished = True
        priority = float(given[i]) if len(given) else np.nan
        self._ready(1)
        row = free.take()
        self._k.overwrite(
            self.g, fields, i, row, int(streams[i]), int(flags[i]), priority, ids, self._changes
        )

    def finish(self) -> None:
        """Rebuild what an interrupted call left half done, and write staged steps."""
        if self.unfinished:
            rebuild.rebuild(self)
        staged = self.staged
        if staged is not None and staged.count:
            cursor = int(self.g[r.CURSOR])
            if self._staged_at < 0:
                self._staged_at = cursor
            # those that an interrupted call has written
            self._write(cursor - self._staged_at, *staged.taken())
            staged.count, self._staged_at = 0, -1

    def patch(self, ids: Ids, columns: dict[int, Array]) -> Applied:
        """Overwrite fields (by position) of the steps that are still there.

        Of an id that occurs twice the last value counts.

        A step that is an item no more, because it was deleted or drawn often enough, is still part
        of its neighbours' returns.
        """
        rows = np.empty(len(ids), np.int64)
        self._k.find_steps(self.g, ids, rows)
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

    def would_wait(self, steps: int) -> Ids:
        """Return the rows of items that would wait for successors after `look_ahead`. O(rows)."""
        self.finish()
        alive = np.flatnonzero(self.items.alive)
        waiting: Ids = np.setdiff1d(alive, rebuild.complete(self, alive, steps))
        return waiting

    def look_ahead(self, steps: int) -> None:
        """Keep ``steps`` successors with each item of an open episode from now on; a view needs
        them.
        """
        if steps > self.g[r.LOOKAHEAD]:
            self.finish()
            rebuild.look_ahead(self, steps)
