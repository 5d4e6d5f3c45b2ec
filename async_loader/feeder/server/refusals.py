"""Exceptions of tables as ERRORs."""

from __future__ import annotations

from async_loader.errors import (
    AsyncLoaderError,
    ConfigError,
    CorruptCheckpoint,
    Malformed,
    NotEnoughData,
    OutOfMemory,
    SchemaError,
    Timeout,
)
from async_loader.feeder.wire import ErrorCode

_CODES: tuple[tuple[type[BaseException], ErrorCode], ...] = (
    (NotEnoughData, ErrorCode.NOT_ENOUGH),
    (SchemaError, ErrorCode.SCHEMA),
    (ConfigError, ErrorCode.CONFIG),
    (Timeout, ErrorCode.TIMEOUT),
    (OutOfMemory, ErrorCode.OUT_OF_MEMORY),
    (CorruptCheckpoint, ErrorCode.CORRUPT),
    (AsyncLoaderError, ErrorCode.UNSUPPORTED),
    (OSError, ErrorCode.FILES),
)


def refused(error: BaseException) -> Malformed:
    """Return the ERROR of an exception, with its text. Raises errors of this package itself."""
    if isinstance(error, Malformed):
        return error
    for kind, code in _CODES:
        if isinstance(error, kind):
            number = error.errno if isinstance(error, OSError) and code is ErrorCode.FILES else None
            return Malformed(
                str(error), code, error.there if isinstance(error, NotEnoughData) else number
            )
    raise error


def too_late(wait_s: float, why: str) -> Malformed:
    """Return the ERROR of a call that has waited long enough."""
    text = f"{abs(wait_s):g} s have passed, and still cannot sample: {why}"
    return Malformed(text, ErrorCode.TIMEOUT)
