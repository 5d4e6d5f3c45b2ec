"""The compressed values of a table: a ring of bytes behind its rows, and what reads them.

A row holds a locator for each field with a codec: the position of its value, and its bytes. A
position counts the bytes of the ring since its beginning, so that it is never used again; the place
is ``position % size``, and no value is cut at the ring's end. Values lie in the order of their
steps, as rows do, so that the oldest make room. Where they run out of room before the rows do, the
oldest steps leave the table early.

# NOTE [floor]
A value is guarded by its position, as a row is by its id (kernels, NOTE [row lock]). Values from
the word `FLOOR` on are whole. A writer raises the floor above what it is about to overwrite, then
writes. A reader copies values, then loads the floor: what lies below it may be torn, and counts as
an item that is gone. So there is no lock, and nothing in the rows changes when the ring goes on.

In memory, pages below the floor go back to the kernel: a table takes what its steps compress to,
however much room its ring would have.

Values are put into the ring, a kernel writes the rows that show them, and `commit` notes where they
are. After an interrupted call `derive` reads that in the rows.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from async_loader.replay.array_types import Array, Bools, Bytes, Ids
from async_loader.replay.base.field_table import (
    ARRAY_ADDRESS,
    ARRAY_STRIDE,
    NBYTES,
    ROW_ADDRESS,
    address_of,
)
from async_loader.replay.codec import Lz4
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.table.storage import LOCATOR_BYTES, Storage
from async_loader.shm.hugepages import advise


class CompressedValues:
    """The fields with a codec of the batches of a reader.

    They are copied out of the ring, the floor is looked at (compressed_ring.py, NOTE [floor]), and
    each is decompressed to the place that it has in the batch. A value that a batch shows more than
    once, as the frames of stacks are, is decompressed once, and copied.

    Cost: 3 us for a frame of Pong, of which decompressing takes 1.3.

    Parameters
    ----------
    storage : Storage
    read_plan : ReadPlan
    """

    def __init__(self, storage: Storage, read_plan: ReadPlan) -> None:
        from async_loader.replay.kernels import writing  # late: see compiled.py

        self._storage, self._k, self._codec = storage, writing, Lz4()
        fields = storage.layout.schema.fields
        self._coded = {
            i: fields[one.source]
            for i, one in enumerate(read_plan.outputs)
            if one.source >= 0 and fields[one.source].codec is not None
        }
        self._offset, self._size = storage.layout.ring
        self._ring = storage.base + self._offset
        self._floor = storage.ring_words.ctypes.data + 8 * FLOOR

    def locators(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the arrays of a batch, with others for locators in place of those of values."""
        made = list(arrays)
        for i, field in self._coded.items():
            shape = arrays[i].shape[: arrays[i].ndim - len(field.shape)]
            made[i] = np.zeros((*shape, 2), np.int64)
        return made

    def read(self, locators: Sequence[Array], arrays: Sequence[Array], gone: Ids) -> Ids:
        """Read the values of items, but for those that are ``gone``. Return which are gone now."""
        there = np.ones(len(arrays[-1]), np.bool_)
        there[gone] = False
        for nbytes in dict.fromkeys(field.nbytes for field in self._coded.values()):
            pairs = [
                (locators[i], arrays[i])
                for i, field in self._coded.items()
                if field.nbytes == nbytes
            ]
            self._read_values(nbytes, pairs, there)
        return np.flatnonzero(~there)

    def _read_values(self, nbytes: int, pairs: Sequence[tuple[Array, Array]], there: Bools) -> None:
        places, targets, items = _flat(nbytes, pairs, np.flatnonzero(there))
        for address in targets[places[:, 1] == 0].tolist():  # before the episode's start
            ctypes.memset(address, 0, nbytes)
        known = np.flatnonzero((places[:, 1] > 0) & (places[:, 1] <= nbytes))
        places, targets, items = places[known], targets[known], items[known]
        _, first, of_value = np.unique(places[:, 0], return_index=True, return_inverse=True)
        begins, counts = places[first, 0], places[first, 1]
        starts = np.cumsum(counts) - counts
        if self._storage.on_disk:
            at = self._offset + begins % self._size
            self._storage.bring_in(at, at + counts)
        scratch = np.empty(int(counts.sum()), np.uint8)
        floor = self._k.take_values(
            self._ring, self._size, self._floor, begins, counts, scratch.ctypes.data, starts
        )
        whole, sources = begins >= floor, targets[first]
        self._codec.decompress(scratch.data, starts[whole], counts[whole], sources[whole], nbytes)
        there[items[~whole[of_value]]] = False
        again = np.flatnonzero(targets != sources[of_value])
        self._k.copy_values(targets[again], sources[of_value][again], nbytes)


