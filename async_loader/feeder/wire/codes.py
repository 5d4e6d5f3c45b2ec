"""The numbers of the wire: planes, kinds of messages, flags, dtypes, errors. None is reused."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from async_loader.errors import SchemaError

CONTROL_BYTES = 64 << 10
"""Bytes of the msgpack body of a control message."""
MESSAGE_BYTES = 64 << 20
"""Bytes of all body frames together, unless WELCOME says otherwise."""
IN_FLIGHT_BYTES = 256 << 20
MOST_AHEAD = 64
"""Batches that a reader can have on their way, whatever credit it grants."""
MOST_ROWS = 1 << 20
"""Rows of a batch, whose size is sent as a `Count`."""
STREAMS = 1 << 16
"""Streams of one producer."""
ROW_BYTES = 1 << 30
FIELDS = 4096
NAME_CHARACTERS = 256
"""Characters of a field's name, and a table's."""
FRAMES = FIELDS + 1
DEPTH = 32
"""Nesting of dicts, lists and tuples in a schema."""
DIMENSIONS = 16

Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS)]
Key = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=512)]
Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
U8 = Annotated[int, Meta(ge=0, le=255)]
U16 = Annotated[int, Meta(ge=0, le=65535)]
U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Meta(ge=0)]  # msgpack has no integer beyond 2**64 - 1
Count = Annotated[int, Meta(ge=1, le=2**20)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Wait = Annotated[float, Meta(ge=0, le=1e9)]
Patience = Annotated[float, Meta(ge=-1e9, le=1e9)]
Path = Annotated[str, Meta(max_length=1024)]
Dimension = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Shape = Annotated[tuple[Dimension, ...], Meta(max_length=DIMENSIONS)]


def name_fault(name: object) -> str | None:
    """Say what keeps a value from being a `Name`, and the remedy; ``None`` if nothing does."""
    shown = repr(name) if len(repr(name)) < 80 else f"{repr(name)[:76]}..."
    if not isinstance(name, str):
        return f"{shown} is {type(name).__name__}: give text"
    if not 0 < len(name) <= NAME_CHARACTERS:
        return f"{shown} has {len(name)} characters: give 1 to {NAME_CHARACTERS}"
    try:
        name.encode()
    except UnicodeEncodeError as error:
        text = f"character {error.start} has no UTF-8 form"
        return f"{shown} cannot be sent, {text}: give text without surrogates"
    return None


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a receiver takes, in bytes.

    A control body, a message's body frames, what is in flight.
    """

    control_bytes: Annotated[int, Meta(ge=1024, le=CONTROL_BYTES)] = CONTROL_BYTES
    message_bytes: U64 = MESSAGE_BYTES
    in_flight_bytes: U64 = IN_FLIGHT_BYTES

    def ahead(self, batch_bytes: int) -> int:
        """Return how many batches a reader can have on their way over a socket.

        More credit is ignored.
        """
        return max(1, min(MOST_AHEAD, self.in_flight_bytes // max(1, batch_bytes)))


DEFAULT = Limits()


class Plane(Enum):
    """Which of the three sockets: a large batch never delays a heartbeat."""

    CONTROL = "control"
    INSERT = "insert"
    PULL = "pull"
    __hash__ = object.__hash__  # Enum's own is Python code; a server round looks up some dozens


class Type(IntEnum):
    """Kinds of messages.

    Below 32: control; from 32: insert; from 48: pull. PING, PONG and ERROR go on any of them.
    """

    HELLO = 1
    WELCOME = 2
    OPEN_WRITER = 3
    WRITER = 4
    CLOSE_WRITER = 5
    OPEN_READER = 6
    READER = 7
    CLOSE_READER = 8
    STATUS = 9
    STATUS_REPLY = 10
    DRAIN = 11
    DONE = 12
    LATEST = 13
    WEIGHTS = 14
    PUBLISH = 15
    PING = 16
    PONG = 17
    ERROR = 18
    END = 19
    PUBLISHED = 20
    ABOUT = 21
    ABOUT_REPLY = 22
    CLEAR = 23
    SAVE = 24
    SAVED = 25
    LOAD = 26
    INSERT = 32
    ACK = 33
    SLOT_INSERT = 35
    PULL = 48
    BATCH = 49
    SLOT_BATCHES = 50
    APPLIED = 51
    RETURN = 52
    GET = 55
    GOT = 56
    UPDATE = 57
    DELETE = 58
    PRIORITIZE = 59
    TOTALS = 62
    TOTALS_REPLY = 63
    ROLLOUTS = 64
    ROLLOUTS_REPLY = 65


ACK_NOW = 0x01
"""INSERT: the writer waits for the ACK, do not delay it."""
SENT_BEFORE = 0x02
"""INSERT: an earlier server received this message and may have delivered its rows."""
REDELIVERED = 0x02
"""BATCH: it has rows that a learner may have had before; the field of that name says which."""
FLAGS = {
    Type.BATCH: REDELIVERED,
    Type.INSERT: ACK_NOW | SENT_BEFORE,
    Type.SLOT_INSERT: ACK_NOW | SENT_BEFORE,
}
"""Flags that each kind of message may carry."""

TERMINATED, TRUNCATED, FINAL, SHOWN = 1, 2, 4, 8
"""Flags of an inserted row.

FINAL: not a step, but the observation after the last one. With TERMINATED
or TRUNCATED it ends an episode whose last step was sent before; then it has the observation only if
it is SHOWN. The table has the same numbers (replay/base/row_format.py); a test holds them equal."""
ROW_FLAGS = TERMINATED | TRUNCATED | FINAL | SHOWN


class ErrorCode(IntEnum):
    """What went wrong. `RETRY` says which errors may pass."""

    VERSION = 1
    MALFORMED = 2
    TOO_LARGE = 3
    UNKNOWN_SESSION = 4
    UNKNOWN_TABLE = 5
    SCHEMA = 6
    GAP = 8
    UNAUTHORIZED = 9
    LIMIT = 10
    DRAINING = 11
    UNSUPPORTED = 12
    TIMEOUT = 13
    INTERNAL = 14
    UNKNOWN_WRITER = 15
    UNKNOWN_READER = 16
    CONFIG = 17
    NOT_ENOUGH = 18
    OUT_OF_MEMORY = 19
    CORRUPT = 20
    FILES = 21


RETRY = {
    ErrorCode.UNKNOWN_SESSION: "after a new HELLO: the server does not know the session",
    ErrorCode.UNKNOWN_WRITER: "after a new OPEN_WRITER with the same producer",
    ErrorCode.UNKNOWN_READER: "after a new OPEN_READER",
    ErrorCode.GAP: "from the part that is expected",
    ErrorCode.LIMIT: "later, when others have left or in-flight bytes are acknowledged",
    ErrorCode.DRAINING: "later, or at another server: this one takes nothing new",
    ErrorCode.TIMEOUT: "at once: nothing was lost",
}
"""When to send the same request again. With all other codes it fails the same way."""


def worth_retrying(code: int) -> bool:
    """Return whether the same request may succeed later."""
    return code in RETRY


_NAMES = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
DTYPES: dict[int, np.dtype[Any]] = {
    code: np.dtype(f"<{name}") for code, name in enumerate(_NAMES, 1)
}
"""Dtypes by code, all little-endian.

Not by ``np.dtype(text)``, which takes objects and records too.
"""
_CODES = {dtype: code for code, dtype in DTYPES.items()}
BFLOAT16 = 15
"""Of a tensor of weights. numpy has no such dtype: the bits are sent as u16."""
TENSOR_DTYPES: dict[int, np.dtype[Any]] = {**DTYPES, BFLOAT16: np.dtype("<u2")}
"""Dtypes of tensors of weights; fields of a schema have one of `DTYPES`."""


def dtype_code(dtype: np.dtype[Any]) -> int:
    """Return the code of a dtype. Raises SchemaError if it has none."""
    try:
        return _CODES[dtype]
    except KeyError:
        raise SchemaError(
            f"dtype {dtype} cannot travel: use one of {', '.join(map(str, _CODES))}, little-endian"
        ) from None
