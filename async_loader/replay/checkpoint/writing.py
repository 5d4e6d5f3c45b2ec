"""Saves a table into a temporary folder, which is renamed when all of it is on disk.

Never waits under the table's lock.

# NOTE [what a kill leaves]
Until the rename there is a temporary folder more, which the next save removes; from the rename on
the new save is there, whole, as its files are on the disk by then. What it replaces is renamed to a
temporary folder before it is removed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from async_loader.errors import AsyncLoaderError, Timeout, Unsupported
from async_loader.lifecycle import LONGEST_S, seconds_or_none
from async_loader.replay.checkpoint import folder, manifest
from async_loader.replay.checkpoint.folder import Descriptor, Disk
from async_loader.replay.checkpoint.manifest import Block, Manifest
from async_loader.replay.checkpoint.settings import lasting_json
from async_loader.replay.checkpoint.snapshot import (
    BlockData,
    SnapshotCursor,
    TableMetadata,
    columns,
)
from async_loader.replay.table.table_state import TableState
from async_loader.validation import path_of

_SMALL_BYTES = 1 << 20  # copied within a millisecond, also into new memory
_KEEP_BYTES = 64 << 20
_ROUNDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveReport:
    """The result of a save.

    Attributes
    ----------
    kind : "full" | "incremental"
    number : int
        Of the save; for ``load(path, number=...)``.
    nbytes : int
        Written.
    duration_s : float
        All of it.
    pause_s : float
        The longest time for which it kept everyone else from the table.
    rows : int
        Rows written; those that changed while it ran count more than once.
    """

    kind: str
    number: int
    nbytes: int
    duration_s: float
    pause_s: float
    rows: int


class DataFile:
    """A file that is written sequentially.

    Parameters
    ----------
    disk : Disk
    path : Path
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk, self._path = disk, path
        self.blocks: list[Block] = []
        self.nbytes = self.rows = 0
        self._file = Descriptor(lambda: disk.create(path), disk.close)

    def put(self, piece: BlockData) -> None:
        """Write a block."""
        self.append(piece.data.data)
        self.blocks.append(
            Block(piece.kind, piece.data.nbytes, zlib.crc32(piece.data.data), piece.about)
        )
        self.rows += piece.about.get("count", 0) if piece.kind == "rows" else 0

    def append(self, data: memoryview) -> None:
        """Write bytes."""
        with _named(self._path):
            while len(data):
                written = self._disk.write(self._file.fd, data)
                self.nbytes += written
                data = data[written:]

    def finish(self) -> None:
        """Make all of the file durable."""
        with _named(self._path):
            self._disk.sync(self._file.fd)
        self.close()

    def close(self) -> None:
        """Close the file. May be called again."""
        self._file.close()


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add the file's path to an OSError."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@dataclass(frozen=True, slots=True)
class PreviousSave:
    """The save since which the table's marks count.

    Attributes
    ----------
    root : Path
    manifest : Manifest
    """

    root: Path
    manifest: Manifest


