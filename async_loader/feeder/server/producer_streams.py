"""The streams of one producer, where it was at a save, and the memory that it shares.

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

import fcntl
import json
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError, CorruptCheckpoint, Malformed
from async_loader.feeder.shared import Offer
from async_loader.feeder.wire import STREAMS, Insert, RowLayout, SlotInsert
from async_loader.replay.table.nonblocking_table import NonblockingTable
from async_loader.shm.segment import Segment

FILE = "producers.json"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a producer was.

    Attributes
    ----------
    key : bytes
    epoch, applied : int
        Inserts below ``applied`` were in the table.
    done : int
        Rows of insert ``applied`` that were in the table, as not all of them had room.
    """

    key: bytes
    epoch: int
    applied: int
    done: int = 0


class Positions:
    """Notes of one save. Used in the server's loop.

    Parameters
    ----------
    now : iterable of Position
        At the save's begin.
    """

    def __init__(self, now: Iterable[Position]) -> None:
        self._begin = {one.key: one for one in now}
        self._notes: list[tuple[int, Position]] = []

    def note(self, rows: int, position: Position) -> None:
        """Note a position, and how many rows the table has had when it was reached."""
        self._notes.append((rows, position))

    def at(self, rows: int) -> list[Position]:
        """Return the positions when the table had had that many rows."""
        found = dict(self._begin)
        found.update((one.key, one) for had, one in self._notes if had <= rows)
        return list(found.values())


def encode(positions: Iterable[Position]) -> bytes:
    """Return the text of a file."""
    lines = [[one.key.hex(), one.epoch, one.applied, one.done] for one in positions]
    return json.dumps(lines, separators=(",", ":")).encode()


def read(folder: Path) -> list[Position]:
    """Return the positions in the folder of a save; none if it has no file of them.

    Raises
    ------
    CorruptCheckpoint
    """
    try:
        text = (folder / FILE).read_bytes()
    except FileNotFoundError:
        return []
    try:
        return [
            Position(bytes.fromhex(key), int(epoch), int(applied), int(done))
            for key, epoch, applied, done in json.loads(text)
        ]
    except (ValueError, TypeError) as error:
        raise CorruptCheckpoint(f"{folder / FILE}: it has no positions: {error}") from None


_UNUSED = -1
Numbers = npt.NDArray[np.int64]


class ProducerStreams:
    """Table streams by the producer's own numbers.

    Parameters
    ----------
    key : bytes
        Of the producer.
    table : NonblockingTable
    """

    def __init__(self, key: bytes, table: NonblockingTable) -> None:
        self._key, self._table = key.hex(), table
        self._numbers: Numbers = np.empty(0, np.int64)

    def of(self, said: npt.NDArray[np.uint32]) -> Numbers:
        """Return the table's streams; new ones are added.

        Raises Malformed for a number too high.
        """
        most = int(said.max())
        if most >= len(self._numbers):
            if most >= STREAMS:
                text = f"a row is of stream {most}, a producer has at most {STREAMS}"
                raise Malformed(f"{text}: number streams from 0")
            more = np.full(max(most + 1, 2 * len(self._numbers)), _UNUSED, np.int64)
            more[: len(self._numbers)] = self._numbers
            self._numbers = more
        numbers = self._numbers[said]
        if (numbers < 0).any():
            for one in np.unique(said[numbers < 0]).tolist():
                self._numbers[one] = self._table.stream((self._key, one))
            numbers = self._numbers[said]
        return numbers

    def _used(self) -> list[int]:
        return [int(one) for one in self._numbers if one != _UNUSED]

    def end(self) -> None:
        """End the open episodes."""
        self._table.end(self._used())

    def release(self) -> None:
        """End the open episodes and let the table forget the streams."""
        used = self._used()
        self._table.end(used)
        self._table.release(used)

    def release_ended(self) -> None:
        """Let the table forget the streams whose episodes have ended."""
        if not len(self._numbers):
            return
        left = self._numbers.copy()
        for one in np.flatnonzero(left != _UNUSED):
            if not self._table.is_open(int(left[one])):
                left[one] = _UNUSED
        self._table.release(self._numbers[self._numbers != left].tolist())
        self._numbers = left if (left != _UNUSED).any() else np.empty(0, np.int64)

    def renumber(self) -> dict[int, int]:
        """Forget the table's numbers, which a load has changed.

        Return own numbers by the old ones.
        """
        before = {
            number: said for said, number in enumerate(self._numbers.tolist()) if number != _UNUSED
        }
        self._numbers = np.empty(0, np.int64)
        return before


