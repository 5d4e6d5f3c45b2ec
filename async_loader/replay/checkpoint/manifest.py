"""One save: the text of its manifest.json, and its blocks, which are checked as they are read."""

from __future__ import annotations

import json
import os
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from async_loader.errors import ConfigError, CorruptCheckpoint
from async_loader.replay.arguments import positive
from async_loader.replay.array_types import Bytes
from async_loader.validation import path_of

FORMAT = 4
MANIFEST, DATA = "manifest.json", "data.bin"
_HEAD, _TAIL = '{"crc32":"%08x","manifest":', "}\n"


class Block(NamedTuple):
    """A block of a data file.

    Attributes
    ----------
    kind : "rows" | "column" | "ring"
        Rows; what the table alone knows about each row; or compressed values.
    nbytes, crc32 : int
    about : dict
        For rows: ``count`` rows from ``start`` on, or listed at the beginning where ``start`` is
        null. For a column: its ``name``. For a ring: the position at which it ``start``s.
    """

    kind: str
    nbytes: int
    crc32: int
    about: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of one save.

    Attributes
    ----------
    number : int
        Counts up within a folder.
    settings : dict
        What the table was made with.
    table : dict | None
        Its schema, counters and streams; ``None`` if there was no step yet.
    samplers : dict
        States by role; of the views of sequences as a list.
    blocks : list of Block
        Of the data file, in order. A later block replaces earlier ones.
    """

    number: int
    settings: dict[str, Any]
    table: dict[str, Any] | None
    samplers: dict[str, Any]
    blocks: list[Block]

    @property
    def nbytes(self) -> int:
        """Bytes of the data file."""
        return sum(block.nbytes for block in self.blocks)

    def text(self) -> str:
        """Return the text of manifest.json."""
        values = {name: getattr(self, name) for name in self.__slots__}
        body = json.dumps({"format": FORMAT, "byteorder": sys.byteorder, **values})
        return _HEAD % zlib.crc32(body.encode()) + body + _TAIL

    @classmethod
    def read(cls, file: Path) -> Manifest:
        """Read a manifest.json.

        Raises
        ------
        CorruptCheckpoint
            Names the file and says what is wrong with it.
        FileNotFoundError
        """
        raw = file.read_bytes()
        body = raw[len(_HEAD % 0) : -len(_TAIL)]
        if raw != (_HEAD % zlib.crc32(body)).encode() + body + _TAIL.encode():
            raise CorruptCheckpoint(
                f"{file}: its text does not have the checksum that it states: it was changed or "
                "cut off"
            )
        try:
            saved = json.loads(body)
            version, order = saved.pop("format"), saved.pop("byteorder")
            if version != FORMAT:
                raise CorruptCheckpoint(
                    f"{file}: is of format {version}, and this version reads {FORMAT}: load it "
                    "with the version that wrote it"
                )
            if order != sys.byteorder:
                raise CorruptCheckpoint(
                    f"{file}: was written on a {order}-endian machine, and this one is "
                    f"{sys.byteorder}-endian"
                )
            saved["blocks"] = [Block(*block) for block in saved["blocks"]]
            return cls(**saved)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CorruptCheckpoint(
                f"{file}: this is no manifest of a checkpoint: {error!r}"
            ) from error


_SAVE = re.compile(r"save-(\d{8,})")


def folder_name(number: int) -> str:
    """Return the name of a save's folder."""
    return f"save-{number:08}"


def saves(root: Path) -> list[int]:
    """Return the numbers of the saves in order."""
    names = os.listdir(root) if root.is_dir() else []
    return sorted(int(found[1]) for name in names if (found := _SAVE.fullmatch(name)))


class Checkpoint:
    """One save, whose data file is open until `close`: what is dropped then does not matter.

    Raises
    ------
    CorruptCheckpoint
        Names the file and what is wrong with it.
    FileNotFoundError
    """

    def __init__(self, root: Path, number: int) -> None:
        self.manifest = Manifest.read(root / folder_name(number) / MANIFEST)
        if self.manifest.number != number:
            raise CorruptCheckpoint(
                f"{root / folder_name(number) / MANIFEST}: is that of save {self.manifest.number}: "
                "folders were renamed"
            )
        self._path = root / folder_name(number) / DATA
        self._file = open(self._path, "rb")  # noqa: SIM115 (closed by `close`)

    @classmethod
    def find(cls, path: str | os.PathLike[str], number: int | None) -> Checkpoint:
        """Open the newest save in a folder, or save ``number``.

        Raises
        ------
        ConfigError
            If there is no checkpoint.
        CorruptCheckpoint
            Names the file, and what is wrong with it.
        """
        root = Path(path_of("path", path)).absolute()
        if number is not None:
            number = positive("number", number)
        there = saves(root)
        if not there:
            raise ConfigError(f"{root}: there is no checkpoint in this folder")
        wanted = there[-1] if number is None else number
        if wanted not in there:
            raise ConfigError(
                f"{root}: there is no save {wanted} in this folder, only "
                f"{', '.join(map(str, there))}"
            )
        try:
            return cls(root, wanted)
        except FileNotFoundError as error:
            raise CorruptCheckpoint(
                f"{error.filename}: is missing; if others save to this folder, load again"
            ) from None

    def close(self) -> None:
        """Close the file. May be called again."""
        self._file.close()

    def blocks(self, *kinds: str) -> Iterator[tuple[dict[str, Any], Bytes]]:
        """Yield what the manifest says about the blocks of some kinds, and their bytes, checked."""
        start = 0
        for block in self.manifest.blocks:
            if block.kind in kinds:
                self._file.seek(start)
                raw = self._file.read(block.nbytes)
                if len(raw) != block.nbytes or zlib.crc32(raw) != block.crc32:
                    raise CorruptCheckpoint(
                        f"{self._path}: bytes {start:,} to {start + block.nbytes:,} do not have "
                        "the checksum that the manifest states: the file was changed after it was "
                        "written, or the disk is failing"
                    )
                yield block.about, np.frombuffer(raw, np.uint8)
            start += block.nbytes
        self._file.seek(start)
        if self._file.read(1):
            raise CorruptCheckpoint(
                f"{self._path}: has more than the {start:,} bytes that its manifest says"
            )