def _flat(nbytes: int, pairs: Sequence[tuple[Array, Array]], items: Ids) -> tuple[Ids, Ids, Ids]:
    """Return the locators ``[values, 2]`` of items, the addresses of their values in the batch, and
    the item of each.
    """
    places, targets, owners = [], [], []
    for locators, values in pairs:
        each = math.prod(locators.shape[1:-1])
        first = address_of(values) + items * values.strides[0]
        places.append(locators[items].reshape(-1, 2))
        targets.append((first[:, None] + np.arange(each) * nbytes).reshape(-1))
        owners.append(np.repeat(items, each))
    return np.concatenate(places), np.concatenate(targets), np.concatenate(owners)


FLOOR, HEAD = 0, 1
"""Words: the first position that may be read; the position of the next value."""

_AT_ONCE = 1 << 20  # bytes of values, compressed, that are written before the rows that show them
_GIVE_BACK = 1 << 20  # bytes below the floor
_SLACK = 32
"""The part of the ring in which retired steps stay readable, as in storage.py, NOTE [spare rows]"""


class Packed(NamedTuple):
    """Compressed steps that are not in the ring yet.

    Attributes
    ----------
    fields : int64 array [fields, 5]
        The steps' table of fields, with locators in place of values.
    locators : int64 array [steps, values, 2]
        What this table points to.
    starts : list of int
        Where each value begins in the ring's scratch memory.
    end : int
        The position after the last value.
    stop : int
        The step after the last one.
    """

    fields: Ids
    locators: Ids
    starts: list[int]
    end: int
    stop: int


