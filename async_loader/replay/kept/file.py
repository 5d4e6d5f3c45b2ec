"""The file of a kept table: its pages behind the rows, and the order in which they are written.

::

    rows and ring | columns | marks | names | words | producers || header | commits

# NOTE [pages]
Columns, marks of streams (``LAST`` of the kernels) and words are what a table works on. A name of a
stream counts while its mark is set. There are two commits, written in turn, each with a number and
a checksum, and behind them the number of the last whole one: so one that is damaged is told from
one that a kill has cut. A commit holds one producer's slot, which is written after it: the only
slot that may be half written. The last 64 KiB are header and commits.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import mmap
import os
import struct
import weakref
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from async_loader.errors import ConfigError, CorruptCheckpoint, OutOfMemory, Unsupported
from async_loader.replay.array_types import Array, Floats, Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.checkpoint.manifest import name_of, schema_json, schema_of
from async_loader.replay.samplers.binding import Binding, innermost
from async_loader.replay.stream_names import lasting_json
from async_loader.replay.table.nonblocking_table import Position
from async_loader.replay.table.storage import Storage, StorageLayout
from async_loader.replay.table.table import Table
from async_loader.schema import Schema
from async_loader.shm.limits import available_bytes, human
from async_loader.shm.segment import Segment, check_fits

FORMAT = 1
TABLE = "table"
STREAMS, PRODUCERS = 1 << 16, 1 << 14
_NAME, _SLOT = 128, 64  # bytes of each
_LONGEST = _NAME - 6  # a name's length and checksum are beside it
_TAIL, _COMMITS = 64 << 10, 4 << 10
_MAGIC = b"al-kept\0"
_HEAD = struct.Struct("<8sIII")  # format, bytes and checksum of the text behind it
_COMMIT = struct.Struct("<Qqqq?i")  # with a slot and a checksum behind it
_PRODUCER = struct.Struct("<16sQQ")
_NUMBER, _CRC, _COUNTS = struct.Struct("<Q"), struct.Struct("<I"), struct.Struct("<3q")
_SEALED, _NO_PRODUCER = _PRODUCER.size + _CRC.size, bytes(_PRODUCER.size)
_COMMITTED = _COMMIT.size + _SEALED
_DONE = 2048
_COPY = 1024
SAMPLED, CARRIED, LOOKAHEAD, PRIORITIES, SAMPLERS = 0, 1, 2, 3, 4
"""Words. From the last on: the draws, and the largest priority, of the samplers."""
GIVEN, ASSIGNED, TIMES, IN_SEQUENCES, TOLD = range(5)
"""Columns, one number for each row.

``TOLD``: the id + 1 of a row of a queue whose learner has confirmed it; negative: a learner may
have had it.
"""


class Commit(NamedTuple):
    """Up to which id rows count, and what was true then.

    ``leases``: learners confirm what they use. ``slot``, ``producer``: of the message that came
    last, see NOTE [pages]; -1: none.
    """

    number: int
    cursor: int
    inserted: int
    cleared: int
    leases: bool
    slot: int
    producer: bytes


def table_in(folder: str | os.PathLike[str]) -> Path | None:
    """Return the file of a kept table in a folder; ``None`` without one."""
    path = Path(folder) / TABLE
    return path if path.is_file() else None


def tables_in(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the file of a kept table in a folder, or those of a feeder's tables."""
    return [path for path in sorted(Path(folder).glob(f"*/{TABLE}")) if path.is_file()] or [
        path for path in [table_in(folder)] if path is not None
    ]


def _sealed(body: bytes) -> bytes:
    return body + _CRC.pack(crc32(body))


def _opened(raw: bytes | memoryview, size: int) -> bytes | None:
    """Return the first ``size`` bytes; ``None`` if their checksum behind them is not theirs."""
    body = bytes(raw[:size])
    return body if _sealed(body) == bytes(raw[: size + _CRC.size]) else None


