"""Reads a checkpoint block by block, and checks each block first."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from async_loader.errors import ConfigError, CorruptCheckpoint, Timeout
from async_loader.replay.arguments import positive
from async_loader.replay.array_types import Bools, Bytes, Ids
from async_loader.replay.checkpoint import folder
from async_loader.replay.checkpoint.manifest import Block, Manifest
from async_loader.validation import path_of

_TRIES = 100


def open_chain(path: str | os.PathLike[str], number: int | None) -> Checkpoint:
    """Open the newest save in a folder, or save ``number``, with all its files: other processes may
    save and drop meanwhile.

    # NOTE [loading while others save]
    A save is whole as soon as its folder has its name, and is dropped only when a newer one is
    there. So a file that is missing, of a folder in which a newer save has come meanwhile, says
    that the newest is another by now; it is looked for anew. From the moment on that all files of a
    chain are open, nothing that is dropped matters.

    Raises
    ------
    ConfigError
        If there is no checkpoint.
    CorruptCheckpoint
        Names the file, what is wrong with it, and the newest save that would load.
    Timeout
        Newer saves came again and again while the newest was being opened.
    """
    root = Path(path_of("path", path)).absolute()
    if number is not None:
        number = positive("number", number)
    for _ in range(_TRIES):
        there = folder.saves(root)
        if not there:
            raise ConfigError(f"{root}: there is no checkpoint in this folder")
        wanted = there[-1] if number is None else number
        if wanted not in there:
            raise ConfigError(
                f"{root}: there is no save {wanted} in this folder, only "
                f"{', '.join(map(str, there))}"
            )
        try:
            return Checkpoint(root, folder.chain_of(root, wanted))
        except (CorruptCheckpoint, FileNotFoundError) as error:
            if folder.saves(root) == there:
                found = (
                    error
                    if isinstance(error, CorruptCheckpoint)
                    else CorruptCheckpoint(f"{error.filename}: is missing")
                )
                raise with_remedy(found, root, wanted) from None
    raise Timeout(
        f"{root}: newer saves came {_TRIES} times while the newest was being opened: load again"
    )


def with_remedy(error: CorruptCheckpoint, root: Path, number: int) -> CorruptCheckpoint:
    """Add the newest older save that would load to the error."""
    for older in reversed([one for one in folder.saves(root) if one < number]):
        try:
            with Checkpoint(root, folder.chain_of(root, older)) as whole:
                whole.verify()
        except (CorruptCheckpoint, OSError):
            continue
        return CorruptCheckpoint(
            f"{error} (save {older} in the same folder is whole: load it with number={older})"
        )
    return CorruptCheckpoint(f"{error} (no older save in the same folder is whole)")


@dataclass(slots=True)
class RowBlock:
    """Rows of one save.

    Attributes
    ----------
    rows : int64 array
        Those that no later block has.
    parts : list of uint8 array [rows, bytes]
    """

    rows: Ids
    parts: list[Bytes]


def _unpacked(
    raw: memoryview,
    about: dict[str, Any],
    widths: Sequence[int],
    index: np.dtype[Any],
    seen: Bools,
    file: Path,
) -> RowBlock:
    """Split a block into rows, without those that a later one has: ``seen``, which is updated."""
    count, start = int(about["count"]), about["start"]
    end = 0 if start is not None else count * index.itemsize
    rows = (
        np.arange(start, start + count)
        if start is not None
        else np.frombuffer(raw[:end], index).astype(np.int64)
    )
    if end + count * sum(widths) != len(raw) or (
        count and not 0 <= rows.min() <= rows.max() < len(seen)
    ):
        raise CorruptCheckpoint(
            f"{file}: a block of {count} rows does not fit a table of {len(seen)}"
        )
    new = ~seen[rows]
    seen[rows] = True
    parts = []
    for width in widths:
        part = np.frombuffer(raw[end : end + count * width], np.uint8).reshape(count, width)
        parts.append(part if new.all() else part[new])
        end += count * width
    return RowBlock(rows[new], parts)


class Checkpoint:
    """A chain of saves, whose files are open until `close`.

    Parameters
    ----------
    root : Path
    chain : list of Manifest
        The full one first.
    """

    def __init__(self, root: Path, chain: list[Manifest]) -> None:
        self.root, self.chain, self.newest = root, chain, chain[-1]
        self._open = contextlib.ExitStack()
        self._files: dict[int, BinaryIO] = {}
        try:
            for one in chain:
                file = root / folder.name_of(one.number) / folder.DATA
                self._files[one.number] = self._open.enter_context(file.open("rb"))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files. May be called again."""
        self._open.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def verify(self) -> None:
        """Read all blocks. Raises CorruptCheckpoint."""
        for one in self.chain:
            for _ in self._blocks(one, ("rows", "column", "ring")):
                continue

    def columns(self) -> dict[str, Bytes]:
        """Return what the table of the newest save alone knew about its rows, as bytes."""
        found: dict[str, Bytes] = {}
        for one in self.chain:  # all of which are verified so
            for block, raw, _ in self._blocks(one, ("column",)):
                found[block.about["name"]] = np.frombuffer(raw, np.uint8)
        return found

    def ring(self) -> Iterator[tuple[int, Bytes]]:
        """Yield compressed values of all saves: the position of the first, and their bytes."""
        for one in self.chain:
            for block, raw, _ in self._blocks(one, ("ring",)):
                yield int(block.about["start"]), np.frombuffer(raw, np.uint8)

    def rows(self, widths: Sequence[int], count: int, index: np.dtype[Any]) -> Iterator[RowBlock]:
        """Yield each saved row once, the newest first: its bytes ``[rows, width]``, in parts of
        these widths.
        """
        seen = np.zeros(count, np.bool_)
        for one in reversed(self.chain):
            for block, raw, file in self._blocks(one, ("rows",), backwards=True):
                yield _unpacked(raw, block.about, widths, index, seen, file)

    def _blocks(
        self, one: Manifest, kinds: Sequence[str], *, backwards: bool = False
    ) -> Iterator[tuple[Block, memoryview, Path]]:
        """Yield checked blocks of these kinds."""
        file = self.root / folder.name_of(one.number) / folder.DATA
        ends = np.cumsum([block.nbytes for block in one.blocks]).tolist()
        listed = list(zip(one.blocks, ends, strict=True))
        opened = self._files[one.number]
        for block, end in reversed(listed) if backwards else listed:
            if block.kind in kinds:
                yield block, _checked(opened, block, end - block.nbytes, file), file


def _checked(opened: BinaryIO, block: Block, start: int, file: Path) -> memoryview:
    opened.seek(start)
    raw = opened.read(block.nbytes)
    if len(raw) != block.nbytes or zlib.crc32(raw) != block.crc32:
        raise CorruptCheckpoint(
            f"{file}: bytes {start:,} to {start + block.nbytes:,} do not have the checksum that "
            "the manifest states: the file was changed after it was written, or the disk is failing"
        )
    return memoryview(raw)
