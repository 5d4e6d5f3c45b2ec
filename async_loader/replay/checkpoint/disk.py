"""Every call that changes a file system, one method each, so that a test can let any of them fail.

Decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from async_loader.interrupts import SignalsDeferred


class Descriptor:
    """An open file or folder, which is closed with this object at the latest: also where Ctrl-C
    cuts its user.

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
        """May be called again."""
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
    """The file system. See the methods of `os`, whose errors these raise."""

    def make_folder(self, path: Path) -> None:
        os.mkdir(path)

    def create(self, path: Path) -> int:
        """A new file, to be written to; its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, fd: int, data: memoryview) -> int:
        """Write some of it; how many bytes."""
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def sync_folder(self, path: Path) -> None:
        """Make what was created, renamed and removed in a folder last."""
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
        """Of an empty folder."""
        os.rmdir(path)
