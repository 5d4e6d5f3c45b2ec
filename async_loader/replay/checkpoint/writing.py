"""Writes a save into a temporary folder, which is renamed when all of it is on disk.

::

    path/save-00000001/manifest.json, data.bin   the newest save, and the one before; numbers rise
    path/tmp-...                                 what a save that was killed has left

Never waits under the table's lock.

# NOTE [what a kill leaves]
Until the rename there is a temporary folder more, which the next save removes; from the rename on
the new save is there, whole, as its files are on the disk by then. Older ones but the last are
renamed to temporary folders before they are removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from async_loader.errors import Timeout, Unsupported
from async_loader.lifecycle import LONGEST_S, seconds_or_none
from async_loader.replay.checkpoint import snapshot
from async_loader.replay.checkpoint.manifest import DATA, MANIFEST, Block, Manifest
from async_loader.replay.checkpoint.snapshot import BlockData, Snapshot, columns
from async_loader.replay.table.table_state import TableState
from async_loader.validation import path_of

_SMALL_BYTES = 1 << 20  # copied within a millisecond
_KEEP_BYTES = 64 << 20
_ROUNDS = 8
_SAVE = re.compile(r"save-(\d{8,})")


def name_of(number: int) -> str:
    """Return the name of a save's folder."""
    return f"save-{number:08}"


def saves(root: Path) -> list[int]:
    """Return the numbers of the saves in order."""
    names = os.listdir(root) if root.is_dir() else []
    return sorted(int(found[1]) for name in names if (found := _SAVE.fullmatch(name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveReport:
    """The result of a save.

    Attributes
    ----------
    kind : "full"
        Each save holds the whole table.
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

    kind: str
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
    beside : tuple of str and callable, optional
        A file that goes into each save, and what makes its bytes. Called on the thread that saves,
        under the table's lock: it sees what the save has.
    """

    def __init__(self, table_state: TableState) -> None:
        self._table_state = table_state
        self.beside: tuple[str, Callable[[], bytes]] | None = None
        self._one, self._turn = threading.Lock(), threading.Condition()
        self._pause_s = 0.0

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
                return self._save(root)
        finally:
            self.ended()

    def _save(self, root: Path) -> SaveReport:
        started = time.monotonic()
        if not root.is_dir():
            os.makedirs(root)
            _sync_folder(root.parent)
        for left in root.glob("tmp-*"):
            shutil.rmtree(left, ignore_errors=True)
        before = saves(root)
        number = before[-1] + 1 if before else 1
        final = root / name_of(number)
        temporary = root / f"tmp-{final.name}-{secrets.token_hex(4)}"
        try:
            os.mkdir(temporary)
            manifest = self._write(temporary, number)
            text = manifest.text().encode()
            with _durable(temporary / MANIFEST) as file:
                file.write(text)
            _sync_folder(temporary)
            os.rename(temporary, final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _sync_folder(root)
        for old in before[:-1]:
            gone = root / f"tmp-{name_of(old)}"
            with contextlib.suppress(OSError):  # what cannot be removed is left to the next save
                os.rename(root / name_of(old), gone)
                shutil.rmtree(gone)
        return SaveReport(
            kind="full",
            number=number,
            nbytes=manifest.nbytes + len(text),
            duration_s=time.monotonic() - started,
            pause_s=self._pause_s,
            rows=sum(block.about["count"] for block in manifest.blocks if block.kind == "rows"),
        )

    def _write(self, folder: Path, number: int) -> Manifest:
        """Write the data file, and return what goes into the manifest. See snapshot.py, NOTE
        [pre-copy].
        """
        state = self._table_state
        settings, blocks = snapshot.fixed_settings(state), list[Block]()
        with _durable(folder / DATA) as file:

            def put(pieces: Iterable[BlockData]) -> None:
                for kind, about, data in pieces:
                    file.write(data.data)
                    blocks.append(Block(kind, data.nbytes, zlib.crc32(data.data), about))

            if not state.ready:
                with state.lock:
                    settings |= snapshot.changing_settings(state)
                return Manifest(number, settings, None, {}, blocks)
            cursor = Snapshot(state.table)
            with state.lock:
                state.catch_up()
                rows = cursor.every_row()
            put(cursor.pieces(rows))
            left, before = cursor.left(), 1 << 62
            for _ in range(_ROUNDS):
                if left <= _SMALL_BYTES or left > before * 0.7:
                    break
                with state.lock:
                    changed = cursor.changed_rows()
                put(cursor.pieces(changed))
                left, before = cursor.left(), left
            with state.lock:
                since = time.monotonic()
                state.catch_up()
                rest = cursor.pieces(cursor.changed_rows())
                if left > _KEEP_BYTES:
                    # Writers outrun the disk: they have to wait once, since all of it may not fit
                    # the memory.
                    put(rest)
                kept = [
                    *rest,
                    *(
                        BlockData("column", {"name": name}, array.copy().view("u1"))
                        for name, array in columns(state).items()
                    ),
                ]
                settings |= snapshot.changing_settings(state)
                table, samplers = snapshot.table_json(state), snapshot.sampler_states(state)
                beside = None if self.beside is None else (self.beside[0], self.beside[1]())
                self._pause_s = time.monotonic() - since
            put(kept)
        if beside is not None:
            with _durable(folder / beside[0]) as file:
                file.write(beside[1])
        return Manifest(number, settings, table, samplers, blocks)


@contextlib.contextmanager
def _durable(path: Path) -> Iterator[BinaryIO]:
    """Open a new file, which is on the disk when the block ends. An OSError names it."""
    try:
        with open(path, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _sync_folder(path: Path) -> None:
    """Make the changes of names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
