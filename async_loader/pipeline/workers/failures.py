"""Exceptions on their way to the consumer: rebuilt, guarded, and told where they come from."""

from __future__ import annotations

import contextlib

from async_loader.errors import Closed, JobFailed
from async_loader.pipeline import codec
from async_loader.pipeline.workers.worker_main import Report

_MISLEADING = (StopIteration, StopAsyncIteration, GeneratorExit, SystemExit, KeyboardInterrupt, Closed)
"""What the learner's loop would take for something else: the end of the data, or the user's own Ctrl-C."""


class RemoteTraceback(Exception):
    """The worker's traceback, shown as the cause of the exception raised here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def from_report(report: Report, where: str) -> BaseException:
    """The exception that happened in a worker, as itself where that is possible, else as JobFailed."""
    type_name, text, remote, pickled = report
    error: BaseException | None = None
    with contextlib.suppress(BaseException):  # unpickling runs the exception's own code
        loaded = codec.decode(pickled) if pickled else None
        if isinstance(loaded, BaseException):
            error = guarded(loaded)
    if error is None:
        error = JobFailed(f"{type_name}: {text}", type_name, remote)
    error.__cause__ = RemoteTraceback(remote)
    error.add_note(f"raised in {where}")
    return error


def guarded(error: BaseException) -> BaseException:
    """The error itself, or JobFailed around one that would be taken for something else."""
    if not isinstance(error, _MISLEADING):
        return error
    name = type(error).__name__
    wrapped = JobFailed(f"{name} was raised by a job, a collate_fn or the data source: {error}", name)
    wrapped.__cause__ = error
    return wrapped
