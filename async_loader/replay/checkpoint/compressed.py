"""The ring of compressed values in a checkpoint.

A save holds the bytes of the ring from the last save's end on, by their positions; the values of
steps that have left the table meanwhile may be among them, and torn. A load puts the values that
rows point to one behind the other into the table's ring, whatever its size, and changes the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from async_loader.errors import CorruptCheckpoint
from async_loader.replay.array_types import Array, Bytes, Ids
from async_loader.replay.checkpoint.reading import Checkpoint
from async_loader.replay.table.compressed_ring import CompressedRing
from async_loader.replay.table.storage import Storage


class RingCopier:
    """Copies what was put into a ring, a chunk at a time.

    Parameters
    ----------
    ring : CompressedRing
    start : int
        The first position to be copied.
    chunk_bytes : int
    """

    def __init__(self, ring: CompressedRing, start: int, chunk_bytes: int) -> None:
        self._ring, self._next, self._chunk = ring, start, chunk_bytes

    @property
    def left(self) -> int:
        """Bytes that are still to be copied."""
        return self._ring.head - max(self._next, self._ring.floor)

    def pieces(self) -> Iterator[tuple[int, Bytes]]:
        """Yield positions, and copies of the bytes from there on."""
        stop = self._ring.head
        while (start := max(self._next, self._ring.floor)) < stop:
            self._next = min(stop, start + self._chunk)
            yield start, self._ring.copy(start, self._next)
        self._next = stop


def put_back(
    storage: Storage, ring: CompressedRing, checkpoint: Checkpoint, saved: list[int], ids: Ids
) -> int:
    """Put the values of loaded rows into the ring, and point the rows to them.

    Parameters
    ----------
    saved : [int, int]
        The floor and the head of the saved ring.
    ids : int64 array [rows]
        Of the rows, -1 for those that hold nothing. Rows that are being read have none yet.

    Returns
    -------
    int
        The first id whose values, and those of all later ones, have room; 0 if all have.
    """
    floor, head = saved
    found = np.zeros(head - floor, np.uint8)
    for start, data in checkpoint.ring():
        if start < 0 or start + len(data) > head:
            raise CorruptCheckpoint(
                f"{checkpoint.root}: compressed values at {start:,}, and the ring ends at {head:,}"
            )
        low = max(0, floor - start)
        found[max(0, start - floor) : max(0, start - floor) + max(0, len(data) - low)] = data[low:]
    rows = np.argsort(ids, kind="stable")
    rows = rows[ids[rows] >= 0]
    cells = [storage.cell(i) for i, one in enumerate(storage.layout.schema.fields) if one.codec]
    limits = [one.nbytes for one in storage.layout.schema.fields if one.codec]
    places = np.stack([cell[rows] for cell in cells], axis=1)  # [rows, fields, 2]
    counts = places[:, :, 1]
    there = (places[:, :, 0] >= floor) & (counts > 0) & (counts <= limits)
    there &= places[:, :, 0] + counts <= head
    room = np.where(there, (counts + 7) // 8 * 8, 0)
    after = room.sum(axis=1)[::-1].cumsum()[::-1]  # of a row and all later ones
    fits = after <= ring.most
    there &= fits[:, None]
    room = np.where(there, room, 0)
    base = ring.begin_above(head)
    positions = np.where(there, base + (room.cumsum() - room.reshape(-1)).reshape(room.shape), -1)
    ring.put_back(found, positions[there], places[:, :, 0][there] - floor, counts[there])
    first = np.where(there, positions, base + int(room.sum())).min(axis=1)
    ring.note(rows, np.where(there.any(axis=1), first, base), base + int(room.sum()))
    _point(cells, rows, positions, np.where(there, counts, 1))
    return 0 if fits.all() else int(ids[rows[int(np.argmax(fits))]])


def _point(cells: list[Array], rows: Ids, positions: Ids, counts: Ids) -> None:
    """Write locators; a position below the floor says that a value is gone."""
    for at, cell in enumerate(cells):
        cell[rows, 0] = positions[:, at]
        cell[rows, 1] = counts[:, at]
