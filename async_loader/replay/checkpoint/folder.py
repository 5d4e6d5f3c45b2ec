"""The folder of a checkpoint: which saves lie in it. Changes nothing.

::

    path/save-00000001/manifest.json, data.bin     one folder per save; numbers count up
    path/tmp-...                                   what a save that was killed has left
"""

from __future__ import annotations

import re
from pathlib import Path

from async_loader.errors import CorruptCheckpoint
from async_loader.replay.checkpoint.manifest import Manifest

MANIFEST, DATA = "manifest.json", "data.bin"
TEMPORARY = "tmp-"
_SAVE = re.compile(r"save-(\d{8,})")


def name_of(number: int) -> str:
    """The folder of a save."""
    return f"save-{number:08}"


def saves(root: Path) -> list[int]:
    """Numbers of the saves that are there, in order."""
    if not root.is_dir():
        return []
    return sorted(int(found[1]) for path in root.iterdir() if (found := _SAVE.fullmatch(path.name)))


def leftovers(root: Path) -> list[Path]:
    """What saves that were killed have left."""
    return [path for path in root.iterdir() if path.name.startswith(TEMPORARY)]


def manifest_of(root: Path, number: int) -> Manifest:
    """Of one save.

    Raises
    ------
    CorruptCheckpoint
        Names the file.
    """
    file = root / name_of(number) / MANIFEST
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        raise CorruptCheckpoint(f"{file}: is missing") from None
    found = Manifest.of(raw, file)
    if found.number != number:
        raise CorruptCheckpoint(f"{file}: is that of save {found.number}: folders were renamed")
    return found


def chain_of(root: Path, number: int) -> list[Manifest]:
    """A save and all that it rests on, the full one first; their data files have the right sizes.

    Raises
    ------
    CorruptCheckpoint
        Names the file.
    """
    newest = manifest_of(root, number)
    chain = []
    for before, crc32 in newest.chain:
        one = manifest_of(root, before)
        if one.crc32 != crc32:
            raise CorruptCheckpoint(
                f"{root / name_of(before) / MANIFEST}: is not the one that save {number} rests on"
            )
        chain.append(one)
    chain.append(newest)
    for one in chain:
        file = root / name_of(one.number) / DATA
        if not file.is_file():
            raise CorruptCheckpoint(f"{file}: is missing")
        if file.stat().st_size != one.nbytes:
            raise CorruptCheckpoint(
                f"{file}: has {file.stat().st_size:,} bytes, and its manifest says {one.nbytes:,}"
            )
    return chain
