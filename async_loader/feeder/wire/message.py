"""Messages as frames, and back. Stateless."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from async_loader.errors import Malformed
from async_loader.feeder.wire import codes, control_codec, data, header
from async_loader.feeder.wire.batches import Batch
from async_loader.feeder.wire.codes import ErrorCode, Limits, Type
from async_loader.feeder.wire.control import Control, Error
from async_loader.feeder.wire.data import Buffer, Data, SlotBatches
from async_loader.feeder.wire.header import Header
from async_loader.feeder.wire.rows import Insert, SlotInsert, slot_insert


class Message(msgspec.Struct, frozen=True, eq=False):
    """One message.

    Attributes
    ----------
    body : Control or Data
        Its class is the kind of message.
    session, sequence, number, schema, flags : int
        As in `Header`.
    data : buffer, optional
        The data frame of WEIGHTS, PUBLISH, and calls of a table.
    """

    body: Control | Data
    session: int = 0
    sequence: int = 0
    number: int = 0
    schema: int = 0
    flags: int = 0
    data: Any = None

    @property
    def type(self) -> Type:
        return self.body.TYPE

    def reply(
        self, body: Control | Data, *, schema: int = 0, data: Buffer | None = None
    ) -> Message:
        """Return an answer: same session, sequence and number."""
        return Message(body, self.session, self.sequence, self.number, schema, data=data)


def encode(message: Message) -> list[Buffer]:
    """Return the frames to send, header first. Do not change large arrays until they are sent.

    Raises
    ------
    Malformed
        If a receiver with the usual limits would refuse it.
    """
    body = message.body
    if isinstance(body, Control):
        frames: list[Buffer] = [control_codec.pack(body)]
        rows = 0
        if message.data is not None:
            frames.append(message.data)
        _check_part(body, frames[1:])
    else:
        frames, rows = body.pack(), body.count
    shared = isinstance(body, SlotBatches | SlotInsert)
    flags = message.flags | codes.SHARED if shared else message.flags
    size = sum(len(f) if isinstance(f, bytes) else memoryview(f).nbytes for f in frames)
    head = Header(
        body.TYPE, flags, message.session, message.sequence, message.number, message.schema, rows,
        len(frames), size,
    )  # fmt: skip
    return [header.encode(head), *frames]


def decode(frames: Sequence[Any], limits: Limits = codes.DEFAULT) -> Message:
    """Return the message of these frames, header first, of any buffer type.

    Rows of INSERT and BATCH are read in a second step, which needs their layout:
    `rows.read_insert`, `batches.BatchForm`. O(frames); for control messages O(bytes).

    Raises
    ------
    Malformed
        For any wrong frames; `refuse` makes the answer. No other error is raised for buffers.
    """
    if not frames:
        raise Malformed("a message without frames: the first one is a header")
    head = header.decode(frames[0])
    try:
        return _message(head, frames, limits)
    except Malformed as error:
        error.type, error.session, error.sequence, error.number = (
            head.type,
            head.session,
            head.sequence,
            head.number,
        )
        raise


def refuse(error: Malformed) -> Message | None:
    """Return the ERROR for a message that could not be decoded.

    ``None`` if that was an ERROR itself.
    """
    if error.type == Type.ERROR:
        return None
    body = Error.of(ErrorCode(error.code), str(error), error.expected)
    return Message(body, error.session, error.sequence, error.number)


def _message(head: Header, frames: Sequence[Any], limits: Limits) -> Message:
    views = _bodies(head, frames, limits)
    kind = head.type
    part = None
    body: Control | Data
    if kind is Type.INSERT:
        shared = head.flags & codes.SHARED
        body = slot_insert(head.rows, views) if shared else Insert(head.rows, views)
    elif kind is Type.BATCH and not head.flags & codes.SHARED:
        body = Batch(head.rows, views)
    elif kind in data.EMPTY:
        if views:
            raise Malformed(f"{kind.name} has {len(views)} body frames, it takes none")
        body = data.EMPTY[kind]()
    elif kind not in control_codec.DECODERS:
        body = data.unpack(kind, head.rows, views)
    else:
        if not views:
            raise Malformed(f"{kind.name} has no body frame, it takes one of msgpack")
        body = control_codec.unpack(kind, views[0], limits.control_bytes)
        _check_part(body, views[1:])
        part = views[1] if len(views) > 1 else None
    return Message(body, head.session, head.sequence, head.number, head.schema, head.flags, part)


def _bodies(head: Header, frames: Sequence[Any], limits: Limits) -> list[memoryview]:
    """Return the body frames, checked against the header and the limits."""
    if len(frames) - 1 != head.frames or head.frames > codes.FRAMES:
        text = (
            f"{head.type.name} came in {len(frames) - 1} body frames and says {head.frames}, "
            f"{codes.FRAMES} are allowed"
        )
        raise Malformed(f"{text}: was a frame lost, or added?")
    views = [memoryview(frame) for frame in frames[1:]]
    size = sum([view.nbytes for view in views])
    if size != head.body_bytes:
        raise Malformed(
            f"{head.type.name} came with {size} body bytes and says {head.body_bytes}: was a frame "
            "cut?"
        )
    if size > limits.message_bytes:
        text = (
            f"{head.type.name} has {size} body bytes, {limits.message_bytes} are allowed: send "
            "less at a time"
        )
        raise Malformed(text, ErrorCode.TOO_LARGE)
    return [view if view.ndim == 1 and view.format == "B" else view.cast("B") for view in views]


def _check_part(body: Control, parts: Sequence[Any]) -> None:
    """Raise Malformed unless the data frames are those that the body names."""
    if len(parts) > 1:
        raise Malformed(f"{body.TYPE.name} has {len(parts)} data frames, it takes 1 at most")
    body.check_data(memoryview(parts[0]).nbytes if parts else None)
