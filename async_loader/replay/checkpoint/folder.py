"""The folder of a checkpoint, and the saves in it.

::

    path/save-00000001/manifest.json, data.bin     one folder per save; numbers count up
    path/tmp-...                                   what a save that was killed has left
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from async_loader.errors import CorruptCheckpoint
from async_loader.interrupts import SignalsDeferred
from async_loader.replay.checkpoint.manifest import Manifest


class Descriptor:
    """An open file or folder, which is closed with this object at the latest, also if Ctrl-C
    interrupts its user.

    Parameters
    ----------
    open_ : callable
        Opens it, and returns its descriptor.
    close : callable
        Closes it, given the descriptor.
    """

    def __init__(self, open_: Callable[[], int], close: Callable[[int], None] = os.close) -> None:
        self._close, self.fd = close, -1
        with SignalsDeferred():  # an interrupted call would leave a descriptor that no object owns
            self.fd = open_()

    def close(self) -> None:
        """Close the descriptor. May be called again."""
        with SignalsDeferred():  # closed twice, a number may be another thread's descriptor by then
            fd, self.fd = self.fd, -1
            if fd < 0:
                return
            try:
                self._close(fd)
            except BaseException:
                # a test's error, or one that has closed it all the same
                with contextlib.suppress(OSError):
                    os.close(fd)
                raise

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing() and hasattr(self, "fd"):
            self.close()


class Disk:
    """The file system. See the functions of `os`, whose errors these methods raise."""

    def make_folder(self, path: Path) -> None:
        os.mkdir(path)

    def create(self, path: Path) -> int:
        """Create a file for writing. Return its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, fd: int, data: memoryview) -> int:
        """Write some of the bytes. Return how many."""
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def sync_folder(self, path: Path) -> None:
        """Make the changes of names in a folder durable."""
        folder = Descriptor(lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            os.fsync(folder.fd)
        finally:
            folder.close()

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove_file(self, path: Path) -> None:
        os.unlink(path)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        os.rmdir(path)


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
