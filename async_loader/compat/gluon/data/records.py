"""Items of a RecordIO file, as written by mxnet's tools. Images are not decoded.

A record is a magic word, a word with a kind (3 bits) and a length (29 bits), and the data, filled
up to a multiple of four bytes; all little-endian. Data that contains the magic word at a multiple
of four is cut there into several records.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from typing import Any

from async_loader.compat.gluon.data.dataset import Dataset
from async_loader.errors import ConfigError

_MAGIC = struct.pack("<I", 0xCED7230A)
_HEAD = struct.Struct("<4sI")
_WHOLE, _LAST = 0, 3
_LENGTH_BITS = 29


class RecordFileDataset(Dataset):
    """The records of ``name.rec`` as bytes, in the order of ``name.idx``.

    Any number of processes and threads may read at the same time: reads do not move a file
    position.

    Parameters
    ----------
    filename : str
        The ``.rec`` file; the ``.idx`` file is beside it.

    Raises
    ------
    FileNotFoundError
    ConfigError
        If the index is invalid, or a record is not at its position.
    """

    def __init__(self, filename: str | os.PathLike[str]) -> None:
        self.filename = os.fspath(filename)
        self.idx_file = os.path.splitext(self.filename)[0] + ".idx"
        self._starts = _starts(self.idx_file)
        self._fd = os.open(self.filename, os.O_RDONLY)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, idx: Any) -> bytes:
        parts, at = [], self._starts[idx]
        while True:
            kind, part, at = self._record(at)
            parts.append(part)
            if kind in (_WHOLE, _LAST):
                return _MAGIC.join(parts)

    def _record(self, at: int) -> tuple[int, bytes, int]:
        """Return kind and data of the record at this position, and the position of the next."""
        head = os.pread(self._fd, _HEAD.size, at)
        magic, word = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0)
        if magic != _MAGIC:
            raise ConfigError(
                f"{self.filename} has no record at byte {at}: {self.idx_file} belongs to another "
                "file, or it was cut"
            )
        length = word & ((1 << _LENGTH_BITS) - 1)
        data = os.pread(self._fd, length, at + _HEAD.size)
        if len(data) < length:
            raise ConfigError(
                f"{self.filename} ends within the record at byte {at}: {len(data)} of {length} "
                "bytes are there"
            )
        return word >> _LENGTH_BITS, data, at + _HEAD.size + -(-length // 4) * 4

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fd": -1}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fd = os.open(self.filename, os.O_RDONLY)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing() and getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)


def _starts(path: str) -> list[int]:
    """Return the positions of the records: the second word of each line."""
    with open(path) as lines:
        words = [line.split() for line in lines if line.strip()]
    try:
        return [int(start) for _, start in words]
    except ValueError as error:
        raise ConfigError(
            f"{path} is not an index of records: a line is a key, a tab and a file position"
        ) from error
