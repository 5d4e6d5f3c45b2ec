"""Exceptions on their way to the consumer: as data, rebuilt, guarded, and with where they come
from.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from typing import Any

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

Report = tuple[str, str, str, bytes, bytes]


class RemoteTraceback(Exception):
    """The worker's traceback, shown as the cause of the exception raised here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def report(error: BaseException) -> Encoded:
    """An exception as data (a `Report`): type name, text, traceback, its pickle, and the pickle of
    its parts; a pickle that cannot be made is empty.
    """
    text = "".join(traceback.format_exception(error))
    kind = type(error)
    return codec.encode(
        (
            f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
            _text(error),
            text,
            _pickled(error),
            _pickled(_parts(error)),
        )
    )


def _pickled(value: object) -> bytes:
    if value is None:
        return b""
    try:
        return codec.encode(value).head
    except Exception:  # its __reduce__ may raise anything: then the text must do
        return b""


_Parts = tuple[type[BaseException], type[BaseException], tuple[Any, ...], Any]


def _parts(error: BaseException) -> _Parts | None:
    """The type, the built-in type it is derived from, and the latter's arguments and attributes.

    Pickle calls a type with ``args``, which `Exception.__init__` was given: a type with an
    ``__init__`` of its own often takes others. ``None`` for types that go without this: built-in
    ones, and those that no other process can import.
    """
    kind = type(error)
    base: Any = next(one for one in kind.__mro__ if one.__module__ == "builtins")
    module: Any = sys.modules.get(kind.__module__)
    found = functools.reduce(_attribute, kind.__qualname__.split("."), module)
    if kind is base or found is not kind:
        return None
    _, args, *state = base.__reduce__(error)
    return kind, base, args, state[0] if state else None


def _attribute(value: Any, name: str) -> Any:
    return getattr(value, name, None)


def _rebuilt(parts: _Parts) -> BaseException:
    """The exception without a call of its type's own ``__init__``."""
    kind, base, args, state = parts
    error = kind.__new__(kind, *args)
    base.__init__(error, *args)
    if state is not None:
        BaseException.__setstate__(error, state)
    return error


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
    type_name, text, remote, pickled, parts = found
    error: BaseException | None = None
    with contextlib.suppress(BaseException):  # unpickling runs the exception's own code
        loaded = codec.decode(pickled) if pickled else None
        if isinstance(loaded, BaseException):
            error = guarded(loaded)
    if parts and (error is None or _text(error) != text):
        with contextlib.suppress(BaseException):
            error = guarded(_rebuilt(codec.decode(parts)))
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
    wrapped = JobFailed(
        f"{name} was raised by a job, a collate_fn or the data source: {error}", name
    )
    wrapped.__cause__ = error
    return wrapped
