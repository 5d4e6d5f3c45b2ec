"""What control messages say: one msgpack map each, of named fields. Holds no numbers of sessions; those are in the header.

A field with a default may be left out; one that is not named here is refused.
"""

from __future__ import annotations

import functools
import math
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from async_loader.errors import Malformed
from async_loader.feeder.wire import bounds, codes, scan
from async_loader.feeder.wire.bounds import U8, U16, U32, U64, Count, Id, Limits, Name, Path, Seconds, Shape, Text
from async_loader.feeder.wire.codes import ErrorCode, Type
from async_loader.feeder.wire.schema_codec import SchemaSpec

Transport = Literal["tcp", "shm"]


class Control(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Root of the control messages; ``TYPE`` is how the header calls each."""

    TYPE: ClassVar[Type]

    def check_data(self, nbytes: int | None) -> None:
        """Raise Malformed for a data frame of so many bytes; ``None``: there is none."""
        if nbytes is not None:
            raise Malformed(f"{self.TYPE.name} has 1 data frame, it takes 0")


class Hello(Control, frozen=True, kw_only=True):
    """The first message of a client, in the oldest version that it understands. ``client`` is drawn once per process."""

    TYPE = Type.HELLO
    client: Id
    pid: U32
    host: Name
    oldest: U8
    newest: U8
    user_agent: Text = ""
    token: Annotated[bytes, Meta(max_length=256)] | None = None

    def __post_init__(self) -> None:
        if self.oldest > self.newest:
            raise ValueError(f"oldest version {self.oldest} is newer than the newest, {self.newest}")


class Welcome(Control, frozen=True, kw_only=True):
    """The server's answer; the header has the session. Silence of ``silence_s`` ends it, on either side."""

    TYPE = Type.WELCOME
    version: U8
    incarnation: Id
    heartbeat_s: Seconds
    silence_s: Seconds
    insert_endpoint: Text
    pull_endpoint: Text
    memory_endpoint: Text | None
    limits: Limits
    tables: Annotated[tuple[Name, ...], Meta(max_length=bounds.FIELDS)]


class OpenWriter(Control, frozen=True, kw_only=True):
    """``producer`` is drawn once and kept; who opens it with a higher ``epoch`` fences the earlier ones off."""

    TYPE = Type.OPEN_WRITER
    table: Name
    producer: Id
    epoch: U32
    schema: SchemaSpec | None = None


class Writer(Control, frozen=True, kw_only=True, omit_defaults=True):
    """Watermarks are counts: INSERTs below ``applied`` are in the table, those below ``durable`` outlive the server.

    Since version 3: ``no_priorities``, why the table takes none.
    """

    TYPE = Type.WRITER
    schema: SchemaSpec
    applied: U64
    durable: U64
    window_bytes: U64
    window_rows: U64
    resumed: bool
    no_priorities: Text | None = None


class CloseWriter(Control, frozen=True, kw_only=True):
    """``last`` is how many INSERTs there were; the answer is an ACK once all are applied."""

    TYPE = Type.CLOSE_WRITER
    last: U64


class View(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Transitions over ``n`` steps, discounted by ``gamma``. Since version 3: of the field ``reward``."""

    n: Count
    gamma: Annotated[float, Meta(ge=0, le=1)]
    reward: Name = "reward"


class OpenReader(Control, frozen=True, kw_only=True, omit_defaults=True):
    """``together``: batches that one message may hold, over tcp. Since version 3: ``min_size``, the items that each batch waits
    for, and ``sampler``, one of this reader's own as a configuration says it.
    """

    TYPE = Type.OPEN_READER
    table: Name
    batch_size: Count
    view: View | None = None
    rank: U32 = 0
    world_size: Count = 1
    seed: U64 | None = None
    transport: Transport = "tcp"
    timeout_s: Seconds | None = None
    prefetch: Count = 4
    together: Count = 1
    min_size: Annotated[int, Meta(ge=1, le=2**63 - 1)] = 1
    sampler: Annotated[dict[str, Any], Meta(max_length=16)] | None = None

    def __post_init__(self) -> None:
        if self.rank >= self.world_size:
            raise ValueError(f"rank {self.rank} is not below world_size {self.world_size}")


class Reader(Control, frozen=True, kw_only=True):
    """``schema`` is that of a batch's rows, with index and weight; ``leased`` rows must be given back (RETURN)."""

    TYPE = Type.READER
    schema: SchemaSpec
    leased: bool
    transport: Transport


class StatusReply(Control, frozen=True, kw_only=True):
    TYPE = Type.STATUS_REPLY
    status: dict[str, Any]


class Latest(Control, frozen=True, kw_only=True):
    """Asks for weights newer than ``newer_than``, or for more of ``version``: at most ``most`` bytes from ``offset``.

    ``timeout_s`` is how long the answer may be withheld until there are newer ones; without it the answer comes at once.
    ``run``: that of ``newer_than``, or of ``version``; weights of another run are newer, whatever their version.
    """

    TYPE = Type.LATEST
    name: Name
    newer_than: U64 | None = None
    version: U64 | None = None
    offset: U64 = 0
    most: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    timeout_s: Seconds | None = None
    run: Id | None = None


class TensorSpec(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One tensor of weights: name, dtype code, shape."""

    name: Name
    dtype: U8
    shape: Shape

    def __post_init__(self) -> None:
        if self.dtype not in codes.TENSOR_DTYPES:
            raise ValueError(f"tensor {self.name!r} has dtype code {self.dtype}, known are 1 to {max(codes.TENSOR_DTYPES)}")
        # numpy multiplies dimensions also when one of them is 0.
        if math.prod(max(1, n) for n in self.shape) * 16 >= 2**63:
            raise ValueError(f"tensor {self.name!r} has shape {self.shape}: no array can be that large")

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * codes.TENSOR_DTYPES[self.dtype].itemsize


class Weights(Control, frozen=True, kw_only=True):
    """A part of the weights, with a data frame; without one: nothing is newer than ``version``.

    The first part (offset 0) names all tensors, which lie one after the other, C order, no gaps; later parts name none.
    ``run``: the client that published them; versions count within it.
    """

    TYPE = Type.WEIGHTS
    name: Name
    version: U64 | None
    total_bytes: U64 = 0
    offset: U64 = 0
    specs: Annotated[tuple[TensorSpec, ...], Meta(max_length=bounds.FIELDS)] = ()
    run: Id | None = None

    def __post_init__(self) -> None:
        if self.offset and self.specs:
            raise ValueError(f"a part at offset {self.offset} names {len(self.specs)} tensors: the first part does")
        if len({spec.name for spec in self.specs}) < len(self.specs):
            raise ValueError(f"{len(self.specs)} tensors share names: give every tensor a name of its own")
        total = sum(spec.nbytes for spec in self.specs)
        if not self.offset and total != self.total_bytes:
            raise ValueError(f"the tensors have {total} bytes, total_bytes is {self.total_bytes}")

    def check_data(self, nbytes: int | None) -> None:
        """See `Control`."""
        carries = self.TYPE is Type.PUBLISH or bool(self.total_bytes)
        _one_or_none(self, nbytes, carries)
        if nbytes is not None and not 0 < nbytes <= self.total_bytes - self.offset:
            text = f"{nbytes} bytes at offset {self.offset} of weights that have {self.total_bytes}"
            raise Malformed(f"{self.TYPE.name} holds {text}: send a part that is not empty and ends within")


class Publish(Weights, frozen=True, kw_only=True):
    """A part of weights from the learner, as in WEIGHTS; the answer is PUBLISHED. Their run is the client's id, as in HELLO."""

    TYPE = Type.PUBLISH
    version: U64


class Published(Control, frozen=True, kw_only=True):
    """What became of a part: it was taken, and with the last part the weights are the ``newest``; or it was not, since what is
    there is newer, or of a ``run`` that began after this client's.
    """

    TYPE = Type.PUBLISHED
    newest: bool
    version: U64 | None = None
    run: Id | None = None


class Error(Control, frozen=True, kw_only=True):
    """Never changes: every version reads it. ``code`` may be one that came later."""

    TYPE = Type.ERROR
    code: U16
    text: Text
    retryable: bool
    expected: U64 | None = None

    @classmethod
    def of(cls, code: ErrorCode, text: str, expected: int | None = None) -> Error:
        return cls(code=code, text=text[:512], retryable=codes.worth_retrying(code), expected=expected)


class End(Control, frozen=True, kw_only=True):
    """Nothing more comes, and nothing went wrong. ``count`` is how many messages came before."""

    TYPE = Type.END
    reason: Text
    count: U64


# -- calls of a table, since version 3 ---------------------------------------------------------------------------------------


class OfTable(Control, frozen=True, kw_only=True):
    """Root of the calls of a table."""

    table: Name


class About(OfTable, frozen=True, kw_only=True):
    """What is the table, and what has it done?"""

    TYPE = Type.ABOUT


class AboutReply(Control, frozen=True, kw_only=True, omit_defaults=True):
    """``limiter`` is least size, samples per insert, and the error buffer; ``stats`` are plain numbers by name;
    ``no_priorities``: why the table takes none.
    """

    TYPE = Type.ABOUT_REPLY
    schema: SchemaSpec | None
    capacity: U64 | None
    nbytes: U64 | None
    limiter: tuple[int, float | None, tuple[float, float] | float | None] | None
    sampler: Text
    stats: dict[str, Any]
    no_priorities: Text | None = None


class Clear(OfTable, frozen=True, kw_only=True):
    """Take all steps out; the answer is DONE."""

    TYPE = Type.CLEAR


class Save(OfTable, frozen=True, kw_only=True):
    """Save to ``path``, within the folder of the table; the answer is SAVED."""

    TYPE = Type.SAVE
    path: Path = ""


class Saved(Control, frozen=True, kw_only=True):
    """What a save did."""

    TYPE = Type.SAVED
    kind: Literal["full", "incremental"]
    number: U64
    nbytes: U64
    duration_s: bounds.Wait
    pause_s: bounds.Wait
    rows: U64


class Load(OfTable, frozen=True, kw_only=True):
    """Put what was saved in place of what the table holds: save ``number``, or the newest one; the answer is DONE."""

    TYPE = Type.LOAD
    path: Path = ""
    number: U64 | None = None


class Sample(OfTable, frozen=True, kw_only=True):
    """Draw a batch, at this moment or within ``timeout_s``. The header's number is that of a reader for such
    calls, which is opened with the first of them.

    Attributes
    ----------
    timeout_s : float | None
        How long the answer may be withheld; ``None``: without end.
    waits : bool
        False: where the table has no limiter, too few items are an error at once.
    known : int
        Id of the schema that the sender knows; SAMPLED says another one.
    slots : tuple of int
        Of shared memory that are free again.
    unused : tuple of int
        Leases of batches that came too late: nobody has had them.
    """

    TYPE = Type.SAMPLE
    batch_size: Count
    view: View | None = None
    timeout_s: bounds.Wait | None = None
    waits: bool = True
    known: U32 = 0
    slots: Annotated[tuple[U32, ...], Meta(max_length=64)] = ()
    unused: Annotated[tuple[U64, ...], Meta(max_length=64)] = ()


class Sampled(Control, frozen=True, kw_only=True):
    """A batch: a block in the data frame, or in ``slot`` of shared memory.

    Attributes
    ----------
    rows : int
    schema : SchemaSpec | None
        Of its rows, where the caller does not know it.
    lease : int | None
        Its number, where the rows are used up: to be returned (RETURN) when user code has them.
    """

    TYPE = Type.SAMPLED
    rows: Count
    schema: SchemaSpec | None = None
    slot: U32 | None = None
    lease: U64 | None = None

    def check_data(self, nbytes: int | None) -> None:
        """See `Control`."""
        _one_or_none(self, nbytes, self.slot is None)


class ById(OfTable, frozen=True, kw_only=True):
    """Root of the calls that name ``count`` rows: their ids (i64) are the first of the data frame."""

    count: Count

    @property
    def more_bytes(self) -> int:
        """Behind the ids."""
        return 0

    def check_data(self, nbytes: int | None) -> None:
        """See `Control`."""
        _one_or_none(self, nbytes, True)
        wanted = 8 * self.count + self.more_bytes
        if nbytes != wanted:
            raise Malformed(f"{self.TYPE.name} of {self.count} ids has a data frame of {nbytes} bytes, it takes {wanted}")


class Get(ById, frozen=True, kw_only=True):
    """Read rows; those that are gone are left out of the answer, GOT."""

    TYPE = Type.GET
    view: View | None = None


class Got(Control, frozen=True, kw_only=True):
    """``rows`` rows as a block of a batch of so many, unless there are none."""

    TYPE = Type.GOT
    rows: Annotated[int, Meta(ge=0, le=2**20)]
    schema: SchemaSpec

    def check_data(self, nbytes: int | None) -> None:
        """See `Control`."""
        _one_or_none(self, nbytes, self.rows > 0)


class Update(ById, frozen=True, kw_only=True):
    """New values of some fields, which follow the ids: arrays ``[count, ...]`` named by ``specs``. The answer is APPLIED."""

    TYPE = Type.UPDATE
    specs: Annotated[tuple[TensorSpec, ...], Meta(max_length=bounds.FIELDS)]

    def __post_init__(self) -> None:
        for spec in self.specs:
            if not spec.shape or spec.shape[0] != self.count or spec.dtype not in codes.DTYPES:
                raise ValueError(f"field {spec.name!r} has shape {spec.shape} and dtype {spec.dtype} for {self.count} ids")
        if len({spec.name for spec in self.specs}) < len(self.specs):
            raise ValueError(f"{len(self.specs)} fields share names: name each once")

    @property
    def more_bytes(self) -> int:
        """See `ById`."""
        return sum(spec.nbytes for spec in self.specs)


class Delete(ById, frozen=True, kw_only=True):
    """Take rows out. The answer is APPLIED."""

    TYPE = Type.DELETE


class Prioritize(ById, frozen=True, kw_only=True):
    """New priorities (f64), which follow the ids. The answer is APPLIED."""

    TYPE = Type.PRIORITIZE

    @property
    def more_bytes(self) -> int:
        """See `ById`."""
        return 8 * self.count


def _one_or_none(body: Control, nbytes: int | None, one: bool) -> None:
    if (nbytes is not None) is not one:
        raise Malformed(f"{body.TYPE.name} has {int(nbytes is not None)} data frames, it takes {int(one)}")


KINDS: tuple[type[Control], ...] = (
    Hello, Welcome, OpenWriter, Writer, CloseWriter, OpenReader, Reader, StatusReply, Latest, Weights, Publish, Published,
    Error, End, About, AboutReply, Clear, Save, Saved, Load, Sample, Sampled, Get, Got, Update, Delete, Prioritize,
)  # fmt: skip
DECODERS = {kind.TYPE: msgspec.msgpack.Decoder(kind) for kind in KINDS}
_encoder = msgspec.msgpack.Encoder()
_OFTEN = (Type.SAMPLE, Type.SAMPLED)
"""Kinds of which the same bodies come again and again: reading one costs more than what it asks for."""
_SHORT = 512
"""Bytes of a body that is remembered."""
_REMEMBERED = 256


def pack(body: Control) -> bytes:
    """The body frame. What a peer would refuse is refused here already.

    Raises
    ------
    Malformed
    """
    if body.TYPE is Type.SAMPLE or (body.TYPE is Type.SAMPLED and body.schema is None):  # type: ignore[attr-defined]
        return _packed_often(body)
    return _packed(body)


def _packed(body: Control) -> bytes:
    try:
        data = _encoder.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Malformed(f"{body.TYPE.name} cannot be sent: {error}") from None
    _decode(body.TYPE, data)
    return data


def unpack(kind: Type, frame: memoryview, most: int = bounds.CONTROL_BYTES) -> Control:
    """The message that a body frame holds.

    Raises
    ------
    Malformed
        Names the field that is wrong.
    """
    _bounded(kind, frame.nbytes, most)
    data = frame.tobytes()
    if kind in _OFTEN and len(data) <= _SHORT:
        return _read_often(kind, data)
    return _read(kind, data)


def _read(kind: Type, data: bytes) -> Control:
    scan.check(data)
    return _decode(kind, data)


_packed_often = functools.lru_cache(_REMEMBERED)(_packed)
_read_often = functools.lru_cache(_REMEMBERED)(_read)


def _decode(kind: Type, data: bytes) -> Control:
    _bounded(kind, len(data), bounds.CONTROL_BYTES)
    try:
        body: Control = DECODERS[kind].decode(data)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise Malformed(f"{kind.name}: {error}") from None
    return body


def _bounded(kind: Type, size: int, most: int) -> None:
    if size > most:
        text = f"{kind.name} has a body of {size} bytes, {most} are allowed: send less at a time"
        raise Malformed(text, ErrorCode.TOO_LARGE)
