"""Checkpoints that a feeder makes by itself: restored at its start, written while it serves.

::

    CHECKPOINT.PATH/TABLE/rows             the count of rows
    CHECKPOINT.PATH/TABLE/newest/save-...  saves, the newest of which is restored

See NOTE [slow work] in dispatch.py.

# NOTE [counts that outlive a kill]
A process that is killed says nothing more. What it wrote to a file stays with the kernel, so the
next process reads how far the killed one was, and names what its checkpoint does not have.
The count is written before rows are acknowledged, so it is never too small: rows whose
acknowledgement was on its way are in it. After a power cut it may be an older one.

Beside it stands how many rows were lost in sum. A process adds what it finds missing as soon as it
begins, before it counts rows of its own: so a loss is not forgotten if the process that found it is
killed before its status is read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import BadZipFile

from async_loader.errors import ConfigError, CorruptCheckpoint, Unsupported
from async_loader.feeder.server.background_jobs import BackgroundJobs
from async_loader.feeder.server.reader_state import RequeuedRows
from async_loader.feeder.server.state import TableEntry
from async_loader.feeder.table_settings import as_file
from async_loader.lifecycle import Deadline
from async_loader.replay.buffer import ReplayBuffer, saver_of, shared_table
from async_loader.replay.checkpoint import SaveReport
from async_loader.replay.table.nonblocking_table import Position
from async_loader.shm.folder_lock import FolderLock
from async_loader.validation import path_of

REMEDY = (
    "start the server with checkpoint: {path: FOLDER} in its configuration, or with --checkpoint "
    "FOLDER"
)


class Folders:
    """The folder of each table.

    Parameters
    ----------
    root : str or path, optional
        Without it, tables are neither saved nor loaded.
    private : bool
        The server is one script's own: its clients may name any folder.
    """

    def __init__(self, root: str | os.PathLike[str] | None, private: bool = False) -> None:
        self.root = None if root is None else Path(root).expanduser().absolute()
        self._private = private

    def of(self, table: str, path: str) -> Path:
        """Return the folder that a client names.

        Raises
        ------
        Unsupported
            There is no folder for checkpoints.
        ConfigError
            The path is empty, or leaves the table's folder, also through a link.
        """
        path = path_of("path", path)
        if self._private:
            return Path(path).absolute()
        if self.root is None:
            raise Unsupported(
                f"this feeder keeps no checkpoints, so table {table!r} is neither saved nor "
                f"loaded: {REMEDY}"
            )
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or "\\" in path:
            raise ConfigError(
                f"path={path[:300]!r} leaves the folder of table {table!r}: name one in it, as in "
                "'before-tuning'"
            )
        home = Path(os.path.realpath(self.root)) / as_file(table)
        if not Path(os.path.realpath(home.joinpath(*parts))).is_relative_to(home):
            raise ConfigError(
                f"path={path[:300]!r} leaves the folder of table {table!r} through a link: name "
                "one in it, or remove the link"
            )
        return self.root.joinpath(as_file(table), *parts)


_log = logging.getLogger("async_loader.feeder")
_OTHER_FOLDER = "name another folder in checkpoint.path, or with --checkpoint"
NEWEST, ROWS, PRODUCERS, UNUSED = "newest", "rows", "producers.json", "unused.npz"
LAST_S = 300.0
"""How long the last saves may take, before a feeder ends without them."""
_FORMAT = struct.Struct("=8sQQ?")
_MAGIC = b"al-rows3"


def positions_in(folder: Path) -> list[Position]:
    """Return the positions of producers in the folder of a save; none if it has no file of them.

    Raises
    ------
    CorruptCheckpoint
    """
    path = folder / PRODUCERS
    try:
        found = json.loads(path.read_bytes()) if path.exists() else []
        return [(bytes.fromhex(key).hex(), int(applied), int(done)) for key, applied, done in found]
    except (ValueError, TypeError) as error:
        raise CorruptCheckpoint(f"{path}: it has no positions: {error}") from None


def unused_in(folder: Path) -> RequeuedRows:
    """Return the rows that learners had and had not used. Raises as `positions_in`."""
    path = folder / UNUSED
    try:
        return RequeuedRows.load(path.read_bytes()) if path.exists() else RequeuedRows()
    except (ValueError, KeyError, BadZipFile) as error:
        raise CorruptCheckpoint(f"{path}: it has no rows: {error}") from None


class RowCount:
    """The count of one table.

    Parameters
    ----------
    path : Path
        Made if it is not there, with its folder.

    Attributes
    ----------
    before, lost : int
        What the last process wrote; rows that were lost in sum, over all processes.
    in_order : bool
        Whether the last process ended with all in its last save.

    Raises
    ------
    ConfigError
        If the file is something else.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._written, self.before, self.lost, self.in_order = -1, 0, 0, False
        try:
            found = os.pread(self._fd, _FORMAT.size + 1, 0)
            if found.strip(b"\0"):
                magic, self.before, self.lost, self.in_order = _FORMAT.unpack(found)
                if magic != _MAGIC:
                    raise struct.error
        except struct.error:
            self.close()
            text = f"{path} is no count of rows: remove it, or name another folder"
            raise ConfigError(text) from None

    def note(self, rows: int) -> None:
        """Write the count, if it has changed. Cheap."""
        if rows != self._written:
            self._write(rows)

    def end(self) -> None:
        """Note that this process ends in order."""
        self._write(self._written, True)

    def _write(self, rows: int, in_order: bool = False) -> None:
        os.pwrite(self._fd, _FORMAT.pack(_MAGIC, rows, self.lost, in_order), 0)
        self._written = rows

    def close(self) -> None:
        """Release the file. May be called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class TableSaves:
    """The saves of one table. Used by the server's thread.

    Parameters
    ----------
    name : str
    buffer : ReplayBuffer
        Filled here from the newest save, if there is one.
    folder : Path
        Of the table.
    every_s : float, optional
        ``None``: only the count is kept.
    clock : callable
        Monotonic seconds.

    Attributes
    ----------
    number : int | None
        Of the newest save.
    lost : int
        Rows that the last process had acknowledged, and that are not restored.
    due : float | None
        When the next save is.

    Raises
    ------
    ConfigError, CorruptCheckpoint, SchemaError
    """

    entry: TableEntry

    def __init__(
        self,
        name: str,
        buffer: ReplayBuffer,
        folder: Path,
        every_s: float | None,
        clock: Callable[[], float],
    ) -> None:
        self.name, self.buffer, self.every_s, self._clock = name, buffer, every_s, clock
        self._root = folder / NEWEST
        self.number: int | None = None
        self._positions: list[Position] = []
        self._unused = RequeuedRows()
        self._restored_rows = 0
        self._count = RowCount(folder / ROWS)
        try:
            self._restore()
            self._count.lost += self.lost
            self.note()
        except BaseException:
            self.close()
            raise
        self.saving = False
        self._report: SaveReport | None = None
        self._saved_at = 0.0
        self.failed: str | None = None
        self.due = None if every_s is None else clock() + every_s

    def _restore(self) -> None:
        self.lost = had = self._count.before
        saves = sorted(self._root.glob("save-*")) if self.every_s is not None else []
        if not saves:
            self.lost = max(0, had - self._steps_had)
            return
        self.number = int(saves[-1].name.removeprefix("save-"))
        if self._goes_on:
            self.lost = max(0, had - self._steps_had)
            return
        self.buffer.load(self._root)
        self._restored_rows = self.buffer.stats().size
        self._positions, self._unused = positions_in(saves[-1]), unused_in(saves[-1])
        self._restored_rows += len(self._unused)
        self.lost = max(0, had - self._steps_had)
        if self.lost:
            _log.warning(
                "table %s: %d rows that were acknowledged after save %d are lost",
                self.name, self.lost, self.number,
            )  # fmt: skip

    @property
    def _goes_on(self) -> bool:
        """Whether the table was kept: it is newer than its saves. One that has had no step was
        made by a process that ended before it loaded them.
        """
        kept = shared_table(self.buffer).kept
        return kept is not None and bool(kept.found) and self._steps_had > 0

    @property
    def _steps_had(self) -> int:
        return shared_table(self.buffer).steps_had

    def _counts(self) -> tuple[int, ...]:
        stats, unused = self.buffer.stats(), self.entry.scheduler.unused_rows()
        return self._steps_had, stats.sampled, stats.deleted, unused

    def begin(self, entry: TableEntry) -> None:
        """Let the loop's entry of the table go on where the save ends."""
        self.entry = entry
        entry.insert_queue.restore(self._positions)
        if self._restored_rows and not self._count.in_order:
            entry.table.note_restored()
            self._unused.mark()
        if not self._goes_on:
            entry.scheduler.forget_rows(self._unused)
        self._saved_counts = self._counts()

    def note(self) -> None:
        """Write the count of rows. In the loop, before they are acknowledged."""
        self._count.note(self._steps_had)

    def changed(self) -> bool:
        """Return whether the table is open, and has changed since its newest save."""
        return not self.entry.table.closed and self._counts() != self._saved_counts

    def save(self, jobs: BackgroundJobs) -> None:
        """Begin a save, if the table has changed and none is under way."""
        if self.saving or not self.changed():
            return
        counts, saver, queue = self._counts(), saver_of(self.buffer), self.entry.insert_queue
        scheduler = self.entry.scheduler

        def work() -> SaveReport:
            saver.beside = {PRODUCERS: lambda: json.dumps(queue.positions()).encode()}
            if self.entry.table.leased:
                saver.beside[UNUSED] = lambda: scheduler.unused().dump()
                saver.outer = scheduler.moving
            try:
                self._root.parent.mkdir(parents=True, exist_ok=True)
                return self.buffer.save(self._root)
            finally:
                saver.beside, saver.outer = {}, contextlib.nullcontext()

        def done(result: Any) -> None:
            self.saving = False
            if isinstance(result, BaseException):
                self.failed = str(result) or type(result).__name__
                _log.error("table %s was not saved: %s", self.name, self.failed)
                return
            self._report, self._saved_at, self.failed = result, self._clock(), None
            self.number, self._saved_counts = result.number, counts

        self.saving = True
        jobs.add(work, done)

    def status(self) -> dict[str, Any]:
        """Return the plain values of `CheckpointStatus`."""
        report = self._report
        return {
            "every_s": self.every_s,
            "number": self.number,
            "age_s": None if report is None else self._clock() - self._saved_at,
            "save_s": None if report is None else report.duration_s,
            "nbytes": None if report is None else report.nbytes,
            "saving": self.saving,
            "failed": self.failed,
            "restored_rows": self._restored_rows,
            "lost_rows": self.lost,
            "lost_rows_in_sum": self._count.lost,
        }

    def close(self) -> None:
        """Release the count. May be called again."""
        self._count.close()

    def end(self) -> None:
        """Note an end in order, if all is saved, and no learner may have had any of it."""
        if not self.changed() and not self.entry.table.has_seen:
            self._count.end()


