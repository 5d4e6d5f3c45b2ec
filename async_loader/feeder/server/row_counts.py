"""A count that outlives its process: rows that went into a table, in a file that is mapped.

# NOTE [counts that outlive a kill]
A process that is killed says nothing more. What it wrote to a shared mapping stays with the kernel,
so the next process reads how far the killed one was, and names what its checkpoint does not have.
The count is written before rows are acknowledged, so it is never too small: rows whose
acknowledgement was on its way are in it. After a power cut it may be an older one.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from pathlib import Path

from async_loader.errors import ConfigError

_FORMAT = struct.Struct("<8sQ")
_MAGIC = b"al-rows1"


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
            there = os.pread(self._fd, _FORMAT.size + 1, 0)
            self.before = _read(there, path)
            os.ftruncate(self._fd, _FORMAT.size)
            self._map = mmap.mmap(self._fd, _FORMAT.size)
        except BaseException:
            os.close(self._fd)
            raise
        self._said = -1

    def note(self, rows: int) -> None:
        """Write the count, if it has changed. Cheap."""
        if rows != self._said:
            _FORMAT.pack_into(self._map, 0, _MAGIC, rows)
            self._said = rows

    def close(self) -> None:
        """Release the file. May be called again."""
        if not self._map.closed:
            self._map.close()
            os.close(self._fd)


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigError(
            f"{path.parent} has the checkpoints of another feeder, which runs: name another folder "
            "in checkpoint.path, or end that one"
        ) from None


def _read(there: bytes, path: Path) -> int | None:
    if not there or there == bytes(_FORMAT.size):
        return None
    if len(there) != _FORMAT.size or not there.startswith(_MAGIC):
        raise ConfigError(f"{path} is no count of rows: remove it, or name another folder")
    rows: int = _FORMAT.unpack(there)[1]
    return rows
