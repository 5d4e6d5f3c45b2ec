"""The pages behind the rows of a kept table, as they are read.

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

import json
import mmap
import os
import struct
from collections.abc import Hashable
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from async_loader.errors import ConfigError, CorruptCheckpoint
from async_loader.replay.array_types import Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.checkpoint.manifest import name_of, schema_of
from async_loader.replay.table.storage import StorageLayout
from async_loader.schema import Schema
from async_loader.shm.folder_lock import in_use

FORMAT = 1
TABLE = "table"
STREAMS, PRODUCERS = 1 << 16, 1 << 14
NAME_BYTES, SLOT_BYTES = 128, 64  # bytes of each
LONGEST_NAME = NAME_BYTES - 6  # a name's length and checksum are beside it
TAIL_BYTES, COMMITS_BYTES = 64 << 10, 4 << 10
MAGIC = b"al-kept\0"
HEAD = struct.Struct("<8sIII")  # format, bytes and checksum of the text behind it
COMMIT = struct.Struct("<Qqqq?i")  # with a slot and a checksum behind it
PRODUCER = struct.Struct("<16sQQ")
NUMBER, CRC, COUNTS = struct.Struct("<Q"), struct.Struct("<I"), struct.Struct("<3q")
SEALED_BYTES, NO_PRODUCER = PRODUCER.size + CRC.size, bytes(PRODUCER.size)
COMMIT_BYTES = COMMIT.size + SEALED_BYTES
DONE_AT = 2048
COPY_AT = 1024
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


def sealed(body: bytes) -> bytes:
    return body + CRC.pack(crc32(body))


def opened(raw: bytes | memoryview, size: int) -> bytes | None:
    """Return the first ``size`` bytes; ``None`` if their checksum behind them is not theirs."""
    body = bytes(raw[:size])
    return body if sealed(body) == bytes(raw[: size + CRC.size]) else None


class Pages:
    """What lies behind the rows of a kept table. Reads as it is made; raises CorruptCheckpoint."""

    def __init__(self, path: Path, memory: memoryview) -> None:
        self.path, self._memory = path, memory
        self.about = self._header()
        rows, self.begins = self.about["rows"], self.about["nbytes"]
        at = places_behind(self.begins, rows)
        self.rows = rows
        numbers = np.frombuffer(memory, np.int64, 5 * rows, self.begins)
        self.columns = numbers.reshape(5, rows)
        self.marks: Ids = np.frombuffer(memory, np.int64, STREAMS, at["marks"])
        self.names = memory[at["names"] : at["words"]]
        self.words = memory[at["words"] : at["producers"]].cast("q")
        self.reals = memory[at["words"] : at["producers"]].cast("d")
        self.producers = memory[at["producers"] : at["tail"]]
        self.commits = memory[-COMMITS_BYTES:]
        self.commit = self._newest()
        self.slots = self._slots()

    def damaged(self, what: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(
            f"{self.path}: {what}: it was changed or cut after it was written; remove the folder, "
            "and load the newest save if there is one"
        )

    def _header(self) -> dict[str, Any]:
        if len(self._memory) < TAIL_BYTES:
            raise self.damaged(f"has {len(self._memory):,} bytes, {TAIL_BYTES:,} are the least")
        header = self._memory[-TAIL_BYTES:-COMMITS_BYTES]
        magic, version, size, crc = HEAD.unpack_from(header)
        if magic != MAGIC:
            raise self.damaged("has no header of a kept table at its end")
        text = bytes(header[HEAD.size : HEAD.size + size])
        if crc32(text, version) != crc:
            raise self.damaged("its header does not have the checksum that it states")
        if version != FORMAT:
            raise ConfigError(
                f"{self.path} is of format {version}, and this version reads {FORMAT}: use the "
                "version that wrote it, or name another folder"
            )
        about: dict[str, Any] = json.loads(text)
        whole = places_behind(about["nbytes"], about["rows"])["end"]
        if whole != len(self._memory):
            raise self.damaged(f"has {len(self._memory):,} bytes, its header says {whole:,}")
        return about

    def _newest(self) -> Commit:
        found = []
        for at in (0, COPY_AT):
            body = opened(self.commits[at:], COMMIT.size + PRODUCER.size)
            if body is not None:
                found.append(Commit._make((*COMMIT.unpack_from(body), body[COMMIT.size :])))
        (done,) = NUMBER.unpack_from(self.commits, DONE_AT)
        newest = max(found, default=None)
        if newest is None or newest.number < done:
            raise self.damaged(f"commit {done} does not have the checksum that it states")
        return newest

    def _slots(self) -> dict[bytes, tuple[int, int, int]]:
        """Return the slot and the position of each producer, by its key."""
        slots = np.frombuffer(self.producers, np.uint8).reshape(PRODUCERS, SLOT_BYTES)
        found, newest = {}, self.commit
        for slot in {*np.flatnonzero(slots.any(1)).tolist(), newest.slot} - {-1}:
            raw = self.producers[slot * SLOT_BYTES :]
            body = newest.producer if slot == newest.slot else opened(raw, PRODUCER.size)
            if body is None:
                raise self.damaged(f"the position of producer {slot} has a wrong checksum")
            key, applied, done = PRODUCER.unpack(body)
            found[key] = (slot, applied, done)
        return found

    def streams(self) -> dict[Hashable, int]:
        """Return the numbers of the streams whose marks are set."""
        found: dict[Hashable, int] = {}
        for number in np.flatnonzero(self.marks != -1).tolist():
            raw = bytes(self.names[number * NAME_BYTES : (number + 1) * NAME_BYTES])
            size = min(int.from_bytes(raw[:2], "little"), LONGEST_NAME)
            body = opened(raw, 2 + size)
            if body is None:
                raise self.damaged(f"the name of stream {number} has a wrong checksum")
            found[name_of(json.loads(body[2:]))] = number
        return found


def places_behind(nbytes: int, rows: int) -> dict[str, int]:
    """Return where each page begins behind ``nbytes`` of rows, and the bytes of the file."""
    found, end = {}, nbytes
    for name, size in (
        ("columns", 5 * 8 * rows),
        ("marks", 8 * STREAMS),
        ("names", NAME_BYTES * STREAMS),
        ("words", mmap.PAGESIZE),
        ("producers", SLOT_BYTES * PRODUCERS),
        ("tail", TAIL_BYTES),
    ):
        found[name] = end
        end += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    return found | {"end": end}


def size_of(path: Path, fd: int) -> int:
    """Return the bytes of a file. Raises CorruptCheckpoint for none."""
    if not (size := os.fstat(fd).st_size):
        raise CorruptCheckpoint(f"{path}: is empty: remove it")
    return size


def read(path: Path) -> Pages:
    """Read the pages of a file without changing it. Raises CorruptCheckpoint, ConfigError."""
    with open(path, "rb") as file:
        size = size_of(path, file.fileno())
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
        len(pages.streams()), len(pages.slots), in_use(path.parent),
    )  # fmt: skip