class InsertSlots:
    """Slots that the writer fills. It fills one again when the INSERT in it is acknowledged.

    Parameters
    ----------
    segment : Segment
        Closed with the slots. Rows that wait for their table keep the memory.
    offer : Offer
    """

    def __init__(self, segment: Segment, offer: Offer) -> None:
        self._segment, self._offer = segment, offer

    def insert(self, body: SlotInsert, layout: RowLayout) -> Insert:
        """Return the INSERT with its frames: the large ones as views of the slot.

        What is checked before it is used, small fields and bools, is copied: the writer's process
        could change it in between.

        Raises
        ------
        Malformed
            If there is no such slot, or the rows do not fit into one.
        """
        slots, slot_bytes = self._offer.slots, self._offer.slot_bytes
        if body.slot >= slots:
            raise Malformed(f"INSERT names slot {body.slot}, this writer has {slots}")
        places, nbytes = layout.slot_places(body.capacity)
        if nbytes > slot_bytes:
            raise Malformed(
                f"{body.capacity} rows take {nbytes} bytes, a slot of this writer has {slot_bytes}"
            )
        begin = body.slot * slot_bytes
        frames = [
            self._segment.view(begin + place, size)
            for place, size in zip(places, layout.sizes(body.rows), strict=True)
        ]
        frames[0] = memoryview(bytes(frames[0]))
        for frame, i in enumerate(layout.large, 1):
            if i in layout.bools:
                frames[frame] = memoryview(bytes(frames[frame]))
        return Insert(body.rows, frames)

    def close(self) -> None:
        """Unmap the memory, once no row in it waits. May be called again."""
        self._segment.close()


_FORMAT = struct.Struct("=8sQQ")
_MAGIC = b"al-rows2"


class RowCount:
    """The count of one table. It is locked: one process at a time has it.

    Parameters
    ----------
    path : Path
        Made if it is not there, with its folder.

    Attributes
    ----------
    before : int | None
        What the last process wrote; ``None`` if there was none.
    lost : int
        Rows that were lost in sum, over all processes.

    Raises
    ------
    ConfigError
        If another process has it, or the file is something else.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._fd, path)
            self.before, self.lost = _read(os.pread(self._fd, _FORMAT.size + 1, 0), path)
        except BaseException:
            os.close(self._fd)
            raise
        self._said = -1

    def note(self, rows: int) -> None:
        """Write the count, if it has changed. Cheap."""
        if rows != self._said:
            os.pwrite(self._fd, _FORMAT.pack(_MAGIC, rows, self.lost), 0)
            self._said = rows

    def begin(self, rows: int, lost: int) -> None:
        """Write what this process begins with, and what it has found to be ``lost``."""
        self.lost += lost
        self.note(rows)

    def close(self) -> None:
        """Release the file. May be called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigError(
            f"{path.parent} has the checkpoints of another feeder, which runs: name another folder "
            "in checkpoint.path, or end that one"
        ) from None


def _read(there: bytes, path: Path) -> tuple[int | None, int]:
    """Return the rows and the losses."""
    if not there.strip(b"\0"):
        return None, 0
    if len(there) != _FORMAT.size or not there.startswith(_MAGIC):
        raise ConfigError(f"{path} is no count of rows: remove it, or name another folder")
    _, rows, lost = _FORMAT.unpack(there)
    return rows, lost
