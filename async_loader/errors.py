"""The exception tree. One root; every message says the fact, the number and the remedy."""

from __future__ import annotations

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
    "NotEnoughData",
    "OutOfMemory",
    "ResourceLimit",
    "SchemaError",
    "Timeout",
    "Unsupported",
    "WorkerDied",
    "WouldDeadlock",
]


class AsyncLoaderError(Exception):
    """Root of everything that async_loader raises on its own account."""


class Closed(AsyncLoaderError):
    """You closed it, and then asked for more."""


class Broken(AsyncLoaderError):
    """The other side died: a thread, a worker pool or a peer that cannot be replaced."""


class Timeout(AsyncLoaderError, TimeoutError):
    """A deadline that you set has passed. Nothing was lost: the call may be made again."""


class WouldDeadlock(AsyncLoaderError):
    """A wait that only the calling thread could end."""


class ConfigError(AsyncLoaderError, ValueError):
    """An argument that cannot work, found before anything started."""


class NotEnoughData(ConfigError):
    """Fewer items than were asked for, and no limiter to wait for. The message says both numbers.

    Attributes
    ----------
    needed, there : int
        Items that the call needs; items that can be drawn.
    """

    def __init__(self, message: str, needed: int = 0, there: int = 0) -> None:
        super().__init__(message)
        self.needed, self.there = needed, there

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.needed, self.there))


class InsecureBindError(ConfigError):
    """A bind beyond this machine without keys. Whoever reaches the port could read and write the tables."""


class AddressInUse(AsyncLoaderError, OSError):
    """Another server listens there.

    Attributes
    ----------
    pid : int | None
        Of that server, if it can be known.
    """

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.pid))


class SchemaError(AsyncLoaderError, ValueError):
    """Data that does not fit the fields, dtypes or shapes that were agreed on."""


class OutOfMemory(AsyncLoaderError, MemoryError):
    """Shared memory that would not fit, found before it was allocated."""


class ResourceLimit(AsyncLoaderError, OSError):
    """A limit of the operating system (file descriptors, processes) that is too low."""


class CannotSend(AsyncLoaderError, TypeError):
    """An object that cannot travel to a worker process. The message names it."""


class Unsupported(AsyncLoaderError):
    """Something that this source, device or platform does not offer."""


class MissingExtra(AsyncLoaderError, ImportError):
    """An optional library is absent. The message names the extra that brings it."""


class CorruptCheckpoint(AsyncLoaderError):
    """A checkpoint that is not as it was written. The message names the file, what is wrong, and what would load."""


class JobFailed(AsyncLoaderError):
    """A job raised something that cannot be raised here as it was.

    That is an exception that did not survive the way to this process, or one that would be taken for
    something else (StopIteration would end the training loop silently).

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

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.type_name, self.remote_traceback))


class WorkerDied(AsyncLoaderError):
    """A worker process ended without being told to. It has been replaced.

    Attributes
    ----------
    pid : int
    exitcode : int | None
        As in ``multiprocessing``: negative is the signal's number.
    """

    def __init__(self, message: str, pid: int = 0, exitcode: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.exitcode = exitcode

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.pid, self.exitcode))


class Malformed(AsyncLoaderError, ValueError):
    """A message that is not as the feeder's wire format says, or says more than this side understands.

    Attributes
    ----------
    code : int
        Of `async_loader.feeder.wire.codes.ErrorCode`: what to answer.
    type, session, sequence, number : int
        Of the message, as far as its header could be read; 0 otherwise.
    expected : int | None
        What the answer names beside the text: for an unknown version the newest that is understood here.
    """

    def __init__(self, message: str, code: int = 2, expected: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.expected = expected
        self.type = self.session = self.sequence = self.number = 0

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.code, self.expected))