class Pages:
    """What lies behind the rows of a kept table. Reads as it is made; raises CorruptCheckpoint."""

    def __init__(self, path: Path, memory: memoryview) -> None:
        self.path, self._memory = path, memory
        self.about = self._header()
        rows, self.begins = self.about["rows"], self.about["nbytes"]
        at = _places(self.begins, rows)
        self.rows = rows
        numbers = np.frombuffer(memory, np.int64, 5 * rows, self.begins)
        self.columns = numbers.reshape(5, rows)
        self.marks: Ids = np.frombuffer(memory, np.int64, STREAMS, at["marks"])
        self.names = memory[at["names"] : at["words"]]
        self.words = memory[at["words"] : at["producers"]].cast("q")
        self.reals = memory[at["words"] : at["producers"]].cast("d")
        self.producers = memory[at["producers"] : at["tail"]]
        self.commits = memory[-_COMMITS:]
        self.commit = self._newest()
        self.slots = self._slots()

    def damaged(self, what: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(
            f"{self.path}: {what}: it was changed or cut after it was written; remove the folder, "
            "and load the newest save if there is one"
        )

    def _header(self) -> dict[str, Any]:
        if len(self._memory) < _TAIL:
            raise self.damaged(f"has {len(self._memory):,} bytes, {_TAIL:,} are the least")
        header = self._memory[-_TAIL:-_COMMITS]
        magic, version, size, crc = _HEAD.unpack_from(header)
        if magic != _MAGIC:
            raise self.damaged("has no header of a kept table at its end")
        text = bytes(header[_HEAD.size : _HEAD.size + size])
        if crc32(text, version) != crc:
            raise self.damaged("its header does not have the checksum that it states")
        if version != FORMAT:
            raise ConfigError(
                f"{self.path} is of format {version}, and this version reads {FORMAT}: use the "
                "version that wrote it, or name another folder"
            )
        about: dict[str, Any] = json.loads(text)
        whole = _places(about["nbytes"], about["rows"])["end"]
        if whole != len(self._memory):
            raise self.damaged(f"has {len(self._memory):,} bytes, its header says {whole:,}")
        return about

    def _newest(self) -> Commit:
        found = []
        for at in (0, _COPY):
            body = _opened(self.commits[at:], _COMMIT.size + _PRODUCER.size)
            if body is not None:
                found.append(Commit._make((*_COMMIT.unpack_from(body), body[_COMMIT.size :])))
        (done,) = _NUMBER.unpack_from(self.commits, _DONE)
        newest = max(found, default=None)
        if newest is None or newest.number < done:
            raise self.damaged(f"commit {done} does not have the checksum that it states")
        return newest

    def _slots(self) -> dict[bytes, tuple[int, int, int]]:
        """Return the slot and the position of each producer, by its key."""
        slots = np.frombuffer(self.producers, np.uint8).reshape(PRODUCERS, _SLOT)
        found, newest = {}, self.commit
        for slot in {*np.flatnonzero(slots.any(1)).tolist(), newest.slot} - {-1}:
            raw = self.producers[slot * _SLOT :]
            body = newest.producer if slot == newest.slot else _opened(raw, _PRODUCER.size)
            if body is None:
                raise self.damaged(f"the position of producer {slot} has a wrong checksum")
            key, applied, done = _PRODUCER.unpack(body)
            found[key] = (slot, applied, done)
        return found

    def streams(self) -> dict[Hashable, int]:
        """Return the numbers of the streams whose marks are set."""
        found: dict[Hashable, int] = {}
        for number in np.flatnonzero(self.marks != -1).tolist():
            raw = bytes(self.names[number * _NAME : (number + 1) * _NAME])
            size = min(int.from_bytes(raw[:2], "little"), _LONGEST)
            body = _opened(raw, 2 + size)
            if body is None:
                raise self.damaged(f"the name of stream {number} has a wrong checksum")
            found[name_of(json.loads(body[2:]))] = number
        return found


def _places(nbytes: int, rows: int) -> dict[str, int]:
    """Return where each page begins behind ``nbytes`` of rows, and the bytes of the file."""
    found, end = {}, nbytes
    for name, size in (
        ("columns", 5 * 8 * rows),
        ("marks", 8 * STREAMS),
        ("names", _NAME * STREAMS),
        ("words", mmap.PAGESIZE),
        ("producers", _SLOT * PRODUCERS),
        ("tail", _TAIL),
    ):
        found[name] = end
        end += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    return found | {"end": end}


def read(path: Path) -> Pages:
    """Read the pages of a file without changing it. Raises CorruptCheckpoint, ConfigError."""
    with open(path, "rb") as file:
        if not (size := os.fstat(file.fileno()).st_size):
            raise CorruptCheckpoint(f"{path}: is empty: remove it")
        return Pages(path, memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)))


class Contents(NamedTuple):
    """What a kept table holds."""

    schema: Schema
    steps: int
    capacity: int
    nbytes: int
    inserted: int
    sampled: int
    streams: int
    producers: int
    in_use: bool


