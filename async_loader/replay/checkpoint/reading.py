"""Reads a save block by block, and checks each block first."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from async_loader.errors import ConfigError, CorruptCheckpoint, Timeout
from async_loader.replay.arguments import positive
from async_loader.replay.array_types import Bytes
from async_loader.replay.checkpoint.manifest import DATA, MANIFEST, Manifest
from async_loader.replay.checkpoint.writing import folder_name, saves
from async_loader.validation import path_of

_TRIES = 100


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

        # NOTE [loading while others save]
        A save is whole as soon as its folder has its name, and is dropped only when a newer one is
        there. So a file that is missing, of a folder in which a newer save has come meanwhile, says
        that the newest is another by now; it is looked for anew.

        Raises
        ------
        ConfigError
            If there is no checkpoint.
        CorruptCheckpoint
            Names the file, and what is wrong with it.
        Timeout
            Newer saves came again and again while the newest was being opened.
        """
        root = Path(path_of("path", path)).absolute()
        if number is not None:
            number = positive("number", number)
        for _ in range(_TRIES):
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
                if saves(root) == there:
                    raise CorruptCheckpoint(f"{error.filename}: is missing") from None
        raise Timeout(
            f"{root}: newer saves came {_TRIES} times while the newest was being opened: load again"
        )

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
