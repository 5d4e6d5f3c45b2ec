"""A table under its lock: ids, links, items, and the samplers that choose among them.

It is built in layers, each in a file of its own and each using those below it::

    table.py    Table         writes steps, draws items, changes them by id
    streams.py  TableStreams  numbers streams, ends their episodes, counts the room for them
    items.py    TableItems    knows which rows hold items, and tells the samplers
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from async_loader.replay.array_types import Array, Floats, Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.base.field_table import (
    ARRAY_ADDRESS,
    ARRAY_STRIDE,
    NO_FIELDS,
    WRITING,
    address_of,
)
from async_loader.replay.samplers import Draw, Items, Sampler, one_scale
from async_loader.replay.samplers.sampler import wrong_counts
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
_COUNTS = ("inserted", "sampled", "carried", "cleared")


class Drawn(NamedTuple):
    """Ids of drawn items, and their weights if the sampler has any."""

    ids: Ids
    weight: npt.NDArray[np.float32] | None


class Table(TableStreams):
    """The ids, links and items of a table. Every method is called under its lock; none waits."""

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
        self.records = Records(packer.layout, most + 1)
        self.records.limit = most
        self._singles = RowSource.of(self._of_records(), self.records.heads)
        self._source = self._singles
        self._batches: Batches | None = None
        self._other_count = 0  # of the last batch, if it was of another size than those
        self._ids = np.full(most + 1, -1, np.int64)

    def _of_records(self) -> Ids:
        """Return the table of fields of `records`. Small fields lie in them as they do in rows, and
        are copied together.
        """
        records, layout = self.records, self.storage.layout
        fields, packed = self.fields_of(records.views), records.layout
        if self.ring is not None or not packed.small:
            return fields
        # the small fields lie together, in a record as in a row
        first, heads = self.storage.base + r.HEAD_BYTES, records.heads.ctypes.data
        nbytes = min(packed.stride - r.RECORD_HEAD, layout.stride - r.HEAD_BYTES)
        small = (first, layout.stride, nbytes, heads + r.RECORD_HEAD, packed.stride)
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

    def gather_batch(self, columns: Sequence[Array], heads: bytes, count: int) -> int:
        """Gather a batch of records. Return the place of the first; -1 if it is to be written
        at once: it is large, or not contiguous, or the first of its size.
        """
        records, batches = self.records, self._batches
        if not 0 < 2 * count <= records.limit:
            return -1
        try:
            packed = b"".join((heads, *columns))  # type: ignore[arg-type]
        except (TypeError, ValueError, BufferError):  # also of columns without a buffer, as times
            return -1
        if batches is None or count != batches.rows:
            if count != self._other_count:  # as one with a final observation, between usual ones
                self._other_count = count
                return -1
            self.single()
            batches = self._batches = Batches(self._fields, count, records.limit)
        self._other_count, place = 0, records.count
        if records.single or place + count > batches.most:
            self.finish()
            records.single, self._source, place = False, batches.source, 0
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
            if self.kept is not None and not self.kept.held:
                self.kept.commit()

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
        rows = self.find(ids, steps=True)
        there = np.flatnonzero(rows >= 0)
        rows, columns = rows[there], {i: column[there] for i, column in columns.items()}
        patched = np.unique(rows)
        noted = nullcontext() if self.kept is None else self.kept.patching(ids[there], columns)
        self.unfinished = True
        with noted:
            self._k.turn_version(self.g, patched, True)
            for i, column in columns.items():
                self.storage.cell(i)[rows] = column
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
            if self.kept is not None:
                self.kept.note_counts()

    def held_for(self, sampler: Sampler) -> int:
        """Return how many items a sampler chooses among: those of the table, or sequences."""
        own: Items | None = getattr(sampler, "own_items", None)
        return len(self) if own is None else own.count

    def drawable(self, sampler: Sampler) -> int | None:
        """Return how many items one draw can hold; ``None``: any number, as long as there is one
        item.
        """
        held = self.held_for(sampler)
        if not held:
            return 0
        if self._most and sampler.repeats:
            return int((self._most - self.times[self.items.alive != 0]).sum())
        return None if sampler.repeats else held

    def chosen(self, sampler: Sampler, count: int) -> Draw:
        """Have a sampler choose ``count`` items; there must be that many. Raises Broken if it finds
        fewer.
        """
        drawn = sampler.draw(count)
        if len(drawn.rows) < count:
            raise wrong_counts(
                f"{sampler!r} drew {len(drawn.rows)} items of {self.held_for(sampler):,}"
            )
        return drawn

    def draw(self, sampler: Sampler, count: int) -> Drawn:
        """Draw ``count`` items. There must be that many; see `drawable`.

        The caller counts them as sampled, unless each item counts its draws. Then a draw may choose
        an item more often than it has draws left, and other items take its places.
        """
        drawn = self.chosen(sampler, count)
        if not self._most:
            return Drawn(self.ids[drawn.rows], drawn.weight)
        ids, weights = [], []
        while True:
            rows = drawn.rows
            kept = np.full(len(rows), -1, np.int64)
            self.unfinished = True
            self._k.use_up(self.times, rows, self._most, kept)
            kept = kept[kept >= 0]
            self.sampled += len(kept)
            if self.kept is not None:
                self.kept.note_draw(self.sampled)
            ids.append(self.ids[rows[kept]])
            if drawn.weight is not None:
                weights.append((drawn.weight[kept], drawn.scale))
            used = np.unique(rows)
            self.remove(used[self.times[used] >= self._most])
            count -= len(kept)
            if count <= 0 or not len(self):
                weight = one_scale(weights)[0] if weights else None
                return Drawn(np.concatenate(ids), weight)
            if not len(kept):
                raise wrong_counts(f"{sampler!r} drew none with a draw left of {len(self):,}")
            drawn = sampler.draw(count)

    def prioritize(self, ids: Ids, priority: Floats) -> Applied:
        """Change the priorities of items.

        A step that becomes an item later keeps its new priority until then.
        """
        self.unfinished = True
        if self._update_by_id is not None:
            there = self._update_by_id(self.g, ids, priority)
            self.unfinished = False
            if self.kept is not None:
                self.kept.note_samplers()
            return Applied(there, len(ids) - there)
        rows = np.empty(len(ids), np.int64)
        there = int(self._k.find(self.g, ids, rows, False))
        if there < len(ids):
            known = rows >= 0
            rows, priority = rows[known], priority[known]
        if self._k.note_priorities(self.g, rows, priority) < there:
            alive = self.items.alive[rows] != 0
            rows, priority = rows[alive], priority[alive]
        for one in self.prioritized:
            one.update(rows, priority)
        self.unfinished = False
        if self.kept is not None:
            self.kept.note_samplers()
        return Applied(there, len(ids) - there)

    def delete(self, ids: Ids) -> Applied:
        """End the items of these ids.

        Their rows stay, for the stacks of their neighbours, until they are overwritten.
        """
        rows = np.unique(self.find(ids))
        rows = rows[rows >= 0]
        self.remove(rows)
        return Applied(len(rows), len(ids) - len(rows))

    def clear(self) -> None:
        """End all open episodes, and all items.

        Ids go on, counts begin anew.
        """
        self.end(np.flatnonzero(self.last >= 0).tolist(), r.TRUNCATED)
        self.remove(np.flatnonzero(self.ids >= 0))
        self.inserted, self.cleared = 0, self.steps_had
        self.lost = self.sampled = self.deleted = self.carried = 0
        if self.kept is not None:
            self.kept.confirm_all()
            self.kept.note_counts()

    @property
    def steps_had(self) -> int:
        """How many items were inserted since the table was made: never less than before."""
        return self.cleared + self.inserted

    def publish(self, ids: Ids) -> None:
        """Give rows that were written without ids these ids; -1: the row holds nothing."""
        # a fence: after everything that was written
        self._k.turn_version(self.g, np.empty(0, np.int64), True)
        self.storage.heads()[:, r.ID // 8] = ids + 1

    def state(self) -> dict[str, Any]:
        """Return what a save holds beside the rows, with the last step of each stream."""
        self.forget_ended()
        found: dict[str, Any] = {name: getattr(self, name) for name in _COUNTS}
        if self.ring is not None:
            found["ring"] = [self.ring.floor, self.ring.head, self.ring.size]
        streams = [(name, int(self.last[number])) for name, number in self.streams.items()]
        return found | {
            "cursor": int(self.g[r.CURSOR]),
            "lookahead": int(self.g[r.LOOKAHEAD]),
            "ordered": self.free is None,
            "streams": streams,
        }

    def restore(self, saved: Mapping[str, Any], streams: Mapping[Hashable, int]) -> None:
        """Continue from a `state`, when rows and what has an entry per row are in place."""
        numbers, last = self.numbers(streams), np.array(list(streams.values()), np.int64)
        self.last[numbers] = last
        self._stale = set(numbers[last >= 0].tolist())
        g = self.g
        g[r.CURSOR], g[r.LOOKAHEAD] = saved["cursor"], max(g[r.LOOKAHEAD], saved["lookahead"])
        self.inserted, self.sampled, self.carried, self.cleared = (saved[name] for name in _COUNTS)
        rebuild.derive(self)
        rebuild.rebuild(self)
