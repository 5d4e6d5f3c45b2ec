"""Copies a table into a temporary folder, while other threads write; it is renamed when all of it
is on disk.

::

    path/save-00000001/manifest.json, data.bin   the newest save, and the one before; numbers rise
    path/tmp-...                                 what a save that was killed has left

Never waits under the table's lock.

# NOTE [what a kill leaves]
Until the rename there is a temporary folder more, which the next save removes; from the rename on
the new save is there, whole, as its files are on the disk by then. Older ones but the last are
renamed to temporary folders before they are removed.

# NOTE [pre-copy]
As a running machine is moved (Clark et al., "Live migration of virtual machines", NSDI 2005): what
has changed is copied without the lock, then what has changed meanwhile, and so on; the last and
small rest is copied under the lock, with everything that is not in rows, and is the moment that the
save shows. Every change is made under the lock and marks its row there, and marks are taken off
under the lock. So a row that is torn while it is copied is marked after its mark was taken off, and
comes again in a later round; where a save holds a row more than once, the last one counts.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from async_loader.errors import Timeout, Unsupported
from async_loader.lifecycle import LONGEST_S, seconds_or_none
from async_loader.replay.array_types import Array, Bytes, Ids
from async_loader.replay.checkpoint.manifest import (
    DATA,
    MANIFEST,
    Block,
    Manifest,
    folder_name,
    limiter_json,
    saves,
    schema_json,
    settings_json,
)
from async_loader.replay.samplers.binding import seeds_json
from async_loader.replay.stream_names import lasting_json
from async_loader.replay.table.table import Table
from async_loader.replay.table.table_state import TableState
from async_loader.replay.views import Sequences
from async_loader.validation import path_of

_KEEP_BYTES = 64 << 20
_ROUNDS = 4
# Each chunk asks for the GIL a few times, which takes up to 5 ms beside threads that want it: with
# less, saves of 200 MB beside four writers at full speed fall behind.
_CHUNK_BYTES = 16 << 20


Piece = tuple[str, dict[str, Any], Bytes]
"""The kind of a block, what the manifest says about it, and its bytes. See manifest.Block."""


def assigned_in(view: Sequences) -> str:
    """The name of the column of priorities that a view's sampler gave."""
    return f"assigned {settings_json(view)}"


def columns(table_state: TableState) -> dict[str, Array]:
    """Return what the table alone knows, with one entry per row."""
    table = table_state.table
    found = {"given": table.given, "times": table.times, "assigned": table.assigned}
    for view, one in table_state.sequence_samplers.items():
        found[assigned_in(view)] = one.assigned
    return {name: array for name, array in found.items() if len(array)}


