"""Every call that changes a file system, one method each, so that a test
can make any of them fail.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from async_loader.interrupts import SignalsDeferred


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
