"""Control messages: one msgpack map each. Their session and number are in the header.

A field with a default may be left out; unknown fields are refused.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from async_loader.errors import Malformed
from async_loader.feeder.wire import codes
from async_loader.feeder.wire.codes import (
    U8,
    U16,
    U32,
    U64,
    Count,
    ErrorCode,
    Id,
    Limits,
    Name,
    Seconds,
    Shape,
    Text,
    Type,
)
from async_loader.feeder.wire.schema_codec import SchemaSpec

Transport = Literal["tcp", "shm"]
Share = Annotated[float, Meta(ge=0, le=1)]
Plain = Annotated[dict[str, Any], Meta(max_length=16)]
"""An object of a table as plain values, as in a configuration."""


class Body(msgspec.Struct, frozen=True):
    """Root of all messages; ``TYPE`` is the header's."""

    TYPE: ClassVar[Type]


class Control(Body, frozen=True, forbid_unknown_fields=True):
    """Root of the messages of one msgpack value, of ``MOST`` bytes; 0: as the receiver says."""

    MOST: ClassVar[int] = 0

    def check_data(self, nbytes: int | None) -> None:
        """Raise Malformed for a data frame of ``nbytes``; ``None``: without a data frame."""
        if nbytes is not None:
            raise Malformed(f"{self.TYPE.name} has 1 data frame, it takes 0")


class Hello(Control, frozen=True, kw_only=True):
    """The first message of a client; ``client`` is drawn once per process."""

    TYPE = Type.HELLO
    client: Id
    pid: U32
    host: Name
    user_agent: Text = ""


class Welcome(Control, frozen=True, kw_only=True):
    """The server's answer; the header has the session.

    Silence of ``silence_s`` ends it, on either side. ``rollouts``: which tables are of rollouts.
    """

    TYPE = Type.WELCOME
    incarnation: Id
    heartbeat_s: Seconds
    silence_s: Seconds
    insert_endpoint: Text
    pull_endpoint: Text
    memory_endpoint: Text | None
    limits: Limits
    tables: Annotated[tuple[Name, ...], Meta(max_length=codes.FIELDS)]
    rollouts: Annotated[tuple[Name, ...], Meta(max_length=codes.FIELDS)] = ()


class OpenWriter(Control, frozen=True, kw_only=True):
    """``producer`` is drawn once and kept."""

    TYPE = Type.OPEN_WRITER
    table: Name
    producer: Id
    schema: SchemaSpec | None = None


class Writer(Control, frozen=True, kw_only=True, omit_defaults=True):
    """INSERTs below ``applied`` are in the table.

    ``no_priorities``: why the table takes none. ``queue``: the table is one, and a writer is to
    hold what the window says, and one message.
    """

    TYPE = Type.WRITER
    schema: SchemaSpec
    applied: U64
    window_bytes: U64
    window_rows: U64
    resumed: bool
    no_priorities: Text | None = None
    queue: bool = False


class CloseWriter(Control, frozen=True, kw_only=True):
    """``last`` is the number of INSERTs, which are all applied; the answer is DONE."""

    TYPE = Type.CLOSE_WRITER
    last: U64


class OpenReader(Control, frozen=True, kw_only=True, omit_defaults=True):
    """``together``: batches that one message may hold, over tcp.

    ``view``, ``sampler``: of this reader. ``min_size``: the items that each batch waits for.
    ``max_lag``: the versions that the policy of a step may be behind. With ``masses``, ``weight``
    is what a row's probability is in proportion to. ``first``: the number of its first batch, with
    a ``seed``: each has random numbers of its own.

    With ``wait_s`` it is a reader for calls, and may take this long to open: each batch is drawn
    for a call, and an ERROR takes the place of one that there is not in time. A negative number:
    this long where a limiter is to be waited for; else ERROR NOT_ENOUGH answers at once.
    """

    TYPE = Type.OPEN_READER
    table: Name
    batch_size: Count
    view: Plain | None = None
    rank: U32 = 0
    world_size: Count = 1
    seed: U64 | None = None
    first: U64 = 0
    transport: Transport = "tcp"
    timeout_s: Seconds | None = None
    prefetch: Count = 4
    together: Count = 1
    min_size: Annotated[int, Meta(ge=1, le=2**63 - 1)] = 1
    sampler: Plain | None = None
    max_lag: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    masses: bool = False
    wait_s: codes.Patience | None = None

    def __post_init__(self) -> None:
        if self.rank >= self.world_size:
            raise ValueError(f"rank {self.rank} is not below world_size {self.world_size}")


class Reader(Control, frozen=True, kw_only=True, omit_defaults=True):
    """``schema`` is that of a batch's rows, with index and weight.

    ``leased`` rows must be returned.

    ``eta``: if each row is a sequence; see `async_loader.Sequences`.
    """

    TYPE = Type.READER
    schema: SchemaSpec
    leased: bool
    transport: Transport
    eta: Share | None = None


