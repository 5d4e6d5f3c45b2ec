"""Messages as frames, and back: a header, and a frame of msgpack or frames of rows. Stateless.

::

     0  magic "ALDR"     6  flags u8       16  sequence u64      32  rows u32
     4  version u8       7  0              24  number u32
     5  type u8          8  session u64    28  schema id u32

All numbers of the header are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from async_loader.errors import Malformed
from async_loader.feeder.wire import calls, codes, control
from async_loader.feeder.wire.calls import Buffer
from async_loader.feeder.wire.codes import ErrorCode, Limits, Type
from async_loader.feeder.wire.control import Body, Control, Error
from async_loader.feeder.wire.rows import Batch, Framed, Insert

MAGIC = b"ALDR"
VERSION = 1
"""Of the wire. A peer of another one is refused."""
HEADER = struct.Struct("<4s3Bx2Q3I")
_TYPES: dict[int, Type] = {int(kind): kind for kind in Type}
_FRAMED: dict[Type, type[Framed]] = {Type.INSERT: Insert, Type.BATCH: Batch}
KINDS: dict[Type, type[Control]] = {
    kind.TYPE: kind
    for module in (control, calls)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Control) and hasattr(kind, "TYPE")
}
_decoders = {name: msgspec.msgpack.Decoder(kind) for name, kind in KINDS.items()}
_encoder = msgspec.msgpack.Encoder()


class Message(msgspec.Struct, frozen=True, eq=False):
    """One message.

    Attributes
    ----------
    body : Body
        Its class is the kind of message.
    session : int
        From WELCOME; 0 before.
    sequence : int
        Of a request and its answer; of an INSERT within (producer, epoch); of a BATCH within the
        reader.
    number : int
        Of the writer or reader in the session.
    schema : int
        Id of the schema of the rows, 0 without rows.
    flags : int
    data : buffer, optional
        The data frame of WEIGHTS, PUBLISH, and calls of a table.
    """

    body: Body
    session: int = 0
    sequence: int = 0
    number: int = 0
    schema: int = 0
    flags: int = 0
    data: Any = None

    @property
    def type(self) -> Type:
        return self.body.TYPE

    def reply(self, body: Body, *, schema: int = 0, data: Buffer | None = None) -> Message:
        """Return an answer: same session, sequence and number."""
        return Message(body, self.session, self.sequence, self.number, schema, data=data)


def encode(message: Message) -> list[Buffer]:
    """Return the frames to send, header first. Do not change large arrays until they are sent.

    Raises
    ------
    Malformed
        If a receiver with the usual limits would refuse it.
    """
    body, rows = message.body, 0
    if isinstance(body, Framed):
        frames, rows = list(body.frames), body.rows
    else:
        assert isinstance(body, Control)
        try:
            packed = _encoder.encode(body)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise Malformed(f"{body.TYPE.name} cannot be sent: {error}") from None
        _control(body.TYPE, packed, codes.CONTROL_BYTES)
        frames = [packed] if message.data is None else [packed, message.data]
        _check_data(body, frames[1:])
    head = HEADER.pack(
        MAGIC, VERSION, body.TYPE, message.flags, message.session, message.sequence,
        message.number, message.schema, rows,
    )  # fmt: skip
    return [head, *frames]


def decode(frames: Sequence[Any], limits: Limits = codes.DEFAULT) -> Message:
    """Return the message of these frames, header first, of any buffer type.

    Rows of INSERT and BATCH are read in a second step, which needs their layout: `read_insert`,
    `BatchForm`. O(frames); for control messages O(bytes).

    Raises
    ------
    Malformed
        For any wrong frames; `refuse` makes the answer. No other error is raised for buffers.
    """
    size = memoryview(frames[0]).nbytes if frames else 0
    if size != HEADER.size:
        raise Malformed(
            f"the first frame holds {size} bytes, a header {HEADER.size}: is the peer of another "
            "protocol?"
        )
    magic, version, kind, flags, session, sequence, number, schema, rows = HEADER.unpack(frames[0])
    if magic != MAGIC:
        raise Malformed(
            f"a message begins with {magic!r}, not with {MAGIC!r}: is the peer of another protocol?"
        )
    try:
        body, part = _body(_known(version, kind, flags), rows, frames[1:], limits)
    except Malformed as error:
        error.type, error.session, error.sequence, error.number = kind, session, sequence, number
        raise
    return Message(body, session, sequence, number, schema, flags, part)


def refuse(error: Malformed) -> Message | None:
    """Return the ERROR for a message that could not be decoded.

    ``None`` if that was an ERROR itself.
    """
    if error.type == Type.ERROR:
        return None
    return Message(Error.of_malformed(error), error.session, error.sequence, error.number)


def _known(version: int, kind: int, flags: int) -> Type:
    """Return the type of a header. Raises Malformed, VERSION or UNSUPPORTED."""
    known = _TYPES.get(kind)
    if known is Type.ERROR:  # see NOTE [errors are for all ages] in the package
        return known
    if version != VERSION:
        text = f"the message is of version {version} of the wire, here it is {VERSION}"
        raise Malformed(f"{text}: update the older side", ErrorCode.VERSION, VERSION)
    if known is None:
        raise Malformed(f"there is no message of type {kind}", ErrorCode.UNSUPPORTED)
    if strange := flags & ~codes.FLAGS.get(known, 0):
        text = f"{known.name} has flags {strange:#04x}, which are not known"
        raise Malformed(text, ErrorCode.UNSUPPORTED)
    return known


def _body(
    kind: Type, rows: int, frames: Sequence[Any], limits: Limits
) -> tuple[Body, memoryview | None]:
    """Return the body and the data frame, checked against the limits."""
    views = [memoryview(frame) for frame in frames]
    size = sum([view.nbytes for view in views])
    if size > limits.message_bytes:
        raise _too_large(kind, size, limits.message_bytes)
    views = [view if view.ndim == 1 and view.format == "B" else view.cast("B") for view in views]
    if kind in _FRAMED:
        return _FRAMED[kind](rows, views), None
    if not views:
        raise Malformed(f"{kind.name} has no body frame, it takes one of msgpack")
    body = _control(kind, views[0].tobytes(), limits.control_bytes)
    _check_data(body, views[1:])
    return body, views[1] if len(views) > 1 else None


def _control(kind: Type, packed: bytes, most: int) -> Control:
    """Return the message in a frame of msgpack. Raises Malformed, which names the wrong field."""
    most = KINDS[kind].MOST or most
    if len(packed) > most:
        raise _too_large(kind, len(packed), most)
    try:
        body: Control = _decoders[kind].decode(packed)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise Malformed(f"{kind.name}: {error}") from None
    return body


def _too_large(kind: Type, size: int, most: int) -> Malformed:
    text = f"{kind.name} has a body of {size} bytes, {most} are allowed: send less at a time"
    return Malformed(text, ErrorCode.TOO_LARGE)


def _check_data(body: Control, parts: Sequence[Any]) -> None:
    """Raise Malformed unless the data frames are those that the body names."""
    if len(parts) > 1:
        raise Malformed(f"{body.TYPE.name} has {len(parts)} data frames, it takes 1 at most")
    body.check_data(memoryview(parts[0]).nbytes if parts else None)
