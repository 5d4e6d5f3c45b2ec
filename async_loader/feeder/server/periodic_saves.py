"""Checkpoints that a feeder makes by itself: restored at its start, written while it serves.

::

    CHECKPOINT.PATH/TABLE/rows             the count of rows
    CHECKPOINT.PATH/TABLE/newest/save-...  saves, the newest of which is restored

See NOTE [slow work] in dispatch.py and NOTE [positions of a save] in producer_streams.py.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from async_loader.errors import ConfigError, Unsupported
from async_loader.feeder.server import producer_streams
from async_loader.feeder.server.background_jobs import BackgroundJobs, LoopCalls
from async_loader.feeder.server.producer_streams import Position, Positions, RowCount
from async_loader.feeder.server.state import TableEntry
from async_loader.lifecycle import Deadline
from async_loader.replay.buffer import ReplayBuffer, parts_of, saver_of
from async_loader.replay.checkpoint import SaveReport
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
        self._root = None if root is None else Path(root).expanduser().absolute()
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
        if self._root is None:
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
        home = Path(os.path.realpath(self._root)) / _as_file(table)
        if not Path(os.path.realpath(home.joinpath(*parts))).is_relative_to(home):
            raise ConfigError(
                f"path={path[:300]!r} leaves the folder of table {table!r} through a link: name "
                "one in it, or remove the link"
            )
        return self._root.joinpath(_as_file(table), *parts)


def _as_file(name: str) -> str:
    """Return a table's name as a file name: unique, and short enough."""
    quoted = quote(name, safe=" ()[]{}@+,=")
    quoted = quoted.replace(".", "%2E") if quoted.startswith(".") else quoted
    if len(quoted) <= 200:
        return quoted
    import hashlib

    return f"{quoted[:150]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"