class TotalsReply(Control, frozen=True, kw_only=True, omit_defaults=True):
    """How much a reader's batches are drawn from, at this moment.

    Attributes
    ----------
    items : int
        That can be drawn; 0 while the reader is not open, and while the limiter waits for more.
    mass : float | None
        The sum of what their probabilities are in proportion to; ``None``: all are the same.
    least : float | None
        The least of these, where the sampler knows it.
    uses_up : bool
        Whether a draw changes what later draws may have.
    """

    TYPE = Type.TOTALS_REPLY
    items: U64
    mass: Annotated[float, Meta(ge=0)] | None = None
    least: Annotated[float, Meta(ge=0)] | None = None
    uses_up: bool = False


class Latest(Control, frozen=True, kw_only=True):
    """A request for weights newer than ``newer_than``, or for more of ``version``.

    At most ``most`` bytes from ``offset``. ``timeout_s`` is how long the answer may wait for newer
    ones; without it the answer comes at once. ``run``: that of ``newer_than`` or ``version``;
    weights of another run count as newer.
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
            raise ValueError(
                f"tensor {self.name!r} has dtype code {self.dtype}, known are 1 to "
                f"{max(codes.TENSOR_DTYPES)}"
            )
        # numpy multiplies dimensions also when one of them is 0.
        if math.prod([n or 1 for n in self.shape]) * 16 >= 2**63:
            raise ValueError(
                f"tensor {self.name!r} has shape {self.shape}: no array can be that large"
            )

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * codes.TENSOR_DTYPES[self.dtype].itemsize


class Weights(Control, frozen=True, kw_only=True):
    """A part of the weights, in a data frame; without one: nothing is newer than ``version``.

    The first part (offset 0) names all tensors, which follow each other in C order without gaps;
    later parts name none. ``run``: the client that published them; versions count within it.
    """

    TYPE = Type.WEIGHTS
    name: Name
    version: U64 | None
    total_bytes: U64 = 0
    offset: U64 = 0
    specs: Annotated[tuple[TensorSpec, ...], Meta(max_length=codes.FIELDS)] = ()
    run: Id | None = None

    def __post_init__(self) -> None:
        if self.offset and self.specs:
            raise ValueError(
                f"a part at offset {self.offset} names {len(self.specs)} tensors: the first part "
                "does"
            )
        if len({spec.name for spec in self.specs}) < len(self.specs):
            raise ValueError(
                f"{len(self.specs)} tensors share names: give every tensor a name of its own"
            )
        total = sum(spec.nbytes for spec in self.specs)
        if not self.offset and total != self.total_bytes:
            raise ValueError(f"the tensors have {total} bytes, total_bytes is {self.total_bytes}")

    def check_data(self, nbytes: int | None) -> None:
        """See `Control`."""
        carries = self.TYPE is Type.PUBLISH or bool(self.total_bytes)
        one_or_none(self, nbytes, carries)
        if nbytes is not None and not 0 < nbytes <= self.total_bytes - self.offset:
            text = f"{nbytes} bytes at offset {self.offset} of weights that have {self.total_bytes}"
            raise Malformed(
                f"{self.TYPE.name} holds {text}: send a part that is not empty and ends within"
            )


class Publish(Weights, frozen=True, kw_only=True):
    """A part of a learner's weights, as in WEIGHTS; the answer is PUBLISHED.

    Their run is the client id.
    """

    TYPE = Type.PUBLISH
    version: U64


class Published(Control, frozen=True, kw_only=True):
    """The result of a part.

    ``newest``: it was taken. Else there are newer weights, or a ``run`` that began later.
    """

    TYPE = Type.PUBLISHED
    newest: bool
    version: U64 | None = None
    run: Id | None = None


class Error(Control, frozen=True, kw_only=True):
    """The same in all versions. ``code`` may be one of another version."""

    TYPE = Type.ERROR
    code: U16
    text: Text
    retryable: bool
    expected: U64 | None = None

    @classmethod
    def of(cls, code: ErrorCode, text: str, expected: int | None = None) -> Error:
        return cls(
            code=code, text=text[:512], retryable=codes.worth_retrying(code), expected=expected
        )

    @classmethod
    def of_malformed(cls, error: Malformed) -> Error:
        """Return what tells a peer of a refusal."""
        return cls.of(ErrorCode(error.code), str(error), error.expected)


class End(Control, frozen=True, kw_only=True):
    """The end of a session or a reader, without an error. ``count``: messages before it."""

    TYPE = Type.END
    reason: Text
    count: U64


def one_or_none(body: Control, nbytes: int | None, one: bool) -> None:
    """Raise Malformed unless there is a data frame exactly if ``one`` says so."""
    if (nbytes is not None) is not one:
        raise Malformed(
            f"{body.TYPE.name} has {int(nbytes is not None)} data frames, it takes {int(one)}"
        )
