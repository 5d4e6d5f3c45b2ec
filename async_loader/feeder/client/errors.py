"""A feeder's errors as errors of this package. Users never see errors of the wire or of ZeroMQ."""

from __future__ import annotations

import zmq

from async_loader.errors import (
    AsyncLoaderError,
    Broken,
    ConfigError,
    CorruptCheckpoint,
    Malformed,
    NotEnoughData,
    OutOfMemory,
    SchemaError,
    Timeout,
    Unsupported,
)
from async_loader.feeder.client.reconnecting import Session
from async_loader.feeder.reach import HINT
from async_loader.feeder.wire import Error, ErrorCode

_KINDS: dict[int, type[AsyncLoaderError]] = {
    ErrorCode.VERSION: Unsupported,
    ErrorCode.UNSUPPORTED: Unsupported,
    ErrorCode.UNKNOWN_TABLE: ConfigError,
    ErrorCode.UNAUTHORIZED: ConfigError,
    ErrorCode.SCHEMA: SchemaError,
    ErrorCode.TIMEOUT: Timeout,
    ErrorCode.MALFORMED: Malformed,
    ErrorCode.TOO_LARGE: ConfigError,
    ErrorCode.CONFIG: ConfigError,
    ErrorCode.NOT_ENOUGH: NotEnoughData,
    ErrorCode.OUT_OF_MEMORY: OutOfMemory,
    ErrorCode.CORRUPT: CorruptCheckpoint,
}
"""All others, and those of later versions, are Broken."""
_AS_THERE = {
    ErrorCode.CONFIG,
    ErrorCode.SCHEMA,
    ErrorCode.TIMEOUT,
    ErrorCode.OUT_OF_MEMORY,
    ErrorCode.CORRUPT,
    ErrorCode.UNSUPPORTED,
}


def error_of(body: Error, where: str, needed: int = 0) -> AsyncLoaderError | OSError:
    """Return what a call raised there, with its text. ``where``: an address, or a table."""
    kind, code, text = _KINDS.get(body.code, Broken), body.code, body.text
    if code == ErrorCode.FILES:
        return OSError(body.expected or 0, text)
    if code == ErrorCode.NOT_ENOUGH:
        return NotEnoughData(text, needed, body.expected or 0)
    if code in _AS_THERE:
        return kind(text)
    again = " (it may be asked again)" if body.retryable and kind is Broken else ""
    return kind(f"the feeder says ({where}): {text}{again}")


def state_of(session: Session, now: float, refusal: str) -> str:
    """Return how a client stands with its server, for a Timeout."""
    if refusal:
        return f"it {refusal}"
    if session.heard_at is None:
        return f"it was never heard of: {HINT}"
    return f"{'open' if session.is_open else 'lost'}, last heard {now - session.heard_at:.1f} s ago"


def refusal_of(event: int, value: int, keys: bool) -> tuple[str, bool]:
    """Return why a handshake failed, and whether the next one will fail too.

    Parameters
    ----------
    event, value : int
        From a socket's monitor.
    keys : bool
        Whether this side has any.
    """
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH and value == 400:
        return (
            "does not know this client's key: let it make one with 'async-loader keys', and start "
            "it again",
            True,
        )
    if (
        event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
    ):
        if keys:
            return (
                "has no keys, and this client has: leave keys= (--keys) out, or start it with "
                "security.keys",
                True,
            )
        return (
            "takes connections with known keys only: give keys= (--keys), the NAME.secret that was "
            "made for this client",
            True,
        )
    return (
        f"ends connections before they begin{': are the keys for another feeder?' if keys else ''}",
        False,
    )
