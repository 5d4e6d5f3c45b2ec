"""How much of anything a message may hold. Checked before anything is allocated; nothing here depends on a peer."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

CONTROL_BYTES = 64 << 10
"""Of the msgpack body of a control message."""
MESSAGE_BYTES = 64 << 20
"""Of all body frames together, unless the receiver says otherwise (WELCOME says what the server takes)."""
IN_FLIGHT_BYTES = 256 << 20
MOST_AHEAD = 64
"""Batches that a reader can have on their way, whatever it grants."""
MOST_ROWS = 1 << 20
"""Of a batch, whose size travels as a `Count`."""
ROW_BYTES = 1 << 30
FIELDS = 4096
NAME_CHARACTERS = 256
"""Of a field's name, and a table's."""
FRAMES = FIELDS + 1
DEPTH = 32
"""Of nested dicts, lists and tuples in a schema."""
NESTING = 2 * DEPTH + 12
"""Of msgpack containers in one another: a schema takes two for each of its own."""
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
Path = Annotated[str, Meta(max_length=1024)]
Dimension = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Shape = Annotated[tuple[Dimension, ...], Meta(max_length=DIMENSIONS)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a receiver takes, in bytes: a control body, all body frames of any message, all that is not yet acknowledged."""

    control_bytes: Annotated[int, Meta(ge=1024, le=CONTROL_BYTES)] = CONTROL_BYTES
    message_bytes: U64 = MESSAGE_BYTES
    in_flight_bytes: U64 = IN_FLIGHT_BYTES

    def ahead(self, batch_bytes: int) -> int:
        """Batches that a reader can have on their way over a socket: of a larger grant the rest is forgotten."""
        return max(1, min(MOST_AHEAD, self.in_flight_bytes // max(1, batch_bytes)))


DEFAULT = Limits()
