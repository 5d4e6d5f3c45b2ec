"""A folder that one process at a time has: kept tables, and the checkpoints of a feeder."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from async_loader.errors import ConfigError
from async_loader.process_hooks import at_fork

_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class FolderLock:
    """Has the folder until `close`, or until the process ends, however it does.

    A forked child does not have it. Threads: any.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    remedy : str
        What to do where another process has it, as in "name another folder with --checkpoint".

    Raises
    ------
    ConfigError
        If another process, or another lock of this one, has the folder.
    """

    def __init__(self, folder: Path, remedy: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        fd = _opened(folder)
        self._let_go = weakref.finalize(self, _let_go, fd, os.getpid())
        self._let_go.atexit = False
        if not _locked(fd):
            self.close()
            raise ConfigError(
                f"{folder} is in use by another process, or by this one: end that one, or {remedy}"
            )
        _held.add(self)

    def close(self) -> None:
        """Let go of the folder. May be called again."""
        self._let_go()


def in_use(folder: Path) -> bool:
    """Return whether a process has the folder."""
    fd = _opened(folder)
    try:
        return not _locked(fd)
    finally:
        os.close(fd)


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _let_go(fd: int, pid: int) -> None:
    """Unlock, also if a forked child has not closed its copy yet; in a fork only close that."""
    if os.getpid() == pid:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _locked(fd: int) -> bool:
    import fcntl  # Windows has none

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _after_fork_in_child() -> None:
    for one in tuple(_held):
        one.close()


at_fork(after_in_child=_after_fork_in_child)