class Saver:
    """Saves a table, one save at a time. Any thread.

    Parameters
    ----------
    table_state : TableState

    Attributes
    ----------
    disk : Disk
    last : PreviousSave | None
    beside : tuple of str and callable, optional
        A file that goes into each save, and what makes its bytes, from the number of rows that the
        table of the save has had. Called on the thread that saves, without a lock.
    """

    def __init__(self, table_state: TableState) -> None:
        self._table_state = table_state
        self.disk = Disk()
        self.last: PreviousSave | None = None
        self.beside: tuple[str, Callable[[int], bytes]] | None = None
        self._one, self._turn = threading.Lock(), threading.Condition()

    def alone(self, path: object, timeout_s: float | None) -> threading.Lock:
        """Return the lock of the one save or load that may run; with a ``timeout_s``, once it is
        free.

        Hold it by ``with`` during the save or load, and call `ended` after it. It is a lock and not
        a context manager in Python, which Ctrl-C could leave taken.

        Raises
        ------
        Timeout
            While another one lasts.
        """
        if self._table_state.foreign:
            raise Unsupported(
                "only the process that made a replay buffer saves and loads it: a fork of it is "
                "out of step"
            )
        limit = seconds_or_none("timeout_s", timeout_s)
        if limit is not None:
            with self._turn:
                if not self._turn.wait_for(lambda: not self._one.locked(), min(limit, LONGEST_S)):
                    raise Timeout(
                        f"{path}: {limit:g} s have passed, and another save or load of this table "
                        "is under way"
                    )
        return self._one

    def ended(self) -> None:
        """Wake the calls that wait in `alone`."""
        with self._turn:
            self._turn.notify_all()

    def save(self, path: str | os.PathLike[str], timeout_s: float | None = None) -> SaveReport:
        """See `ReplayBuffer.save`."""
        root = Path(path_of("path", path)).absolute()
        try:
            with self.alone(path, timeout_s):
                return self._saved(root)
        finally:
            self.ended()

    def _saved(self, root: Path) -> SaveReport:
        self._make(root)
        there = folder.saves(root)
        chain = self._chain(root, there)
        self._clean(folder.leftovers(root))
        save = _Save(
            self._table_state,
            self.disk,
            root,
            there[-1] + 1 if there else 1,
            self.last if chain else None,
            chain,
            self.beside,
        )
        report, self.last = save.run()
        rests_on = {number for number, _ in self.last.manifest.chain}
        self._drop(root, [number for number in there if number not in rests_on])
        return report

    def _make(self, root: Path) -> None:
        for missing in [one for one in (*reversed(root.parents), root) if not one.is_dir()]:
            self.disk.make_folder(missing)
            self.disk.sync_folder(missing.parent)

    def _chain(self, root: Path, there: list[int]) -> list[Manifest]:
        """Return the saves that the next one can build on; empty if it has to be a full one."""
        last = self.last
        if last is None or last.root != root or not there or last.manifest.table is None:
            return []
        try:
            chain = folder.chain_of(root, there[-1])
        except (AsyncLoaderError, OSError):
            return []
        increments = sum(one.nbytes for one in chain[1:])
        return (
            chain
            if chain[-1].token == last.manifest.token and increments <= chain[0].nbytes // 2
            else []
        )

    def _clean(self, paths: Iterable[Path]) -> None:
        """Remove unused folders. What cannot be removed is left to the next save."""
        for path in paths:
            _remove(self.disk, path)

    def _drop(self, root: Path, numbers: list[int]) -> None:
        dropped = []
        for number in numbers:
            gone = root / f"{folder.TEMPORARY}{folder.name_of(number)}-{secrets.token_hex(4)}"
            with contextlib.suppress(OSError):
                self.disk.rename(root / folder.name_of(number), gone)
                dropped.append(gone)
        self._clean(dropped)


def _remove(disk: Disk, path: Path) -> None:
    """Remove a folder of files, as far as that can be done."""
    with contextlib.suppress(OSError):
        for file in path.iterdir():
            disk.remove_file(file)
        disk.remove_folder(path)


