"""Writes steps into a table, and completes an interrupted call."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from async_loader.replay.array_types import Array, Floats, Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.base.field_table import NO_FIELDS, NO_PRIORITIES
from async_loader.replay.table.compressed_ring import CompressedRing, Packed
from async_loader.replay.table.free_rows import FreeRows
from async_loader.replay.table.room import TableRoom
from async_loader.source import Applied


class Staged(Protocol):
    """Steps that are to be written together: `staged_steps.StagedSteps`."""

    count: int

    def taken(self) -> tuple[Any, ...]:
        """Return the steps as `TableWriting.rest` has them: the arguments of `TableWriting.write`,
        and after the first how many steps lie in a block, and the bytes from block to block.
        """


class TableWriting(TableRoom):
    """The layer of a table that writes rows. Under the table's lock."""

    staged: Staged | None = None
    """Steps that `finish` writes. See staged_steps.py, NOTE [staged steps]."""

    # NOTE [interrupted calls]
    # Ctrl-C may come between any two calls, but not within a kernel. One kernel writes and links
    # steps, and notes the changes for samplers; `settle` tells them, and may be repeated. Work of
    # several kernels is noted in `rest` before the first. So an interrupted call has either not
    # begun or is completed, at the latest by `finish`, which every access to the table calls first.
    # The ids of steps that are in are 0 or more.

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
        """Write ``count`` steps whose sources ``fields`` describes (see `kernels.write`): all of
        them or, after Ctrl-C, none.

        ``ids``: where their ids go, -1 each before. ``keep``: what the sources lie in.
        """
        if self._stale:
            self.begin_anew(streams.tolist())
        if self.free is None and count <= self._burst and self.ring is None:
            self._ready(2 * count)
            self._k.write(
                self.g, fields, 0, count, count, 0, final, streams, flags, given, ids, self._changes
            )
            self.settle()
            return
        self.rest = fields, (count, 0), final, count, streams, flags, given, ids, keep
        try:
            self._write_rest()
        except BaseException:
            self._write_rest_again()
            raise

    def load_writing(self) -> None:
        """Load the kernel that writes, which the first steps would wait for: 0.3 s."""
        none = np.empty(0, np.int64)
        self._k.write(
            self.g, NO_FIELDS, 0, 0, 1, 0, NO_FIELDS, none, none, NO_PRIORITIES, none, self._changes
        )

    def _write_rest_again(self) -> None:
        try:
            self._write_rest()
        except Exception:  # not Ctrl-C: it would fail for ever
            self.rest = None
            raise

    def _write_rest(self) -> None:
        """Write the steps of `rest` that are not in the table yet."""
        if self.rest is None:
            return
        fields, (per, between), final, count, streams, flags, given, ids, _ = self.rest
        self._settle_taken()
        self.settle()
        self._commit_compressed()
        burst, start = self._burst, int(np.count_nonzero(ids >= 0))
        while start < count:
            if self.free is not None:
                stop = start + 1
                self._overwrite(self.free, fields, start, streams, flags, given, ids)
            else:
                stop = min(count, start + burst)
                source, last = fields, final
                if self.ring is not None:
                    packed = self.ring.pack(fields, final, start, stop, flags)
                    source, last, stop = packed.fields, packed.final, packed.stop
                    self._put_compressed(self.ring, packed)
                self._ready(2 * (stop - start))
                self._k.write(
                    self.g,
                    source,
                    start,
                    stop,
                    per,
                    between,
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
        self.rest = None

    def _put_compressed(self, ring: CompressedRing, packed: Packed) -> None:
        """Put compressed values into the ring. The oldest steps leave the table if it is full."""
        cursor = int(self.g[r.CURSOR])
        first, stop = ring.expired(packed, cursor, self.window)
        if stop > first:
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
        if not free.ready():
            self.remove(self.remover.draw(1).rows)
        priority = float(given[i]) if len(given) else np.nan
        self._ready(1)
        row = free.take()
        self._k.overwrite(
            self.g, fields, i, row, int(streams[i]), int(flags[i]), priority, ids, self._changes
        )
        free.settle(True)

    def _settle_taken(self) -> None:
        """Settle a row that was taken and, if Ctrl-C came then, not written."""
        free = self.free
        if free is not None and free.taken >= 0:
            free.settle(bool(self.items.alive[free.taken]))

    def finish(self) -> None:
        """Complete what an interrupted call has left. See NOTE [interrupted calls]."""
        if self.ring is not None:
            self._commit_compressed()
        unsettled = self._unsettled
        if unsettled[0] or unsettled[1] or unsettled[4]:
            self.settle()
        staged = self.staged
        if staged is not None and staged.count:
            self.rest, staged.count = staged.taken(), 0  # no call between the two
        if self.rest is not None:
            self._write_rest_again()
        if self._patching is not None:
            self._end_patch()

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
        self._patching = np.unique(rows)
        try:
            self._k.turn_version(self.g, self._patching, True)
            for i, column in columns.items():
                self.storage.cell(i)[rows] = column[there]
        finally:
            self._end_patch()
        return Applied(len(rows), len(ids) - len(rows))

    def _end_patch(self) -> None:
        rows = self._patching
        if rows is None:
            return
        self._k.turn_version(self.g, rows, False)
        for changed in self._reads_fields:
            changed(rows)
        self._patching = None

    def would_wait(self, steps: int) -> Ids:
        """Return the rows of items that would wait for successors after `look_ahead`.

        O(open streams * steps), in Python.
        """
        self.finish()
        heads, rows = self.storage.heads(), self.storage.layout.rows
        found = []
        for name in self.last[self.last >= 0].tolist():
            for _ in range(steps):
                row = name % rows
                if name < 0 or self.ids[row] != name:
                    break
                if self.items.alive[row]:
                    found.append(row)
                name = int(heads[row, r.PREV // 8])
        return np.array(found, np.int64)

    def look_ahead(self, steps: int) -> None:
        """Keep ``steps`` successors with each item of an open episode from now on; a view needs
        them.
        """
        if steps > self.g[r.LOOKAHEAD]:
            self.finish()
            self._k.drop_pending(self.g, steps, self._numbers, self._changes)
            self.settle()
            for one in self._told_of_passed:
                one.find_again(self.in_order(), self.passed())
