"""The messages between a feeder and its clients, as frames. Without sockets, clock and threads.

::

    frames ──decode──▶ Message(body, session, sequence, ...) ──encode──▶ frames
                          │
         control, calls   │ HELLO WELCOME OPEN_WRITER ... GET ...      one msgpack map
         data             │ ACK PULL RETURN ...                        one msgpack array
         rows             │ INSERT BATCH                               packed rows, large arrays
                          ▼
    [ header 36 B | body frame 0 | body frame 1 ... ]                  docs/wire.md has all of it

    codes                            limits, numbers
    schema_codec                     a schema as bytes

# NOTE [errors are for all ages]
A side of another version, or that sends an unknown type or flag, is answered with an ERROR. So that
it can read it, an ERROR is decoded whatever version and flags its header has, and its body never
changes. It is never answered with an ERROR.

# NOTE [two steps]
An INSERT is decoded without its rows, which takes microseconds for any size: the header says
whether it is a duplicate, or comes after one that is missing. Only then are the rows read.
"""

from __future__ import annotations

from async_loader.errors import Malformed
from async_loader.feeder.wire.calls import (
    About,
    AboutReply,
    Ack,
    Applied,
    ById,
    Clear,
    CloseReader,
    Delete,
    Done,
    Drain,
    Get,
    Got,
    InSlot,
    Load,
    OfTable,
    Ping,
    Pong,
    Prioritize,
    Pull,
    Return,
    Rollouts,
    RolloutsReply,
    Save,
    Saved,
    SlotBatches,
    SlotInsert,
    Status,
    StatusReply,
    Totals,
    Update,
)
from async_loader.feeder.wire.codes import (
    ACK_NOW,
    BFLOAT16,
    CONTROL_BYTES,
    DIMENSIONS,
    FIELDS,
    FINAL,
    MESSAGE_BYTES,
    MOST_AHEAD,
    MOST_ROWS,
    NAME_CHARACTERS,
    REDELIVERED,
    SENT_BEFORE,
    SHOWN,
    STREAMS,
    TERMINATED,
    TRUNCATED,
    ErrorCode,
    Limits,
    Plane,
    Type,
    name_fault,
    worth_retrying,
)
from async_loader.feeder.wire.control import (
    Body,
    CloseWriter,
    Control,
    End,
    Error,
    Hello,
    Latest,
    OpenReader,
    OpenWriter,
    Publish,
    Published,
    Reader,
    TensorSpec,
    TotalsReply,
    Weights,
    Welcome,
    Writer,
)
from async_loader.feeder.wire.message import VERSION, Message, decode, encode, refuse
from async_loader.feeder.wire.rows import (
    Batch,
    BatchBlock,
    BatchForm,
    Insert,
    RowLayout,
    Steps,
    bytes_of,
    read_insert,
    specs_of,
    tensors_of,
)
from async_loader.feeder.wire.schema_codec import (
    SchemaSpec,
    check_id,
    check_travels,
    schema_id,
    schema_of,
    spec_of,
)