class _Save:
    """One save."""

    def __init__(
        self,
        table_state: TableState,
        disk: Disk,
        root: Path,
        number: int,
        last: PreviousSave | None,
        chain: list[Manifest],
        beside: tuple[str, Callable[[int], bytes]] | None = None,
    ) -> None:
        self._beside = beside
        self._table_state, self._disk, self._root, self._number = table_state, disk, root, number
        self._last, self._chain = last, chain
        self._pause_s = 0.0

    def run(self) -> tuple[SaveReport, PreviousSave]:
        started = time.monotonic()
        token = secrets.token_hex(8)
        final = self._root / folder.name_of(self._number)
        temporary = self._root / f"{folder.TEMPORARY}{final.name}-{token}"
        taking = (
            SnapshotCursor(self._table_state, self._ring_start())
            if self._table_state.ready
            else None
        )
        data: DataFile | None = None
        try:
            self._check()
            self._disk.make_folder(temporary)
            data = DataFile(self._disk, temporary / folder.DATA)
            private = self._write(data, taking)
            manifest = self._manifest(data, private, token)
            if self._beside is not None and private.table is not None:
                name, made = self._beside
                self._file(temporary / name, made(private.table["cursor"]))
            text = self._file(temporary / folder.MANIFEST, manifest.text().encode())
            self._disk.sync_folder(temporary)
            self._disk.rename(temporary, final)
            self._disk.sync_folder(self._root)
        except BaseException:
            if taking is not None:
                taking.put_back()
            if data is not None:
                with contextlib.suppress(OSError):
                    data.close()
            _remove(self._disk, temporary)
            raise
        nbytes = data.nbytes + text.nbytes
        report = SaveReport(
            kind=manifest.kind,
            number=self._number,
            nbytes=nbytes,
            duration_s=time.monotonic() - started,
            pause_s=self._pause_s,
            rows=data.rows,
        )
        return report, PreviousSave(self._root, manifest)

    def _ring_start(self) -> int:
        """Return the position up to which the save before has the compressed values."""
        before = None if self._last is None else self._last.manifest.table
        return 0 if before is None or "ring" not in before else int(before["ring"][1])

    def _file(self, path: Path, content: bytes) -> DataFile:
        """Write a small file; return it, closed."""
        file = DataFile(self._disk, path)
        try:
            file.append(memoryview(content))
            file.finish()
        finally:
            file.close()
        return file

    def _check(self) -> None:
        """Raise the errors that are known before any file is written."""
        self._lasting = lasting_json(self._table_state)
        if self._table_state.ready:
            with self._table_state.lock:
                self._table_state.table.forget_ended()
                names = list(self._table_state.table.streams)
            manifest.names_json(names)

    def _write(self, data: DataFile, taking: SnapshotCursor | None) -> TableMetadata:
        """Write the data file. See snapshot.py, NOTE [pre-copy]."""
        if taking is not None:
            if self._last is None:
                self._put(data, taking.whole())
            left, before = taking.left(), 1 << 62
            for _ in range(_ROUNDS):
                if left <= _SMALL_BYTES or left > before * 0.7:
                    break
                self._put(data, taking.changed())
                left, before = taking.left(), left
        kept, private = self._cut(data, taking)
        self._put(data, kept)
        data.finish()
        return private

    def _put(self, data: DataFile, pieces: Iterable[BlockData]) -> None:
        for piece in pieces:
            data.put(piece)

    def _cut(
        self, data: DataFile, taking: SnapshotCursor | None
    ) -> tuple[list[BlockData], TableMetadata]:
        """Copy the rest of the rows and everything else, at the moment that the save shows."""
        kept: list[BlockData] = []
        table = None if taking is None else self._table_state.table
        left = 0 if taking is None else taking.left()
        keep = left <= _KEEP_BYTES
        if taking is not None and keep:
            taking.make_room(left + left // 4 + _SMALL_BYTES)
        there = {} if table is None else columns(self._table_state)
        copies = {name: np.ones_like(array) for name, array in there.items()}
        with self._table_state.lock:
            since = time.monotonic()
            self._table_state.catch_up()
            if taking is not None:
                for piece in taking.rest(keep=keep):
                    if keep:
                        kept.append(piece)
                    else:
                        # Writers outrun the disk: they have to wait once, since all of it may not
                        # fit the memory.
                        data.put(piece)
            if table is not None:
                for name, array in columns(self._table_state).items():
                    copy = copies.setdefault(name, np.empty_like(array))
                    np.copyto(copy, array)
                    kept.append(BlockData("column", {"name": name}, copy.view(np.uint8)))
            private = TableMetadata.of(self._table_state, table)
            self._pause_s = time.monotonic() - since
        return kept, private

    def _manifest(self, data: DataFile, private: TableMetadata, token: str) -> Manifest:
        table = private.table
        if table is not None:
            storage = self._table_state.table.storage
            schema = manifest.schema_json(storage.layout.schema)
            table = {
                **table,
                "schema": schema,
                "rows": storage.layout.rows,
                "streams": [
                    [manifest.names_json([name])[0], last] for name, last in table["streams"]
                ],
            }
        kind = "incremental" if self._chain else "full"
        chain = [[one.number, one.crc32] for one in self._chain]
        settings = {**self._lasting, **private.settings}
        return Manifest(
            self._number,
            kind,
            token,
            chain,
            data.nbytes,
            settings,
            table,
            private.samplers,
            data.blocks,
        )
