"""The file of a kept table, and the order in which it is written. See pages.py, NOTE [pages]."""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile
from zlib import crc32

import numpy as np

from async_loader.errors import ConfigError, CorruptCheckpoint, OutOfMemory, Unsupported
from async_loader.replay.array_types import Array, Floats, Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.checkpoint.manifest import schema_json, schema_of
from async_loader.replay.kept import pages as p
from async_loader.replay.samplers.binding import Binding, innermost
from async_loader.replay.stream_names import lasting_json
from async_loader.replay.table.nonblocking_table import Position
from async_loader.replay.table.storage import Storage, StorageLayout
from async_loader.replay.table.table import Table
from async_loader.schema import Schema
from async_loader.shm.folder_lock import FolderLock
from async_loader.shm.limits import available_bytes, human
from async_loader.shm.segment import Segment, check_fits


class KeptFile:
    """A folder with the memory of one table, for one process at a time.

    Parameters
    ----------
    folder : str
        Made if it is not there.

    Attributes
    ----------
    found : bool
        Whether the table was there, and went on.
    leases : bool
        Whether a feeder serves it as a queue, whose learners confirm what they use.
    held : bool
        The next writes wait for a `commit` of their position.
    seen : array of int64
        Ids of rows that a learner may have had.

    Raises
    ------
    ConfigError
        If another process has the folder, or it cannot be used.
    """

    pages: p.Pages

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.found = self.leases = self.held = False
        self.seen: Ids = np.empty(0, np.int64)
        self._slots: dict[bytes, int] = {}
        self._choosers: list[tuple[int, Binding]] = []
        self._told = 0  # samplers that the table has
        self._free = list(range(p.PRODUCERS - 1, -1, -1))
        try:
            self._lock = FolderLock(self.folder, "name another folder in keep=")
        except OSError as error:
            raise ConfigError(f"keep={folder!r}: no file can be made there: {error}") from error

    def schema(self) -> Schema | None:
        """Return the schema of the table that is there."""
        path = p.table_in(self.folder)
        return None if path is None else schema_of(p.read(path).about["schema"])

    def close(self) -> None:
        """Let another process have the folder. May be called again."""
        self._lock.close()

    # -- the file ----------------------------------------------------------------------------------

    def storage(self, layout: StorageLayout, remover: object, most: int) -> Storage:
        """Return the memory of the table, as it was left or new.

        Raises ConfigError if what is there was made in another way, CorruptCheckpoint, OutOfMemory.
        """
        about = {
            "schema": schema_json(layout.schema),
            "capacity": layout.capacity,
            "rows": layout.rows,
            "nbytes": layout.nbytes,
            "ring": list(layout.ring),
            "remover": type(remover).__name__,
            "max_times_sampled": most,
        }
        path = self.folder / p.TABLE
        self.found = path.is_file()
        on_disk = not _in_memory(self.folder)
        if not self.found:
            self._create(path, about, on_disk)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = p.size_of(path, fd)
        except CorruptCheckpoint:
            os.close(fd)
            raise
        segment = Segment.attach(fd, size)
        self.pages = pages = p.Pages(path, segment.view())
        for name, value in about.items():
            if pages.about[name] != value:
                raise ConfigError(
                    f"{self.folder} keeps a table with {name}={_text(pages.about[name])}, and "
                    f"{_text(value)} is asked for: use the same, or name another folder"
                )
        # what fits the memory is p.read as what lies in it
        made = Storage(segment, layout, on_disk and layout.nbytes > available_bytes())
        made.punches = not on_disk
        made.resumed = self.found
        if made.loading:
            raise ConfigError(
                f"{self.folder}: its process was killed while a save was loaded into it: remove "
                "the folder, and load the save again"
            )
        self._number = pages.commit.number
        self._slots = {key: slot for key, (slot, *_) in pages.slots.items()}
        taken = set(self._slots.values())
        self._free = [slot for slot in range(p.PRODUCERS - 1, -1, -1) if slot not in taken]
        if pages.commit.slot >= 0:
            self._write_slot(pages.commit.slot, pages.commit.producer)
        return made

    def _create(self, path: Path, about: dict[str, Any], on_disk: bool) -> None:
        text = json.dumps(about).encode()
        if len(text) > (most := p.TAIL_BYTES - p.COMMITS_BYTES - p.HEAD.size):
            raise ConfigError(
                f"keep: a schema of {len(text):,} bytes is too large, {most:,} are allowed: use "
                "fewer fields"
            )
        at = p.places_behind(about["nbytes"], about["rows"])
        purpose = f"kept table of {about['capacity']:,} steps"
        if not on_disk:
            check_fits(at["end"], purpose)
        there = os.statvfs(self.folder)
        if at["end"] > (free := there.f_bavail * there.f_frsize):
            raise OutOfMemory(
                f"{purpose}: needs {human(at['end'])} in {str(self.folder)!r}, where "
                f"{human(free)} are free: lower the capacity, or name another folder"
            )
        header = p.HEAD.pack(p.MAGIC, p.FORMAT, len(text), crc32(text, p.FORMAT)) + text
        commit = p.sealed(p.COMMIT.pack(1, 0, 0, 0, False, -1) + bytes(p.PRODUCER.size))
        new = path.with_name("table.new")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if on_disk:  # a write to a mapped file cannot say that the disk is full
                os.posix_fallocate(fd, 0, at["end"])
            os.ftruncate(fd, at["end"])
            os.pwrite(fd, np.full(p.STREAMS, -1, np.int64).tobytes(), at["marks"])
            none = struct.pack("<2d", 0.0, math.nan)
            os.pwrite(fd, none * 2, at["words"] + 8 * p.SAMPLERS)
            os.pwrite(fd, header, at["tail"])
            os.pwrite(fd, commit, at["end"] - p.COMMITS_BYTES + p.COPY_AT)
            os.pwrite(fd, p.NUMBER.pack(1), at["end"] - p.COMMITS_BYTES + p.DONE_AT)
            os.rename(new, path)
        except OSError as error:
            raise OutOfMemory(
                f"{purpose}: {human(at['end'])} in {str(self.folder)!r} could not be taken: {error}"
            ) from error
        finally:
            os.close(fd)

    # -- what a table works on ---------------------------------------------------------------------

    def adopt(self, table: Table) -> None:
        """Have a table that was just made work on the file."""
        self._table, table.kept, self.held = table, self, self.found
        if len(table.times):
            table.times = self.pages.columns[p.TIMES]
        if len(table.given):
            table.given, table.assigned = self.priorities()
        table.last = self.marks(len(table.last))
        table._point()

    def priorities(self) -> tuple[Floats, Floats]:
        """Return the columns of priorities: NaN where they were not in use before."""
        given, assigned = self.pages.columns[p.GIVEN : p.ASSIGNED + 1].view(np.float64)
        if not self.pages.words[p.PRIORITIES]:
            given[:] = assigned[:] = np.nan
            self.pages.columns[p.IN_SEQUENCES].view(np.float64)[:] = np.nan
            self.pages.words[p.PRIORITIES] = 1
        return given, assigned

    def confirm_all(self, others: Ids | int = 0) -> None:
        """Note that no row that was drawn comes again; of ``others`` what is given."""
        table = self._table
        if len(table.times):
            self.told[:] = np.where(table.times >= table._most, table.ids + 1, others)

    def in_sequences(self) -> Floats:
        """Return the column of priorities that the table's own view gave."""
        column: Array = self.pages.columns[p.IN_SEQUENCES].view(np.float64)
        return column

    @property
    def told(self) -> Ids:
        """See `TOLD`."""
        column: Ids = self.pages.columns[p.TOLD]
        return column

    def marks(self, places: int) -> Ids:
        """Return the marks of the first ``places`` streams. Raises Unsupported for too many."""
        if places > p.STREAMS:
            raise Unsupported(
                f"a kept table has at most {p.STREAMS // 2:,} open streams: end episodes, or leave "
                "keep out"
            )
        return self.pages.marks[:places]

    def name(self, number: int, name: Hashable) -> None:
        """Note the name of a stream, whose mark is not set. Raises ConfigError for a long one."""
        text = json.dumps(lasting_json(name)).encode()
        if len(text) > p.LONGEST_NAME:
            raise ConfigError(
                f"stream={name!r} takes {len(text)} bytes, and a kept table has room for "
                f"{p.LONGEST_NAME}: use a shorter name"
            )
        at, body = number * p.NAME_BYTES, p.sealed(len(text).to_bytes(2, "little") + text)
        self.pages.names[at : at + len(body)] = body

    # -- what is written as the table goes on ------------------------------------------------------

    def note_draw(self, sampled: int) -> None:
        """Note how many items were drawn."""
        self.pages.words[p.SAMPLED] = sampled

    def commit(self, position: Position | None = None) -> None:
        """Let all rows that are written count, with the position of their producer. 3 us."""
        table, pages, slot, producer = self._table, self.pages, -1, p.NO_PRODUCER
        if position is not None:
            text, applied, done = position
            key = bytes.fromhex(text)
            slot = self._slots[key] if key in self._slots else self._slot_of(key)
            producer = p.PRODUCER.pack(key, applied, done)
        number = self._number = self._number + 1
        cursor = table.g.item(r.CURSOR)
        body = (
            p.COMMIT.pack(number, cursor, table.inserted, table.cleared, self.leases, slot)
            + producer
        )
        at = p.COPY_AT * (number & 1)
        pages.commits[at : at + p.COMMIT_BYTES] = p.sealed(body)
        p.NUMBER.pack_into(pages.commits, p.DONE_AT, number)
        if slot >= 0:
            self._write_slot(slot, producer)
        if table.prioritized:
            self.note_samplers()

    def note_counts(self) -> None:
        """Note the counts that commits leave out, since they seldom change."""
        table = self._table
        if self.held:  # it does not have yet what is there
            return
        lookahead = table.g.item(r.LOOKAHEAD)
        p.COUNTS.pack_into(self.pages.words, 0, table.sampled, table.carried, lookahead)
        self.commit()

    def _write_slot(self, slot: int, producer: bytes) -> None:
        at = slot * p.SLOT_BYTES
        self.pages.producers[at : at + p.SEALED_BYTES] = p.sealed(producer)

    def _slot_of(self, key: bytes) -> int:
        slot = self._slots[key] = self._free.pop()
        return slot

    def forget(self, key: bytes) -> None:
        """Let another producer have the slot of this one."""
        slot = self._slots.pop(key, None)
        if slot is not None:
            self._free.append(slot)

    @property
    def full(self) -> bool:
        """Whether no slot is free for another producer."""
        return not self._free

    def positions(self) -> list[Position]:
        """Return where each producer was when the table was opened."""
        slots = self.pages.slots if self.found else {}
        return [(key.hex(), applied, done) for key, (_, applied, done) in slots.items()]

    def _find_choosers(self) -> list[tuple[int, Binding]]:
        """Return what chooses for the table and for its own view, and where its words are."""
        chosen = map(innermost, self._table.samplers[:2])
        return [
            (p.SAMPLERS + 2 * i, one) for i, one in enumerate(chosen) if isinstance(one, Binding)
        ]

    def note_samplers(self) -> None:
        """Note the draws of samplers, and the largest priorities that they were given."""
        if len(self._table._told) != self._told:
            self._told, self._choosers = len(self._table._told), self._find_choosers()
        for at, one in self._choosers:
            largest = one._ever.largest
            self.pages.words[at] = one._draws
            self.pages.reals[at + 1] = math.nan if largest is None else largest

    def restore_samplers(self) -> None:
        """Have samplers go on as `note_samplers` has noted."""
        for at, one in self._find_choosers():
            largest = self.pages.reals[at + 1]
            one._draws = self.pages.words[at]
            one._ever.largest = None if math.isnan(largest) else largest

    @contextlib.contextmanager
    def patching(self, ids: Ids, columns: Mapping[int, Array]) -> Any:
        """Note an update for as long as it is under way: a kill in the middle is made good."""
        path = self.folder / "patch.npz"
        new = path.with_name("patch.new")
        named: dict[str, Any] = {f"f{i}": column for i, column in columns.items()}
        try:
            with open(new, "wb") as file:
                np.savez(file, ids=ids, **named)
            os.rename(new, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink()
            raise OutOfMemory(
                f"an update of {len(ids):,} rows could not be noted in {str(self.folder)!r}, and "
                f"is not made: {error}: make room there, or update fewer rows in a call"
            ) from error
        try:
            yield
        finally:
            self.patched()

    def patched(self) -> None:
        """Forget the update: it is made."""
        (self.folder / "patch.npz").unlink()

    def patch(self) -> tuple[Ids, dict[int, Array]] | None:
        """Return the update that a kill has cut; ``None`` without one."""
        path = self.folder / "patch.npz"
        if not path.exists():
            return None
        storage = self._table.storage
        try:
            with open(path, "rb") as file, np.load(file) as found:
                ids = found["ids"]
                columns = {int(name[1:]): found[name] for name in found.files if name != "ids"}
            for i, column in columns.items():
                cell = storage.cell(i)
                if column.dtype != cell.dtype or column.shape != (*ids.shape, *cell.shape[1:]):
                    raise ValueError(f"field {i} is {column.dtype} {list(column.shape)}")
        except (ValueError, KeyError, IndexError, EOFError, BadZipFile) as error:
            raise CorruptCheckpoint(
                f"{path}: holds no update: {error}: remove the folder, and load the newest save if "
                "there is one"
            ) from error
        return ids, columns


def _text(value: object) -> str:
    if isinstance(value, dict):
        return f"({schema_of(value)})"
    return repr(value)


def _in_memory(folder: Path) -> bool:
    """Return whether a folder lies in memory: on a tmpfs."""
    there = os.stat(folder).st_dev
    device = f"{os.major(there)}:{os.minor(there)}"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            words = line.split()
            if words[2] == device:
                return words[words.index("-") + 1] in ("tmpfs", "ramfs")
    return False
