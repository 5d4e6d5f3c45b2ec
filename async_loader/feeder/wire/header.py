"""The 64 bytes that every message begins with. Little-endian.

::

     0  magic "ALDR"          16  sequence u64         40  body bytes u64
     4  version u8            24  number u32           48  reserved, 12 bytes of 0
     5  reserved u8, 0        28  schema id u32        60  CRC32C of bytes 0..59, u32
     6  type u8               32  rows u32
     7  flags u8              36  frames u16
     8  session u64           38  reserved u16, 0

All versions have these fields at these places; reserved bytes are sent as 0 and ignored.
"""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c
import msgspec

from async_loader.errors import Malformed
from async_loader.feeder.wire import codes
from async_loader.feeder.wire.codes import ErrorCode, Type

BYTES = 64
MAGIC = b"ALDR"
VERSION = 1
"""Of the wire. A peer of another one is refused."""

_FRONT = struct.Struct("<4s4B2Q3I2HQ12x")
_WHOLE = struct.Struct("<4s4B2Q3I2HQ12xI")
_CRC = struct.Struct("<I")
_TYPES: dict[int, Type] = {int(kind): kind for kind in Type}
_crc32c = google_crc32c.value


class Header(msgspec.Struct, frozen=True, gc=False):
    """The header of a message.

    Attributes
    ----------
    session : int
        From WELCOME; 0 before.
    sequence : int
        Of a request and its answer; of an INSERT within (producer, epoch); of a BATCH within the
        reader.
    number : int
        Of the writer or reader in the session.
    schema : int
        Id of the schema of the rows, 0 without rows.
    frames, body_bytes : int
        Frames that follow, and their bytes together.
    """

    type: Type
    flags: int
    session: int
    sequence: int
    number: int
    schema: int
    rows: int
    frames: int
    body_bytes: int


def encode(header: Header) -> bytes:
    """Return the header's bytes. O(1). Raises struct.error for numbers that do not fit."""
    h = header
    front = _FRONT.pack(
        MAGIC,
        VERSION,
        0,
        h.type,
        h.flags,
        h.session,
        h.sequence,
        h.number,
        h.schema,
        h.rows,
        h.frames,
        0,
        h.body_bytes,
    )
    return front + _CRC.pack(_crc32c(front))


def decode(frame: Any) -> Header:
    """Return the header in a frame. O(1).

    Raises
    ------
    Malformed
        MALFORMED, VERSION, or UNSUPPORTED for types and flags that are not known.
    """
    size = len(frame) if isinstance(frame, bytes) else memoryview(frame).nbytes
    if size != BYTES:
        raise Malformed(
            f"the first frame holds {size} bytes, a header {BYTES}: is the peer of another "
            "protocol?"
        )
    frame = bytes(frame)
    (
        magic,
        version,
        _,
        kind,
        flags,
        session,
        sequence,
        number,
        schema,
        rows,
        frames,
        _,
        body,
        crc,
    ) = _WHOLE.unpack(frame)
    if magic != MAGIC:
        raise Malformed(
            f"a message begins with {magic!r}, not with {MAGIC!r}: is the peer of another protocol?"
        )
    if crc != _crc32c(frame[:60]):
        raise Malformed(
            f"the header's CRC32C is {_crc32c(frame[:60]):08x}, it says {crc:08x}: it was damaged "
            "on its way"
        )
    known = _TYPES.get(kind)
    # An ERROR is read in all versions: see NOTE [errors are for all ages] in the package.
    if known is not Type.ERROR:
        refused = _refused(version, kind, known, flags)
        if refused is not None:
            refused.type, refused.session, refused.sequence, refused.number = (
                kind,
                session,
                sequence,
                number,
            )
            raise refused
    assert known is not None
    return Header(known, flags, session, sequence, number, schema, rows, frames, body)


def _refused(version: int, kind: int, known: Type | None, flags: int) -> Malformed | None:
    if version != VERSION:
        text = f"the message is of version {version} of the wire, here it is {VERSION}"
        return Malformed(f"{text}: update the older side", ErrorCode.VERSION, VERSION)
    if known is None:
        return Malformed(f"there is no message of type {kind}", ErrorCode.UNSUPPORTED)
    if strange := flags & ~codes.FLAGS.get(known, 0):
        text = f"{known.name} has flags {strange:#04x}, which are not known"
        return Malformed(text, ErrorCode.UNSUPPORTED)
    return None
