"""The exception tree. It has one root; every message states the fact, the number and the remedy."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from async_loader.public_names import set_public_names

_REMEDIES = {
    errno.ENOSPC: "free some of the disk, or name a place on another one",
    errno.EDQUOT: "free some of your share of the disk, or name a place on another one",
    errno.EACCES: "give this user the right to it, or name another place",
    errno.EROFS: "name a place that can be written to",
    errno.ENOENT: "make the folder, or name another place",
    errno.EEXIST: "remove the file, or name another place",
    errno.ENOTDIR: "remove the file, or name another place",
    errno.EMFILE: "raise the limit of open files, as by ulimit -n 65536",
}


def explain(error: OSError, path: Path | None = None) -> str:
    """Return one line: the file if it is known, why it failed, and what to do.

    ``path``: of an error that names none, as those of writes.
    """
    if path is not None and error.filename is None:
        error.filename = str(path)
    names = [os.fsdecode(one) for one in (error.filename, error.filename2) if _is_path(one)]
    reason = error.strerror or str(error) or type(error).__name__
    text = ": ".join([*[" -> ".join(names)] * bool(names), " ".join(reason.split())])
    remedy = _REMEDIES.get(error.errno or 0)
    return text if remedy is None else f"{text}: {remedy}"


def check_folder(folder: Path) -> None:
    """Find out whether files can be made in a folder, which may be made with them.

    Leaves nothing behind.

    Raises
    ------
    OSError
        With the name of the folder.
    """
    there = folder
    try:
        while not os.path.lexists(there) and there != there.parent:
            there = there.parent
        with tempfile.TemporaryFile(dir=there):
            return
    except OSError as error:
        error.filename = str(folder)  # not the temporary one
        raise


def _is_path(value: object) -> bool:
    return isinstance(value, str | bytes | os.PathLike)


__all__ = [
    "AddressInUse",
    "AsyncLoaderError",
    "Broken",
    "CannotSend",
    "Closed",
    "ConfigError",
    "CorruptCheckpoint",
    "InsecureBindError",
    "JobFailed",
    "MissingExtra",
    "MissingField",
    "NotEnoughData",
    "OutOfMemory",
    "ResourceLimit",
    "SchemaError",
    "Timeout",
    "Unsupported",
    "WorkerDied",
    "WouldDeadlock",
]
set_public_names(globals())


class AsyncLoaderError(Exception):
    """Root of all exceptions that async_loader raises by itself."""


class Closed(AsyncLoaderError):
    """The object was closed by its user before this call."""


class Broken(AsyncLoaderError):
    """The other side died: a thread, a worker pool or a peer that cannot be replaced."""


class Timeout(AsyncLoaderError, TimeoutError):
    """A deadline set by the caller has passed. No data is lost: the call may be repeated."""


class WouldDeadlock(AsyncLoaderError):
    """A wait that only the calling thread could end.

    It comes at once. A table's call with a number of seconds raises `Timeout` after them instead.
    """


class ConfigError(AsyncLoaderError, ValueError):
    """An invalid argument, found before any thread or process started."""


class NotEnoughData(ConfigError):
    """Fewer items than requested, and no limiter to wait for. The message states both numbers.

    Attributes
    ----------
    needed, there : int
        Items that the call needs; items that can be drawn.
    """

    def __init__(self, message: str, needed: int = 0, there: int = 0) -> None:
        super().__init__(message)
        self.needed, self.there = needed, there


class InsecureBindError(ConfigError):
    """A bind to a public address without keys:
    any host that reaches the port could read and write the tables.
    """


class AddressInUse(AsyncLoaderError, OSError):
    """Another server listens on this address.

    Attributes
    ----------
    pid : int | None
        Process id of that server, if it can be determined.
    """

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class SchemaError(AsyncLoaderError, ValueError):
    """Data that does not match the agreed fields, dtypes or shapes."""


class MissingField(AsyncLoaderError, KeyError):
    """A field that a batch does not have. The message says how to get it."""

    __str__ = BaseException.__str__  # a KeyError quotes its message


class OutOfMemory(AsyncLoaderError, MemoryError):
    """Shared memory that would not fit, detected before the allocation."""


class ResourceLimit(AsyncLoaderError, OSError):
    """A limit of the operating system (file descriptors, processes) is too low."""


class CannotSend(AsyncLoaderError, TypeError):
    """An object that cannot be sent to a worker process. The message names it."""


class Unsupported(AsyncLoaderError):
    """An operation that this source, device or platform does not offer."""


class MissingExtra(AsyncLoaderError, ImportError):
    """An optional library is not installed. The message names the extra that installs it."""


def missing_requirement(library: object) -> MissingExtra:
    """Return the error for a library that an actor's installation leaves out."""
    return MissingExtra(
        f"{library} is not installed: requirements-actor.txt, enough for connect, writers and "
        "latest, leaves it out: install async_loader with what it requires, as in pip install ."
    )


def require(library: str) -> None:
    """Raise MissingExtra if a library that every installation but an actor's has is not there.

    Imports nothing.
    """
    known = library in sys.modules
    if (sys.modules[library] if known else importlib.util.find_spec(library)) is None:
        raise missing_requirement(library)


def of_extra(module: str, extra: str) -> Any:
    """Import a module that an extra brings. Raises MissingExtra."""
    library = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        text = f'{library} is not installed: pip install "async_loader[{extra}]"'
        raise MissingExtra(text) from error


class CorruptCheckpoint(AsyncLoaderError):
    """A damaged checkpoint.

    The message names the file, the damage, and which checkpoint can be loaded.
    """


class JobFailed(AsyncLoaderError):
    """A job raised an exception that cannot be raised here in its original form.

    Either the exception could not be pickled and rebuilt in this process, or it has a special
    meaning here (StopIteration would end the training loop silently).

    Attributes
    ----------
    type_name : str
        Qualified name of the exception's type in the worker.
    remote_traceback : str
        The worker's traceback as text.
    """

    def __init__(self, message: str, type_name: str = "", remote_traceback: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.remote_traceback = remote_traceback


class WorkerDied(AsyncLoaderError):
    """A worker process ended unexpectedly. It has been replaced.

    Attributes
    ----------
    pid : int
    exitcode : int | None
        As in ``multiprocessing``: a negative value is the number of a signal. ``None`` if it is
        not known.
    """

    def __init__(self, message: str, pid: int = 0, exitcode: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.exitcode = exitcode


class Malformed(AsyncLoaderError, ValueError):
    """A message that violates the feeder's wire format, or uses features unknown to this side.

    Attributes
    ----------
    code : int
        The `async_loader.feeder.wire.codes.ErrorCode` to answer with.
    type, session, sequence, number : int
        Fields of the message's header, as far as it could be read; 0 otherwise.
    expected : int | None
        An extra number for the answer: for an unknown version the newest version supported here.
    """

    def __init__(self, message: str, code: int = 2, expected: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.expected = expected
        self.type = self.session = self.sequence = self.number = 0