class PeriodicSaves:
    """Saves all tables, each ``every_s``; and once more at the end. In the server's loop.

    Parameters
    ----------
    tables : sequence of TableSaves
    clock : callable
        Monotonic seconds.
    lock : FolderLock, optional
        Of the folder of all tables; closed with this.
    """

    def __init__(
        self,
        tables: Sequence[TableSaves] = (),
        clock: Callable[[], float] = time.monotonic,
        lock: FolderLock | None = None,
    ) -> None:
        self._tables, self._clock, self._lock = tables, clock, lock
        self._due = [one for one in tables if one.due is not None]
        self._last: Deadline | None = None

    @classmethod
    def of(
        cls,
        buffers: Mapping[str, ReplayBuffer],
        folders: Folders,
        every_s: float | None,
        count: bool = False,
    ) -> PeriodicSaves:
        """Take the folder, restore the tables, and return their saves. Raises as `TableSaves`."""
        made: list[TableSaves] = []
        lock = None if folders.root is None else FolderLock(folders.root, _OTHER_FOLDER)
        try:
            for name, buffer in buffers.items() if count or every_s is not None else ():
                folder = folders.of(name, ".")
                made.append(TableSaves(name, buffer, folder, every_s, time.monotonic))
        except BaseException:
            cls(made, lock=lock).close()
            raise
        return cls(made, lock=lock)

    def begin(self, entries: Mapping[str, TableEntry], jobs: BackgroundJobs) -> None:
        """Take what the loop has."""
        self._jobs = jobs
        for one in self._tables:
            one.begin(entries[one.name])

    def note(self) -> None:
        """Write the counts of rows. Called before rows are acknowledged."""
        for one in self._tables:
            one.note()

    @property
    def saves(self) -> bool:
        """Whether tables are saved at the end."""
        return bool(self._due)

    @property
    def ending(self) -> bool:
        """Whether the last saves were begun."""
        return self._last is not None

    def left_s(self) -> float | None:
        """Return the seconds until `step` has something to do."""
        if self._last is not None:
            return self._last.left()
        due = min((one.due for one in self._due if one.due is not None), default=None)
        return None if due is None else max(0.0, due - self._clock())

    def step(self) -> None:
        """Begin the saves that are due. Never waits."""
        now = self._clock()
        for one in self._due if self._last is None else ():
            if one.due is not None and now >= one.due:
                one.due = now + (one.every_s or 0.0)
                if not one.entry.rests:
                    one.save(self._jobs)

    def ended(self) -> bool:
        """Return whether the last saves are made. The first call begins them: no row goes in."""
        if self._last is None:
            self._last = Deadline(LAST_S if self._due else 0.0, self._clock)
            for one in self._due:
                one.failed, one.entry.rests = None, True
        for one in self._due:  # again after a periodic one that was under way
            if one.failed is None:
                one.save(self._jobs)
        return self._last.expired or not any(one.saving for one in self._due)

    def end_job(self, timeout_s: float) -> str:
        """Wait for the job that is at work.

        Return which tables are not saved as they are now, and why; empty: all are.
        """
        self._jobs.close(timeout_s)
        self._jobs.finish()
        for one in self._due:
            one.end()
        late = "its last save was not over in time"
        return "; ".join(
            f"table {one.name!r} was not saved: {one.failed or late}"
            for one in self._due
            if one.changed()
        )

    def status(self) -> dict[str, Any]:
        """Return the status of each table by name."""
        return {one.name: one.status() for one in self._tables}

    def close(self) -> None:
        """Release the counts and the folder. May be called again."""
        for one in self._tables:
            one.close()
        if self._lock is not None:
            self._lock.close()
