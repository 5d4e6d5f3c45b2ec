"""Limits of messages. They are checked before anything is allocated."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

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
