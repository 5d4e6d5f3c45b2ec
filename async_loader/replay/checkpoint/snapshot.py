"""Copies a table's rows and everything else while other threads write.

# NOTE [pre-copy]
As a running machine is moved (Clark et al., "Live migration of virtual machines", NSDI 2005): what
has changed is copied without the lock, then what has changed meanwhile, and so on; the last and
small rest is copied under the lock, with everything that is not in rows, and is the moment that the
save shows. Every change is made under the lock and marks its row there, and marks are taken off
under the lock. So a row that is torn while it is copied is marked after its mark was taken off, and
comes again in a later round; where a save holds a row more than once, the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.array_types import Array, Bytes, Ids
from async_loader.replay.base.row_format import ROW_CHANGED
from async_loader.replay.checkpoint.compressed import RingCopier
from async_loader.replay.checkpoint.settings import limiter_json, view_json
from async_loader.replay.samplers.random_numbers import seeds_json
from async_loader.replay.table.storage import Storage, StorageLayout
from async_loader.replay.table.table import Table
from async_loader.replay.table.table_state import TableState

# Each chunk asks for the GIL a few times, which takes up to 5 ms beside threads that want it: with
# less, saves of 200 MB beside four writers at full speed fall behind.
CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class BlockData:
    """The data of one block of the file. See manifest.Block.

    Attributes
    ----------
    kind : str
    about : dict
    data : uint8 array
    """

    kind: str
    about: dict[str, Any]
    data: Bytes


def row_parts(storage: Storage) -> list[Bytes]:
    """Return the bytes of rows: the packed ones, then each column, ``[rows, bytes of one]``."""
    layout = storage.layout
    block = storage.segment.bytes(0, layout.nbytes)
    places = [
        (0, layout.stride),
        *(place for place in layout.places if place[0] >= layout.rows * layout.stride),
    ]
    return [np.ndarray((layout.rows, width), np.uint8, block, offset) for offset, width in places]


def columns(table: Table) -> dict[str, Array]:
    """Return what the table alone knows, with one entry per row."""
    return {
        name: array
        for name, array in (("given", table.given), ("times", table.times))
        if len(array)
    }


def index_type(layout: StorageLayout) -> np.dtype[Any]:
    """Return the dtype of saved row numbers."""
    return np.dtype(np.uint32 if layout.rows <= 1 << 32 else np.int64)


class RowCopier:
    """Copies rows, a chunk at a time.

    Parameters
    ----------
    parts : list of uint8 arrays [rows, bytes]
    index : dtype
        See `index_type`.
    """

    def __init__(self, parts: list[Bytes], index: np.dtype[Any]) -> None:
        self._parts, self._index = parts, index
        self.width = sum(part.shape[1] for part in parts) + index.itemsize
        self._each = max(1, CHUNK_BYTES // self.width)
        self._buffer: Bytes | None = None
        self._room = np.empty(0, np.uint8)

    def make_room(self, nbytes: int) -> None:
        """Allocate memory for kept pieces: under the lock that would take longer than copying."""
        self._room = np.empty(nbytes, np.uint8)
        self._room.fill(1)

    def _new(self, nbytes: int) -> Bytes:
        if nbytes > len(self._room):
            return np.empty(nbytes, np.uint8)
        taken, self._room = self._room[:nbytes], self._room[nbytes:]
        return taken

    def pieces(self, rows: Ids | range, *, keep: bool = False) -> Iterator[BlockData]:
        """Yield copies of these rows. Without ``keep`` each is valid until the next."""
        if self._buffer is None and not keep and len(rows):
            self._buffer = np.empty(self._each * self.width, np.uint8)
        for first in range(0, len(rows), self._each):
            some = rows[first : first + self._each]
            buffer = (
                self._new(len(some) * self.width) if keep or self._buffer is None else self._buffer
            )
            start = some.start if isinstance(some, range) else None
            about = {"count": len(some), "start": start}
            yield BlockData("rows", about, self._fill(buffer, some))

    def _fill(self, buffer: Bytes, rows: Ids | range) -> Bytes:
        end = 0
        if not isinstance(rows, range):
            end = len(rows) * self._index.itemsize
            buffer[:end].view(self._index)[:] = rows
        for part in self._parts:
            start, end = end, end + len(rows) * part.shape[1]
            into = buffer[start:end].reshape(len(rows), part.shape[1])
            if isinstance(rows, range):
                np.copyto(into, part[rows.start : rows.stop])
            else:
                np.take(part, rows, axis=0, out=into, mode="clip")  # "raise" would copy once more
        return buffer[:end]


class SnapshotCursor:
    """The marks of one save: removed from the table, and put back if the save fails.

    Parameters
    ----------
    table_state : TableState
    ring_start : int
        The position from which on the save before lacks compressed values.
    """

    def __init__(self, table_state: TableState, ring_start: int) -> None:
        self._table_state, self._table = table_state, table_state.table
        ring = self._table.ring
        self._ring = None if ring is None else RingCopier(ring, ring_start, CHUNK_BYTES)
        self._taken = np.zeros(len(self._table.dirty), np.uint8)
        storage = self._table.storage
        self._rows = RowCopier(row_parts(storage), index_type(storage.layout))

    def whole(self) -> Iterator[BlockData]:
        """Yield all rows that were ever used."""
        with self._table_state.lock:
            self._take()
            top = self._table.items.top
        yield from self._rows.pieces(range(top))
        yield from self._values()

    def changed(self) -> Iterator[BlockData]:
        """Yield the rows that have changed since they were copied last."""
        with self._table_state.lock:
            rows = self._take()
        yield from self._rows.pieces(rows)
        yield from self._values()

    def rest(self, *, keep: bool) -> Iterator[BlockData]:
        """As `changed`, under the lock."""
        yield from self._rows.pieces(self._take(), keep=keep)
        yield from self._values()

    def _values(self) -> Iterator[BlockData]:
        if self._ring is not None:
            for start, data in self._ring.pieces():
                yield BlockData("ring", {"start": start}, data)

    def left(self) -> int:
        """Estimate the bytes that `rest` would copy, while other threads
        write. Without the lock.
        """
        marks = self._table.dirty.copy()  # numpy fails if the array changes while it counts
        left: int = self._rows.width * int(np.count_nonzero(marks & ROW_CHANGED))
        return left if self._ring is None else left + self._ring.left

    def make_room(self, nbytes: int) -> None:
        """Allocate memory for what `rest` keeps."""
        self._rows.make_room(nbytes)

    def put_back(self) -> None:
        """Mark what was copied as changed again, since the save has failed."""
        with self._table_state.lock:
            self._table.dirty |= self._taken

    def _take(self) -> Ids:
        """Return the changed rows, which are none from here on."""
        dirty = self._table.dirty
        # eight at a time, since it is called under the lock: 30 us for a million
        whole = len(dirty) // 8 * 8
        words = np.flatnonzero(dirty[:whole].view(np.uint64))
        rows = (words[:, None] * 8 + np.arange(8)).reshape(-1)
        rows = np.concatenate((rows, np.arange(whole, len(dirty))))
        changed: Ids = rows[dirty[rows] & ROW_CHANGED != 0]
        dirty[rows] = 0
        self._taken[changed] = ROW_CHANGED
        return changed


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """Everything outside of the rows, at one moment.

    Attributes
    ----------
    settings : dict
        Those that may change while the table is used.
    table : dict | None
        Counters, and ``streams``: their names, each with its last step.
    samplers : dict
        States by role, as in manifest.Manifest.
    """

    settings: dict[str, Any]
    table: dict[str, Any] | None
    samplers: dict[str, Any]

    @classmethod
    def of(cls, table_state: TableState, table: Table | None) -> TableMetadata:
        """Copy everything outside of the rows. Under the lock."""
        settings = {
            "limiter": limiter_json(table_state.limiter),
            "seeds": seeds_json(table_state.seeds),
        }
        if table is None:
            return cls(settings, None, {})
        counters = table.state()
        states: dict[str, Any] = {
            "sampler": table_state.sampler.state(),
            "sequences": [
                [view_json(view), one.state()]
                for view, one in table_state.sequence_samplers.items()
            ],
        }
        if table.free is not None:
            states["remover"] = table_state.remover.state()
        for role, state in states.items():
            if not _is_json(state):
                raise ConfigError(
                    f"the state of the {role} is no JSON: return numbers, strings, lists and dicts"
                )
        return cls(settings, counters, states)


def _is_json(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, bool | int | float | str)