class Snapshot:
    """Copies what changes in a table, for one save."""

    def __init__(self, table: Table) -> None:
        self._table, self._ring_next = table, 0
        self._parts = table.storage.row_parts()
        self.width = 8 + sum(part.shape[1] for part in self._parts)
        table.dirty[: table.items.top] = 1

    def changed_rows(self) -> Ids:
        """Return the rows that have changed since they were copied last; at first all."""
        dirty = self._table.dirty
        rows: Ids = np.flatnonzero(dirty.view(np.bool_))
        dirty[:] = 0
        return rows

    def pieces(self, rows: Ids) -> Iterator[Piece]:
        """Yield copies of these rows, and of the compressed values that came since."""
        each = max(1, _CHUNK_BYTES // self.width)
        for first in range(0, len(rows), each):
            some = rows[first : first + each]
            yield ("rows", {"count": len(some)}, self._copied(some))
        ring = self._table.ring
        if ring is None:
            return
        stop = ring.head
        while (begin := max(self._ring_next, ring.floor)) < stop:
            self._ring_next = min(stop, begin + _CHUNK_BYTES)
            yield ("ring", {"start": begin}, ring.copy(begin, self._ring_next))

    def _copied(self, rows: Ids) -> Bytes:
        """Return the rows' numbers, and a copy of their bytes, part after part."""
        count, first, stop = len(rows), rows[0], rows[-1] + 1
        copy, end = np.empty(count * self.width, np.uint8), 8 * count
        copy[:end].view(np.int64)[:] = rows
        for part in self._parts:
            start, end = end, end + count * part.shape[1]
            into = copy[start:end].reshape(count, part.shape[1])
            if stop - first == count:
                np.copyto(into, part[first:stop])
            else:
                np.take(part, rows, axis=0, out=into, mode="clip")  # "raise" would copy once more
        return copy


def settings_of_table(table_state: TableState) -> dict[str, Any]:
    """Return what a table was made with, as JSON. Under the lock."""
    return {
        "capacity": table_state.capacity,
        "max_bytes": table_state.max_bytes,
        "max_times_sampled": table_state.max_times_sampled,
        "sampler": settings_json(table_state.sampler),
        "remover": settings_json(table_state.remover),
        "view": settings_json(table_state.view),
        "limiter": limiter_json(table_state.limiter),
        "seeds": seeds_json(table_state.seeds),
    }


def table_json(table_state: TableState) -> dict[str, Any]:
    """Return the schema, the counters and the streams of a table. Under the lock."""
    table = table_state.table
    layout, state = table.storage.layout, table.state()
    streams = [[lasting_json(name), last] for name, last in state["streams"]]
    return state | {
        "schema": schema_json(layout.schema),
        "rows": layout.rows,
        "streams": streams,
    }


def sampler_states(table_state: TableState) -> dict[str, Any]:
    """Return the states of the samplers, by their roles. Under the lock.

    Raises
    ------
    ConfigError
        For one that is no JSON.
    """
    states: dict[str, Any] = {
        "sampler": table_state.sampler.state(),
        "sequences": [
            [settings_json(view), one.state()]
            for view, one in table_state.sequence_samplers.items()
        ],
    }
    if table_state.table.free is not None:
        states["remover"] = table_state.remover.state()
    return states


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveReport:
    """The result of a save.

    Attributes
    ----------
    number : int
        Of the save; for ``load(path, number=...)``.
    nbytes : int
        Written.
    duration_s : float
        All of it.
    pause_s : float
        The time for which it kept everyone else from the table.
    rows : int
        Rows written; those that changed while it ran count more than once.
    """

    number: int
    nbytes: int
    duration_s: float
    pause_s: float
    rows: int


class Saver:
    """Saves a table, one save at a time. Any thread.

    Parameters
    ----------
    table_state : TableState

    Attributes
    ----------
    beside : dict of str to callable
        Files that go into each save, and what makes their bytes. Called on the thread that saves,
        under the table's lock: it sees what the save has.
    outer : context manager
        Entered before that lock is taken.
    """

    def __init__(self, table_state: TableState) -> None:
        self._table_state = table_state
        self.beside: dict[str, Callable[[], bytes]] = {}
        self.outer: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        self._one = threading.Lock()
        self._pause_s = 0.0

    @contextlib.contextmanager
    def alone(self, path: object, timeout_s: float | None) -> Iterator[None]:
        """Save or load alone.

        Raises Timeout if another save or load is under way, Unsupported in a fork.
        """
        if self._table_state.foreign:
            raise Unsupported(
                "only the process that made a replay buffer saves and loads it: a fork of it is "
                "out of step"
            )
        limit = seconds_or_none("timeout_s", timeout_s)
        if not self._one.acquire(timeout=-1 if limit is None else min(limit, LONGEST_S)):
            raise Timeout(
                f"{path}: {limit:g} s have passed, and another save or load of this table is under "
                "way"
            )
        try:
            yield
        finally:
            self._one.release()

    def save(self, path: str | os.PathLike[str], timeout_s: float | None = None) -> SaveReport:
        """See `ReplayBuffer.save`."""
        root = Path(path_of("path", path)).absolute()
        with self.alone(path, timeout_s):
            return self._save(root)

    def _save(self, root: Path) -> SaveReport:
        started = time.monotonic()
        if not root.is_dir():
            os.makedirs(root)
            sync_folder(root.parent)
        for left in root.glob("tmp-*"):
            shutil.rmtree(left, ignore_errors=True)
        before = saves(root)
        number = before[-1] + 1 if before else 1
        final = root / folder_name(number)
        temporary = root / f"tmp-{final.name}-{secrets.token_hex(4)}"
        try:
            os.mkdir(temporary)
            manifest = self._write(temporary, number)
            text = manifest.text().encode()
            with durable(temporary / MANIFEST) as file:
                file.write(text)
            sync_folder(temporary)
            os.rename(temporary, final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(root)
        for old in before[:-1]:
            gone = root / f"tmp-{folder_name(old)}"
            with contextlib.suppress(OSError):  # what cannot be removed is left to the next save
                os.rename(root / folder_name(old), gone)
                shutil.rmtree(gone)
        return SaveReport(
            number=number,
            nbytes=manifest.nbytes + len(text),
            duration_s=time.monotonic() - started,
            pause_s=self._pause_s,
            rows=sum(block.about["count"] for block in manifest.blocks if block.kind == "rows"),
        )

    def _write(self, folder: Path, number: int) -> Manifest:
        """Write the data file, and return what goes into the manifest. See NOTE [pre-copy]."""
        state, blocks = self._table_state, list[Block]()
        with durable(folder / DATA) as file:

            def put(pieces: Iterable[Piece]) -> None:
                for kind, about, data in pieces:
                    file.write(data.data)
                    blocks.append(Block(kind, data.nbytes, zlib.crc32(data.data), about))

            if not state.ready:
                with state.lock:
                    return Manifest(number, settings_of_table(state), None, {}, blocks)
            with state.lock:
                state.catch_up()
                cursor = Snapshot(state.table)
            for _ in range(_ROUNDS):  # each takes less time, and finds fewer changes
                with state.lock:
                    changed = cursor.changed_rows()
                put(cursor.pieces(changed))
            with self.outer, state.lock:
                since = time.monotonic()
                state.catch_up()
                changed = cursor.changed_rows()
                rest = cursor.pieces(changed)
                if len(changed) * cursor.width > _KEEP_BYTES:
                    # Writers outrun the disk: they have to wait once, since all of it may not fit
                    # the memory.
                    put(rest)
                kept = [
                    *rest,
                    *(
                        ("column", {"name": name}, array.copy().view("u1"))
                        for name, array in columns(state).items()
                    ),
                ]
                settings = settings_of_table(state)
                table, samplers = table_json(state), sampler_states(state)
                beside = {name: make() for name, make in self.beside.items()}
                self._pause_s = time.monotonic() - since
            put(kept)
        for name, content in beside.items():
            with durable(folder / name) as file:
                file.write(content)
        return Manifest(number, settings, table, samplers, blocks)


@contextlib.contextmanager
def durable(path: Path) -> Iterator[BinaryIO]:
    """Open a new file, which is on the disk when the block ends. An OSError names it."""
    try:
        with open(path, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def sync_folder(path: Path) -> None:
    """Make the changes of names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
