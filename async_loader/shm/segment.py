"""A block of memory, or of a disk, that processes share: a memfd, or a file without a name, so
that nothing is left behind.

What travels to another process is the file descriptor, and the kernel frees the pages with the
last of them.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from multiprocessing import reduction
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError, OutOfMemory
from async_loader.process_hooks import SignalsDeferred
from async_loader.shm import hugepages
from async_loader.shm.limits import available_bytes, human
from async_loader.validation import require_linux

_MUCH = 64 << 20  # bytes of a batch, from which on its memory is checked first


class Segment:
    """Create with `create`, attach by unpickling in a process that is being spawned,
    or with `attach`.

    Parameters
    ----------
    fd : int
        Owned by the segment from here on, even if mapping it fails.
    nbytes : int

    Notes
    -----
    The segment alone owns the descriptor. No other code closes its number, which may belong to
    another file afterwards.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self._fd = fd
        self._map: Any = None
        self.nbytes = nbytes
        self._mapped()

    def _mapped(self) -> None:
        try:
            self._map = hugepages.aligned(self._fd, self.nbytes) or mmap.mmap(self._fd, self.nbytes)
        except BaseException:
            self.close()
            raise

    @classmethod
    def _unmapped(cls, nbytes: int, folder: str | None = None) -> Segment:
        segment = cls.__new__(cls)
        segment._map, segment.nbytes = None, nbytes
        with SignalsDeferred():  # an interrupted call would leave a descriptor that no object owns
            if folder is None:
                require_linux("shared memory")
                flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
                segment._fd = os.memfd_create("async_loader", flags)
            else:
                segment._fd = _nameless_file(folder)
        return segment

    @classmethod
    def create(cls, nbytes: int, purpose: str, *, commit: bool = True) -> Segment:
        """Create a zeroed segment.

        Parameters
        ----------
        nbytes : int
        purpose : str
            Its use, for the error message: "4 batch slots".
        commit : bool
            Allocate the pages now, so that a later write cannot fail. Otherwise they are allocated
            on first write, which suits a large table that fills slowly.

        Raises
        ------
        OutOfMemory
            If it would not fit into the free memory of the machine or of this process's cgroup.
        """
        check_fits(nbytes, purpose)
        segment = cls._unmapped(nbytes)
        try:
            if commit:
                os.posix_fallocate(segment._fd, 0, nbytes)
            else:
                os.ftruncate(segment._fd, nbytes)
            segment._mapped()
            return segment
        except BaseException as error:
            segment.close()
            if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            raise OutOfMemory(
                f"{purpose}: {human(nbytes)} of shared memory could not be taken: {error}"
            ) from error

    @classmethod
    def attach(cls, fd: int, nbytes: int) -> Segment:
        """Map a segment whose descriptor was received from another process."""
        return cls(fd, nbytes)

    @classmethod
    def on_disk(cls, folder: str, nbytes: int, purpose: str) -> Segment:
        """Create a zeroed segment in a file without a name, on the disk of a folder.

        The room is taken now: a write to a mapped file cannot say that the disk is full.

        Raises
        ------
        OutOfMemory
            If the disk has no room for it.
        ConfigError
            If no file can be made in the folder.
        """
        there = os.statvfs(folder)
        free = there.f_bavail * there.f_frsize
        if nbytes > free:
            raise OutOfMemory(
                f"{purpose}: needs {human(nbytes)} on the disk of {folder!r}, where {human(free)} "
                "are free: lower the capacity, or give the path of a folder on a larger disk"
            )
        segment: Segment | None = None
        try:
            segment = cls._unmapped(nbytes, folder)
            os.posix_fallocate(segment._fd, 0, nbytes)
            segment._mapped()
            return segment
        except BaseException as error:
            if segment is not None:
                segment.close()
            if not isinstance(error, OSError):
                raise
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise OutOfMemory(
                    f"{purpose}: {human(nbytes)} of the disk of {folder!r} could not be taken: "
                    f"{error}"
                ) from error
            raise ConfigError(f"path={folder!r}: no file can be made there: {error}") from error

    def bytes(self, offset: int = 0, count: int | None = None) -> npt.NDArray[np.uint8]:
        """A fresh array on the mapping. Fresh matters: a finalizer on it sees every view made of it
        (and only those).
        """
        return np.frombuffer(
            self._map, np.uint8, self.nbytes - offset if count is None else count, offset
        )

    def view(self, offset: int = 0, count: int | None = None) -> memoryview:
        """Return the same bytes for writing by slices."""
        return memoryview(self._map).cast("B")[offset : None if count is None else offset + count]

    def fileno(self) -> int:
        return self._fd

    def seal(self) -> None:
        """Forbid any change of its size, so that a process that maps it need not trust the one that
        made it.
        """
        import fcntl  # Windows has none

        fcntl.fcntl(
            self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )

    def close(self) -> None:
        """Close the descriptor. The mapping goes with the last array on it."""
        if self._fd >= 0:
            fd, self._fd, mapped, self._map = self._fd, -1, self._map, None
            os.close(fd)
            if isinstance(mapped, mmap.mmap):
                with contextlib.suppress(BufferError):
                    mapped.close()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing() and getattr(self, "_fd", -1) >= 0:
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach_duplicate, (reduction.DupFd(self._fd), self.nbytes)


def _attach_duplicate(duplicate: Any, nbytes: int) -> Segment:
    return Segment.attach(duplicate.detach(), nbytes)


def close_all(fds: Iterable[int]) -> None:
    """Close received descriptors that no segment owns."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def check_fits(nbytes: int, purpose: str) -> None:
    """Raise OutOfMemory, with both numbers and a remedy, if ``nbytes`` would not fit."""
    available = available_bytes()
    if nbytes > available:
        raise OutOfMemory(
            f"{purpose}: needs {human(nbytes)}, {human(available)} are available: "
            "lower the capacity, batch_size or prefetch, or give the process more memory"
        )


def check_batch_fits(nbytes: int, purpose: str) -> None:
    """As `check_fits`, for a batch: a small one is made in less time than the check takes."""
    if nbytes > _MUCH:
        check_fits(nbytes, purpose)


def _nameless_file(folder: str) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    if hasattr(os, "O_TMPFILE"):
        try:
            return os.open(folder, flags | os.O_TMPFILE, 0o600)
        except OSError as error:  # not every file system has them
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
    fd, name = tempfile.mkstemp(prefix=".async_loader-", dir=folder)
    os.unlink(name)
    return fd