_log = logging.getLogger("async_loader.feeder")
NEWEST, ROWS = "newest", "rows"
LAST_S = 300.0
"""How long the last saves may take, before a feeder ends without them."""
_LOOP_S = 60.0
_TURN_S = 0.02


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

    Attributes
    ----------
    number : int | None
        Of the newest save.
    lost : int
        Rows that the last process had acknowledged, and that are not restored.
    positions : list of Position
        Of the producers, as the save has them.

    Raises
    ------
    ConfigError, CorruptCheckpoint, SchemaError
    """

    def __init__(
        self, name: str, buffer: ReplayBuffer, folder: Path, every_s: float | None
    ) -> None:
        self.name, self.buffer, self.every_s = name, buffer, every_s
        self._root = folder / NEWEST
        self.number: int | None = None
        self.positions: list[Position] = []
        self._restored_rows = 0
        self._count = RowCount(folder / ROWS)
        try:
            self._restore()
            self._count.begin(parts_of(buffer).state.steps_had, self.lost)
        except BaseException:
            self._count.close()
            raise
        self.saving = False
        self.report: SaveReport | None = None
        self.saved_at: float | None = None
        self.failed: str | None = None
        self._saved_counts = self.counts()

    def _restore(self) -> None:
        self.lost = had = self._count.before or 0
        saves = sorted(self._root.glob("save-*")) if self.every_s is not None else []
        if not saves:
            return
        self.number = int(saves[-1].name.removeprefix("save-"))
        self.buffer.load(self._root)
        self._restored_rows = self.buffer.stats().size
        self.positions = producer_streams.read(saves[-1])
        self.lost = max(0, had - parts_of(self.buffer).state.steps_had)
        if self.lost:
            _log.warning(
                "table %s: %d rows that were acknowledged after save %d are lost",
                self.name, self.lost, self.number,
            )  # fmt: skip

    def note(self, rows: int) -> None:
        """Write the count of rows. In the loop, before they are acknowledged."""
        self._count.note(rows)

    def changed(self) -> bool:
        """Return whether the table has changed since its newest save."""
        return self.counts() != self._saved_counts

    def counts(self) -> tuple[int, ...]:
        stats = self.buffer.stats()
        return parts_of(self.buffer).state.steps_had, stats.sampled, stats.deleted

    def save(self, positions: Callable[[int], list[Position]]) -> SaveReport:
        """Write a save. On the background thread."""
        saver = saver_of(self.buffer)
        saver.beside = (
            producer_streams.FILE,
            lambda rows: producer_streams.encode(positions(rows)),
        )
        try:
            self._root.parent.mkdir(parents=True, exist_ok=True)
            report: SaveReport = self.buffer.save(self._root)
            return report
        finally:
            saver.beside = None

    def saved(self, result: Any, counts: tuple[int, ...], now: float) -> None:
        """Note the result of `save`. In the loop."""
        self.saving = False
        if isinstance(result, BaseException):
            self.failed = str(result) or type(result).__name__
            _log.error("table %s was not saved: %s", self.name, self.failed)
            return
        self.report, self.saved_at, self.failed = result, now, None
        self.number = result.number
        self._saved_counts = counts

    def status(self, now: float) -> dict[str, Any]:
        """Return the plain values of `CheckpointStatus`."""
        report = self.report
        return {
            "every_s": self.every_s,
            "number": self.number,
            "age_s": None if self.saved_at is None else now - self.saved_at,
            "save_s": None if report is None else report.duration_s,
            "nbytes": None if report is None else report.nbytes,
            "saving": self.saving,
            "failed": self.failed,
            "restored_rows": self._restored_rows,
            "lost_rows": self.lost,
            "lost_rows_in_sum": self._count.lost,
        }

    def close(self) -> None:
        self._count.close()


class PeriodicSaves:
    """Saves all tables, each ``every_s``; and once more at the end. In the server's loop.

    Parameters
    ----------
    tables : dict of TableSaves
    clock : callable
    """

    def __init__(
        self,
        tables: Mapping[str, TableSaves] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tables = dict(tables or {})
        self._clock = clock
        self._entries: Mapping[str, TableEntry] = {}
        self._jobs: BackgroundJobs | None = None
        self._loop_calls: LoopCalls | None = None
        self._due = {
            name: clock() + one.every_s
            for name, one in self.tables.items()
            if one.every_s is not None
        }
        self._last: Deadline | None = None

    @classmethod
    def of(
        cls,
        buffers: Mapping[str, ReplayBuffer],
        folders: Folders,
        every_s: float | None,
        count: bool = False,
    ) -> PeriodicSaves:
        """Restore the tables, and return their saves. Raises as `TableSaves`."""
        made: dict[str, TableSaves] = {}
        if every_s is None and not count:
            return cls()
        try:
            for name, buffer in buffers.items():
                made[name] = TableSaves(name, buffer, folders.of(name, "."), every_s)
        except BaseException:
            for one in made.values():
                one.close()
            raise
        return cls(made)

    def begin(
        self, entries: Mapping[str, TableEntry], jobs: BackgroundJobs, loop_calls: LoopCalls
    ) -> None:
        """Take what the loop has."""
        self._entries, self._jobs, self._loop_calls = entries, jobs, loop_calls
        for name, one in self.tables.items():
            entries[name].insert_queue.restore(one.positions)
        self.note()

    def note(self) -> None:
        """Write the counts of rows. Called before rows are acknowledged."""
        for name, one in self.tables.items():
            one.note(self._entries[name].table.steps_had)

    @property
    def ending(self) -> bool:
        """Whether the last saves were begun."""
        return self._last is not None

    def left_s(self) -> float | None:
        """Return the seconds until `step` has something to do."""
        if self._last is not None:
            return self._last.left()
        return max(0.0, min(self._due.values()) - self._clock()) if self._due else None

    def step(self) -> None:
        """Begin the saves that are due. Never waits."""
        now = self._clock()
        for name, due in self._due.items():
            if now >= due and self._last is None:
                one = self.tables[name]
                self._due[name] = now + (one.every_s or 0.0)
                if not self._entries[name].rests:
                    self._save(one)

    def end_job(self, jobs: BackgroundJobs, timeout_s: float) -> str:
        """Wait for the job that is at work: a save asks the loop, which is here, for positions.

        Return which tables are not saved as they are now, and why; empty: all are.
        """
        deadline = Deadline(timeout_s)
        assert self._loop_calls is not None
        while not jobs.close(min(_TURN_S, deadline.left_or_inf())) and not deadline.expired:
            self._loop_calls.make()
        jobs.finish()
        late = "its last save was not over in time"
        return "; ".join(
            f"table {name!r} was not saved: {self.tables[name].failed or late}"
            for name in self._due
            if not self._entries[name].table.closed and self.tables[name].changed()
        )

    def ended(self) -> bool:
        """Return whether the last saves are made. The first call begins them: no row goes in."""
        if self._last is None:
            self._last = Deadline(LAST_S if self._due else 0.0, self._clock)
            for name in self._due:
                self.tables[name].failed, self._entries[name].rests = None, True
        for name in self._due:  # again after a periodic one that was under way
            if self.tables[name].failed is None:
                self._save(self.tables[name])
        return self._last.expired or not any(self.tables[name].saving for name in self._due)

    def _save(self, one: TableSaves) -> None:
        """Begin a save, if the table has changed and none is under way."""
        entry = self._entries[one.name]
        if one.saving or entry.table.closed or not one.changed():
            return
        counts, positions = one.counts(), Positions(entry.insert_queue.positions())
        entry.insert_queue.notes = positions

        def done(result: Any) -> None:
            entry.insert_queue.notes = None
            one.saved(result, counts, self._clock())

        assert self._jobs is not None
        one.saving = True
        work = partial(one.save, partial(self._positions, positions))
        self._jobs.add(work, done)

    def _positions(self, positions: Positions, rows: int) -> list[Position]:
        """Read the notes in the loop, and wait for it. On the background thread."""
        assert self._loop_calls is not None
        return self._loop_calls.ask(lambda: positions.at(rows), _LOOP_S)

    def status(self) -> dict[str, Any]:
        """Return the status of each table by name."""
        now = self._clock()
        return {name: one.status(now) for name, one in self.tables.items()}

    def close(self) -> None:
        """Release the counts. May be called again."""
        for one in self.tables.values():
            one.close()