def contents(path: Path) -> Contents:
    """Read what a file holds, also while its table is in use. Raises as `read`."""
    pages = read(path)
    about, commit, schema = pages.about, pages.commit, schema_of(pages.about["schema"])
    capacity, rows = about["capacity"], about["rows"]
    layout = StorageLayout.of(schema, capacity, rows - capacity, about["ring"][1])
    heads = np.ndarray((rows, 4), np.int64, pages._memory, 0, (layout.stride, 8))
    ids, flags = heads[:, r.ID // 8] - 1, heads[:, r.FLAGS // 8]
    there = (ids >= max(0, commit.cursor - capacity)) & (ids < commit.cursor)
    steps = int(np.count_nonzero(there & (flags & (r.FINAL | r.DELETED) == 0)))
    return Contents(
        schema, steps, capacity, about["nbytes"], commit.inserted, pages.words[SAMPLED],
        len(pages.streams()), len(pages.slots), _in_use(path.with_name("lock")),
    )  # fmt: skip


def _in_use(lock: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


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

    pages: Pages

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.found = self.leases = self.held = False
        self.seen: Ids = np.empty(0, np.int64)
        self._slots: dict[bytes, int] = {}
        self._choosers: list[tuple[int, Binding]] = []
        self._told = 0  # samplers that the table has
        self._free = list(range(PRODUCERS - 1, -1, -1))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"keep={folder!r}: no file can be made there: {error}") from error
        self._unlock = weakref.finalize(self, _unlock, fd, os.getpid())
        self._unlock.atexit = False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise ConfigError(
                f"keep={folder!r} is in use by another table: end its process, or name another "
                "folder"
            ) from None

    def schema(self) -> Schema | None:
        """Return the schema of the table that is there."""
        path = table_in(self.folder)
        return None if path is None else schema_of(read(path).about["schema"])

    def close(self) -> None:
        """Let another process have the folder. May be called again."""
        self._unlock()

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
        path = self.folder / TABLE
        self.found = path.is_file()
        on_disk = not _in_memory(self.folder)
        if not self.found:
            self._create(path, about, on_disk)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if size := os.fstat(fd).st_size:
            segment = Segment.attach(fd, size)
        else:
            os.close(fd)
            raise CorruptCheckpoint(f"{path}: is empty: remove it")
        self.pages = pages = Pages(path, segment.view())
        for name, value in about.items():
            if pages.about[name] != value:
                raise ConfigError(
                    f"{self.folder} keeps a table with {name}={_text(pages.about[name])}, and "
                    f"{_text(value)} is asked for: use the same, or name another folder"
                )
        # what fits the memory is read as what lies in it
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
        self._free = [slot for slot in range(PRODUCERS - 1, -1, -1) if slot not in taken]
        if pages.commit.slot >= 0:
            self._write_slot(pages.commit.slot, pages.commit.producer)
        return made

    def _create(self, path: Path, about: dict[str, Any], on_disk: bool) -> None:
        text = json.dumps(about).encode()
        if len(text) > _TAIL - _COMMITS - _HEAD.size:
            raise ConfigError(
                f"keep: a schema of {len(text):,} bytes is too large, {_TAIL - _COMMITS:,} are "
                "allowed: use fewer fields"
            )
        at = _places(about["nbytes"], about["rows"])
        purpose = f"kept table of {about['capacity']:,} steps"
        if not on_disk:
            check_fits(at["end"], purpose)
        there = os.statvfs(self.folder)
        if at["end"] > (free := there.f_bavail * there.f_frsize):
            raise OutOfMemory(
                f"{purpose}: needs {human(at['end'])} in {str(self.folder)!r}, where "
                f"{human(free)} are free: lower the capacity, or name another folder"
            )
        header = _HEAD.pack(_MAGIC, FORMAT, len(text), crc32(text, FORMAT)) + text
        commit = _sealed(_COMMIT.pack(1, 0, 0, 0, False, -1) + bytes(_PRODUCER.size))
        new = path.with_name("table.new")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if on_disk:  # a write to a mapped file cannot say that the disk is full
                os.posix_fallocate(fd, 0, at["end"])
            os.ftruncate(fd, at["end"])
            os.pwrite(fd, np.full(STREAMS, -1, np.int64).tobytes(), at["marks"])
            none = struct.pack("<2d", 0.0, math.nan)
            os.pwrite(fd, none * 2, at["words"] + 8 * SAMPLERS)
            os.pwrite(fd, header, at["tail"])
            os.pwrite(fd, commit, at["end"] - _COMMITS + _COPY)
            os.pwrite(fd, _NUMBER.pack(1), at["end"] - _COMMITS + _DONE)
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
            table.times = self.pages.columns[TIMES]
        if len(table.given):
            table.given, table.assigned = self.priorities()
        table.last = self.marks(len(table.last))
        table._point()

    def priorities(self) -> tuple[Floats, Floats]:
        """Return the columns of priorities: NaN where they were not in use before."""
        given, assigned = self.pages.columns[GIVEN : ASSIGNED + 1].view(np.float64)
        if not self.pages.words[PRIORITIES]:
            given[:] = assigned[:] = np.nan
            self.pages.columns[IN_SEQUENCES].view(np.float64)[:] = np.nan
            self.pages.words[PRIORITIES] = 1
        return given, assigned

    def confirm_all(self, others: Ids | int = 0) -> None:
        """Note that no row that was drawn comes again; of ``others`` what is given."""
        table = self._table
        if len(table.times):
            self.told[:] = np.where(table.times >= table._most, table.ids + 1, others)

    def in_sequences(self) -> Floats:
        """Return the column of priorities that the table's own view gave."""
        column: Array = self.pages.columns[IN_SEQUENCES].view(np.float64)
        return column

    @property
    def told(self) -> Ids:
        """See `TOLD`."""
        column: Ids = self.pages.columns[TOLD]
        return column

    def marks(self, places: int) -> Ids:
        """Return the marks of the first ``places`` streams. Raises Unsupported for too many."""
        if places > STREAMS:
            raise Unsupported(
                f"a kept table has at most {STREAMS // 2:,} open streams: end episodes, or leave "
                "keep out"
            )
        return self.pages.marks[:places]

    def name(self, number: int, name: Hashable) -> None:
        """Note the name of a stream, whose mark is not set. Raises ConfigError for a long one."""
        text = json.dumps(lasting_json(name)).encode()
        if len(text) > _LONGEST:
            raise ConfigError(
                f"stream={name!r} takes {len(text)} bytes, and a kept table has room for "
                f"{_LONGEST}: use a shorter name"
            )
        at, body = number * _NAME, _sealed(len(text).to_bytes(2, "little") + text)
        self.pages.names[at : at + len(body)] = body

    # -- what is written as the table goes on ------------------------------------------------------

    def note_draw(self, sampled: int) -> None:
        """Note how many items were drawn."""
        self.pages.words[SAMPLED] = sampled

    def commit(self, position: Position | None = None) -> None:
        """Let all rows that are written count, with the position of their producer. 3 us."""
        table, pages, slot, producer = self._table, self.pages, -1, _NO_PRODUCER
        if position is not None:
            text, applied, done = position
            key = bytes.fromhex(text)
            slot = self._slots[key] if key in self._slots else self._slot_of(key)
            producer = _PRODUCER.pack(key, applied, done)
        number = self._number = self._number + 1
        cursor = table.g.item(r.CURSOR)
        body = (
            _COMMIT.pack(number, cursor, table.inserted, table.cleared, self.leases, slot)
            + producer
        )
        at = _COPY * (number & 1)
        pages.commits[at : at + _COMMITTED] = body + _CRC.pack(crc32(body))
        _NUMBER.pack_into(pages.commits, _DONE, number)
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
        _COUNTS.pack_into(self.pages.words, 0, table.sampled, table.carried, lookahead)
        self.commit()

    def _write_slot(self, slot: int, producer: bytes) -> None:
        at = slot * _SLOT
        self.pages.producers[at : at + _SEALED] = producer + _CRC.pack(crc32(producer))

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
        return [(SAMPLERS + 2 * i, one) for i, one in enumerate(chosen) if isinstance(one, Binding)]

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
        with open(new, "wb") as file:
            named: dict[str, Any] = {f"f{i}": column for i, column in columns.items()}
            np.savez(file, ids=ids, **named)
        os.rename(new, path)
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
        with np.load(path) as file:
            columns = {int(name[1:]): file[name] for name in file.files if name != "ids"}
            return file["ids"], columns


def _unlock(fd: int, pid: int) -> None:
    """Give a lock up; in a fork, only its descriptor: the lock is the parent's."""
    if os.getpid() == pid:
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return f"({', '.join(str(field[0]) for field in value['fields'])})"
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
