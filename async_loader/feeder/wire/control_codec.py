"""Control messages as body frames and back."""

from __future__ import annotations

import msgspec

from async_loader.errors import Malformed
from async_loader.feeder.wire import calls, codes, control
from async_loader.feeder.wire.codes import ErrorCode, Type
from async_loader.feeder.wire.control import Control

KINDS = [
    kind
    for module in (control, calls)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Control) and hasattr(kind, "TYPE")
]
DECODERS = {kind.TYPE: msgspec.msgpack.Decoder(kind) for kind in KINDS}
_encoder = msgspec.msgpack.Encoder()
FAILURES = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
"""What msgspec raises, whatever the bytes are."""


def pack(body: Control) -> bytes:
    """Return the body frame, checked as a peer checks it.

    Raises
    ------
    Malformed
    """
    try:
        data = _encoder.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Malformed(f"{body.TYPE.name} cannot be sent: {error}") from None
    _decode(body.TYPE, data)
    return data


def unpack(kind: Type, frame: memoryview, most: int = codes.CONTROL_BYTES) -> Control:
    """Return the message in a body frame.

    Raises
    ------
    Malformed
        Names the wrong field.
    """
    _bounded(kind, frame.nbytes, most)
    return _decode(kind, frame.tobytes())


def _decode(kind: Type, data: bytes) -> Control:
    _bounded(kind, len(data), codes.CONTROL_BYTES)
    try:
        body: Control = DECODERS[kind].decode(data)
    except FAILURES as error:
        raise Malformed(f"{kind.name}: {error}") from None
    return body


def _bounded(kind: Type, size: int, most: int) -> None:
    if size > most:
        text = f"{kind.name} has a body of {size} bytes, {most} are allowed: send less at a time"
        raise Malformed(text, ErrorCode.TOO_LARGE)
