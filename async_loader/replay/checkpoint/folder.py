"""The folder of a checkpoint, and the saves in it.

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
    """Return the name of a save's folder."""
    return f"save-{number:08}"


def saves(root: Path) -> list[int]:
    """Return the numbers of the saves in order."""
    if not root.is_dir():
        return []
    return sorted(int(found[1]) for path in root.iterdir() if (found := _SAVE.fullmatch(path.name)))


def leftovers(root: Path) -> list[Path]:
    """Return the temporary folders that killed saves have left."""
    return [path for path in root.iterdir() if path.name.startswith(TEMPORARY)]


def manifest_of(root: Path, number: int) -> Manifest:
    """Read the manifest of one save.

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
    """Return a save and all that it builds on, the full one first, after checking the sizes of
    their data files.

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
