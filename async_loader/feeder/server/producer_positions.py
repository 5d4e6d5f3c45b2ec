"""How far the producers of a table were at the moment that a save shows.

# NOTE [positions of a save]
A save is cut at some moment, on a thread beside the loop. An insert that was in the table by then
and was not acknowledged would come again after a restart, and be stored twice. So each save holds,
beside the table, how many inserts of each producer it has. While a save runs, the loop notes after
each insert how many rows the table has had, and the save takes the last note at or below its own
number of rows. A row between the insert and its note is impossible: the notes are read in the loop.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from async_loader.errors import CorruptCheckpoint

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