class CompressedRing:
    """Compresses the values of steps, and finds room for them. Under the table's lock.

    Parameters
    ----------
    storage : Storage
        Its ring goes on above all positions that were ever used.

    Attributes
    ----------
    raw_bytes, put_bytes : int
        Of all values since the ring was made: before, and after they were compressed.
    """

    def __init__(self, storage: Storage) -> None:
        from async_loader.replay.kernels import writing  # late: see compiled.py

        self._k, self._codec = writing, Lz4()
        layout = storage.layout
        offset, self.size = layout.ring
        self._ring, self._rows = storage.base + offset, layout.rows
        self._storage = storage
        self._words = storage.ring_words
        self._punches = storage.punches
        coded = [i for i, field in enumerate(layout.schema.fields) if field.codec is not None]
        self._fields = coded
        self._coded = {storage.base + layout.places[i][0] for i in coded}
        per_step = sum(Lz4.most(layout.schema.fields[i].nbytes) for i in coded)
        self._at_once = min(_AT_ONCE, self.size // 8)
        self._scratch: Bytes = np.empty(self._at_once + 2 * per_step, np.uint8)
        self._view = self._scratch.data
        self.raw_bytes = self.put_bytes = 0
        self.head = int(self._words[HEAD])
        if not storage.resumed:
            self.head = -(-self.head // self.size) * self.size
        self._begins = np.full(layout.rows, self.head)  # of the first value of each row
        self.tail = 0  # no older step is readable by its values
        self._given_back = self.floor if storage.resumed else self.head
        if not storage.resumed:
            self._raise(self.head)

    @property
    def floor(self) -> int:
        """The first position that may be read."""
        return int(self._words[FLOOR])

    @property
    def ratio(self) -> float | None:
        """Bytes of all values, over what they were compressed to; ``None`` before the first."""
        return self.raw_bytes / self.put_bytes if self.put_bytes else None

    def held(self, cursor: int, window: int) -> int:
        """Return the bytes of the values of steps that are in the table."""
        oldest = max(self.tail, cursor - window, 0)
        return 0 if oldest >= cursor else self.head - int(self._begins[oldest % self._rows])

    def pack(self, fields: Ids, start: int, stop: int) -> Packed:
        """Compress the records from ``start`` on, up to ``stop`` or as many as fit at once."""
        coded, compress, most = self._coded_in(fields), self._codec.compress, self._codec.most
        locators = np.zeros((stop - start, len(coded), 2), np.int64)
        starts: list[int] = []
        used, head, i = 0, self.head, start
        while i < stop and used <= self._at_once:
            for which, (_, address, stride, nbytes) in enumerate(coded):
                room = self._view[used : used + most(nbytes)]
                count = compress(address + i * stride, nbytes, room)
                if head % self.size + count > self.size:
                    head += self.size - head % self.size
                locators[i - start, which] = head, count
                starts.append(used)
                taken = -(-count // 8) * 8
                used, head = used + taken, head + taken
                self.raw_bytes += nbytes
                self.put_bytes += count
            i += 1
        made, stride = fields.copy(), locators.strides[0]
        for which, (f, *_) in enumerate(coded):
            # kernels count from record 0
            address = locators.ctypes.data + which * LOCATOR_BYTES - start * stride
            made[f, [ARRAY_ADDRESS, ARRAY_STRIDE, NBYTES]] = address, stride, LOCATOR_BYTES
        return Packed(made, locators[: i - start], starts, head, i)

    def _coded_in(self, fields: Ids) -> list[tuple[int, int, int, int]]:
        """Return the fields with a codec: which, the address and the stride of the steps' values,
        and the bytes of one.
        """
        found = []
        for f, place in enumerate(fields[:, ROW_ADDRESS].tolist()):
            # a field without elements may begin where one with a codec does
            if place in self._coded and fields[f, NBYTES]:
                address, stride, nbytes = fields[f, [ARRAY_ADDRESS, ARRAY_STRIDE, NBYTES]].tolist()
                found.append((f, address, stride, nbytes))
        return found

    def expired(self, packed: Packed, cursor: int, window: int) -> tuple[int, int]:
        """Return the steps that have to leave the table for these: the first id, and the one after
        the last.
        """
        wanted = packed.end - self.size + self.size // _SLACK
        first = stop = max(self.tail, cursor - window, 0)
        while stop < cursor and self._begins[stop % self._rows] < wanted:
            stop += 1
        self.tail = stop
        return first, stop

    def put(self, packed: Packed, cursor: int) -> None:
        """Put the values into the ring. The rows that show them are written next, from id
        ``cursor`` on; then comes `commit`.
        """
        end = packed.end
        oldest = cursor - self._rows  # its row is about to be overwritten
        natural = int(self._begins[oldest % self._rows]) if oldest >= 0 else 0
        floor = max(self.floor, end - self.size, natural)
        if floor > self.floor:
            self._raise(floor)
        self._give_back(floor, end)
        positions, counts = packed.locators.reshape(-1, 2).T
        self.put_back(self._scratch, positions, np.array(packed.starts, np.int64), counts)

    def commit(self, packed: Packed, ids: Ids) -> None:
        """Note where the values are that were put last, in the rows of these ids."""
        there = ids >= 0
        begins = packed.locators[there, 0, 0] if packed.starts else packed.end
        self.note(ids[there] % self._rows, begins, packed.end)

    def derive(self, ids: Ids) -> None:
        """Find out where the values of rows are, which hold these ids."""
        there = ids >= 0
        for i in reversed(self._fields):
            begins, counts = self._storage.cell(i)[there].T
            self._begins[there] = np.maximum(begins, self.floor)  # some were gone when loaded
            self.head = max(self.head, -(-int((begins + counts).max(initial=0)) // 8) * 8)
        self._words[HEAD] = self.head

    def resume(self, ids: Ids) -> None:
        """Go on with what another process has left in the rows of these ids: steps whose values
        lie below the floor leave.
        """
        self.head = max(self.head, self.floor)
        first = self._storage.cell(self._fields[0])[:, 0]
        self.tail = 1 + int(ids[(ids >= 0) & (first < self.floor)].max(initial=-1))

    # -- for checkpoints ---------------------------------------------------------------------------

    def copy(self, start: int, stop: int) -> Bytes:
        """Return a copy of the bytes from one position to another."""
        block = self._storage.segment.bytes(self._storage.layout.ring[0], self.size)
        first, count = start % self.size, stop - start
        rest = max(0, first + count - self.size)
        return np.concatenate((block[first : first + count], block[:rest]))

    def restore(self, floor: int, head: int, blocks: Iterable[tuple[int, Bytes]], ids: Ids) -> None:
        """Put the bytes of a saved ring of this size to their places, and point rows to them.

        Positions are shifted by whole rounds of the ring, above all that were ever used.

        Parameters
        ----------
        floor, head : int
            Of the saved ring.
        blocks : iterable of (int, uint8 array)
            Its bytes, with the position of the first. Of a place the last counts.
        ids : int64 array [rows]
            Of the rows, -1 for those that hold nothing. Rows that are being read have none yet.
        """
        room = self._storage.segment.bytes(self._storage.layout.ring[0], self.size)
        shift = (max(head, self.head) // self.size + 1 - floor // self.size) * self.size
        self._raise(floor + shift)
        for start, data in blocks:
            first = start % self.size
            rest = self.size - first
            room[first : first + len(data)], room[: max(0, len(data) - rest)] = (
                data[:rest],
                data[rest:],
            )
        for i in self._fields:
            self._storage.cell(i)[ids >= 0, 0] += shift
        self.head = self._words[HEAD] = head + shift
        self._begins[:] = self._given_back = floor + shift
        self.tail = 0  # a load may bring earlier ids back

    def put_back(self, source: Bytes, positions: Ids, starts: Ids, counts: Ids) -> None:
        """Copy values, which begin at ``starts`` in ``source``, to positions in the ring."""
        self._k.put_values(
            self._ring,
            self.size,
            np.ascontiguousarray(positions),
            source.ctypes.data,
            np.ascontiguousarray(starts),
            np.ascontiguousarray(counts),
        )

    def note(self, rows: Ids, begins: Ids | int, head: int) -> None:
        """Note where the values of rows lie, and where the next one goes."""
        self._begins[rows] = begins
        self.head = self._words[HEAD] = head

    def _raise(self, floor: int) -> None:
        self._k.raise_floor(self._words.ctypes.data + 8 * FLOOR, floor)

    def _give_back(self, floor: int, end: int) -> None:
        """Give pages below the floor back, unless the ring is about to need them."""
        first = max(self._given_back, end - self.size)
        if not self._punches or floor - first < _GIVE_BACK:
            return
        self._given_back = floor
        begin, stop = first % self.size, floor % self.size
        for low, high in ((begin, stop),) if begin < stop else ((begin, self.size), (0, stop)):
            low, high = (low + mmap.PAGESIZE - 1) // mmap.PAGESIZE, high // mmap.PAGESIZE
            if high > low:
                address = self._ring + low * mmap.PAGESIZE
                advise(address, (high - low) * mmap.PAGESIZE, mmap.MADV_REMOVE)
