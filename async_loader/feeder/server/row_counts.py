"""A count that outlives its process: rows that went into a table, in a file.

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
import os
import struct
from pathlib import Path

from async_loader.errors import ConfigError

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
