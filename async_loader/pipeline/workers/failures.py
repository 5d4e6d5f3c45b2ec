"""Exceptions on their way to the consumer: as data, rebuilt, guarded, and with where they come
from.
"""

from __future__ import annotations

import contextlib
import traceback

from async_loader.errors import Closed, JobFailed
from async_loader.pipeline import codec
from async_loader.pipeline.codec import Encoded

_MISLEADING = (
    StopIteration,
    StopAsyncIteration,
    GeneratorExit,
    SystemExit,
    KeyboardInterrupt,
    Closed,
)
"""What the learner's loop would take for something else: the end of the data, or the user's own
Ctrl-C.
"""

Report = tuple[str, str, str, bytes]


class RemoteTraceback(Exception):
    """The worker's traceback, shown as the cause of the exception raised here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def report(error: BaseException) -> Encoded:
    """An exception as data (a `Report`): type name, text, traceback, and its pickle, which is empty
    if it cannot be made.
    """
    text = "".join(traceback.format_exception(error))
    kind = type(error)
    return codec.encode(
        (
            f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
            _text(error),
            text,
            _pickled(error),
        )
    )


def _pickled(error: BaseException) -> bytes:
    try:
        return codec.encode(error).head
    except Exception:  # its __reduce__ may raise anything: then the text must do
        return b""


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a broken __str__ must not hide the failure
        return "<its __str__ raised>"


def from_report(payload: bytes, where: str) -> BaseException:
    """The exception that happened in a worker, as itself where that is possible, else as
    JobFailed.
    """
    found: Report = codec.decode(payload)
    type_name, text, remote, pickled = found
    error: BaseException | None = None
    with contextlib.suppress(BaseException):  # unpickling runs the exception's own code
        error = guarded(codec.decode(pickled))
    if error is None or _text(error) != text:
        error = JobFailed(f"{type_name}: {text}", type_name, remote)
    error.__cause__ = RemoteTraceback(remote)
    error.add_note(f"raised in {where}")
    return error


def guarded(error: BaseException) -> BaseException:
    """The error itself, or JobFailed around one that would be taken for something else."""
    if not isinstance(error, _MISLEADING):
        return error
    name = type(error).__name__
    wrapped = JobFailed(
        f"{name} was raised by a job, a collate_fn or the data source: {error}", name
    )
    wrapped.__cause__ = error
    return wrapped
