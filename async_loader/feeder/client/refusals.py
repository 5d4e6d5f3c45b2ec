"""Errors of a feeder as errors of ours. Nothing of the wire or of ZeroMQ is left in what users catch."""

from __future__ import annotations

from async_loader.errors import AsyncLoaderError, Broken, ConfigError, Malformed, SchemaError, Timeout, Unsupported
from async_loader.feeder.wire import Error, ErrorCode

_KINDS: dict[int, type[AsyncLoaderError]] = {
    ErrorCode.VERSION: Unsupported,
    ErrorCode.UNSUPPORTED: Unsupported,
    ErrorCode.UNKNOWN_TABLE: ConfigError,
    ErrorCode.UNAUTHORIZED: ConfigError,
    ErrorCode.SCHEMA: SchemaError,
    ErrorCode.TIMEOUT: Timeout,
    ErrorCode.MALFORMED: Malformed,
    ErrorCode.TOO_LARGE: Malformed,
}
"""All others, and those that came later, are Broken: the other side cannot."""


def error_of(body: Error, address: str) -> AsyncLoaderError:
    """What to raise in the thread that asked."""
    kind = _KINDS.get(body.code, Broken)
    again = " (it may be asked again)" if body.retryable and kind is Broken else ""
    return kind(f"the feeder at {address} says: {body.text}{again}")
