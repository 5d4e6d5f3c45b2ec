"""The control messages that are calls of a table. See docs/wire.md, and `Control`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple

from msgspec import Meta

from async_loader.errors import Malformed
from async_loader.feeder.wire import codes
from async_loader.feeder.wire.codes import U32, U64, Name, Path, Patience, Text, Type
from async_loader.feeder.wire.control import Control, Plain, Share, TensorSpec, one_or_none
from async_loader.feeder.wire.schema_codec import SchemaSpec

Buffer = Any
"""bytes, bytearray, memoryview, a numpy array, a zmq.Frame.

Python has no name for it before 3.12.
"""


class Short(Control, frozen=True, array_like=True):
    """Root of the messages without names of fields."""


class Ping(Short, frozen=True):
    TYPE = Type.PING


class Pong(Short, frozen=True):
    TYPE = Type.PONG


class Done(Short, frozen=True):
    TYPE = Type.DONE


class Status(Short, frozen=True):
    TYPE = Type.STATUS


class Drain(Short, frozen=True):
    TYPE = Type.DRAIN


class Totals(Short, frozen=True):
    """A request for what the header's reader draws from; TOTALS_REPLY answers it."""

    TYPE = Type.TOTALS


class StatusReply(Short, frozen=True):
    """A map of plain values, of any size."""

    TYPE = Type.STATUS_REPLY
    MOST: ClassVar[int] = codes.MESSAGE_BYTES
    status: dict[str, Any]


class Ack(Short, frozen=True):
    """Cumulative watermarks of a writer.

    Every INSERT with a sequence below ``applied`` is in the table. The window is how much may be
    under way beyond it.
    """

    TYPE = Type.ACK
    applied: U64
    window_bytes: U64
    window_rows: U64


class SlotInsert(Short, frozen=True):
    """An INSERT whose rows lie in a slot of the writer's memory.

    ``capacity``: the rows that the frames in the slot have room for.
    """

    TYPE = Type.SLOT_INSERT
    rows: U32
    slot: U32
    capacity: U32

    def __post_init__(self) -> None:
        if self.rows > self.capacity:
            raise ValueError(f"INSERT of {self.rows} rows names a slot of {self.capacity}")


class Applied(Short, frozen=True):
    """How many of a call's ids had a row, and how many were stale."""

    TYPE = Type.APPLIED
    applied: U64
    stale: U64


class Pull(Short, frozen=True):
    """Absolute credit: batches that may be sent, counted from the reader's opening.

    With free slots. ``wait_s``: of
    a reader for calls, how long its call may wait; see `OpenReader`.
    """

    TYPE = Type.PULL
    granted: U64
    returned: tuple[U32, ...]
    wait_s: Patience = 0.0


class InSlot(NamedTuple):
    """A batch in shared memory. ``flags`` are those that its header would have."""

    slot: U32
    generation: U32
    rows: U32
    flags: U32 = 0


class SlotBatches(Short, frozen=True):
    """Batches in slots of shared memory, in order; the header has the sequence of the first."""

    TYPE = Type.SLOT_BATCHES
    places: Annotated[tuple[InSlot, ...], Meta(min_length=1)]


class CloseReader(Short, frozen=True):
    """The end of a reader and its leases.

    Leases of batches that did not arrive go back, and so do those in ``unused``: user code had the
    first ``seen`` of them. All others were used.

    Attributes
    ----------
    arrived : int
        Batches with a lower number have arrived.
    seen : int
    unused : tuple of int
    """

    TYPE = Type.CLOSE_READER
    arrived: U64 = 0
    seen: U64 = 0
    unused: tuple[U64, ...] = ()

    def __post_init__(self) -> None:
        if self.seen > len(self.unused):
            raise ValueError(f"{self.seen} of {len(self.unused)} leases were seen")


class Return(Short, frozen=True):
    """Leases of batches that were used."""

    TYPE = Type.RETURN
    leases: tuple[U64, ...]


class OfTable(Control, frozen=True, kw_only=True):
    """Root of the calls of a table."""

    table: Name


class About(OfTable, frozen=True, kw_only=True):
    """A request for a table's properties and counts."""

    TYPE = Type.ABOUT


class AboutReply(Control, frozen=True, kw_only=True, omit_defaults=True):
    """``limiter``: least size, samples per insert, error buffer; ``stats``: those of the table.

    ``sampler``: as text; ``settings``: of the sampler, as in a configuration. ``leased``: whether
    each item is given once. ``no_priorities``: why the table uses none.
    """

    TYPE = Type.ABOUT_REPLY
    schema: SchemaSpec | None
    limiter: Annotated[list[Any], Meta(max_length=3)] | None
    sampler: Text
    stats: dict[str, Any]
    settings: dict[str, Any] | None = None
    leased: bool = False
    no_priorities: Text | None = None


class Clear(OfTable, frozen=True, kw_only=True):
    """Remove all steps; the answer is DONE."""

    TYPE = Type.CLEAR


class Save(OfTable, frozen=True, kw_only=True):
    """Save to ``path``, within the folder of the table; the answer is SAVED."""

    TYPE = Type.SAVE
    path: Path = ""


class Saved(Control, frozen=True, kw_only=True):
    """What a save did."""

    TYPE = Type.SAVED
    number: U64
    nbytes: U64
    duration_s: codes.Wait
    pause_s: codes.Wait
    rows: U64


class Load(OfTable, frozen=True, kw_only=True):
    """Replace the rows by save ``number``, or by the newest one; the answer is DONE."""

    TYPE = Type.LOAD
    path: Path = ""
    number: U64 | None = None


class ById(OfTable, frozen=True, kw_only=True, omit_defaults=True):
    """Root of the calls by id: ``count`` ids (i64) in the data frame, and values behind them.

    The values are arrays ``[count, ...]`` of ``specs``.
    """

    count: U32
    specs: Annotated[tuple[TensorSpec, ...], Meta(max_length=codes.FIELDS)] = ()

    def __post_init__(self) -> None:
        for spec in self.specs:
            if not spec.shape or spec.shape[0] != self.count or spec.dtype not in codes.DTYPES:
                raise ValueError(
                    f"field {spec.name!r} has shape {spec.shape} and dtype {spec.dtype} for "
                    f"{self.count} ids"
                )
        if len({spec.name for spec in self.specs}) < len(self.specs):
            raise ValueError(f"{len(self.specs)} fields share names: name each once")

    def check_data(self, nbytes: int | None) -> None:
        """See `Control`."""
        one_or_none(self, nbytes, True)
        wanted = 8 * self.count + sum(spec.nbytes for spec in self.specs)
        if nbytes != wanted:
            raise Malformed(
                f"{self.TYPE.name} of {self.count} ids has a data frame of {nbytes} bytes, it "
                f"takes {wanted}"
            )


class Get(ById, frozen=True, kw_only=True):
    """Read rows; the answer, GOT, has those that still exist."""

    TYPE = Type.GET
    view: Plain | None = None


class Update(ById, frozen=True, kw_only=True):
    """Give fields new values. The answer is APPLIED."""

    TYPE = Type.UPDATE


class Delete(ById, frozen=True, kw_only=True):
    """Remove rows. The answer is APPLIED."""

    TYPE = Type.DELETE


class Prioritize(ById, frozen=True, kw_only=True):
    """Set priorities, the values named ``priority``. The answer is APPLIED."""

    TYPE = Type.PRIORITIZE


class Got(Control, frozen=True, kw_only=True, omit_defaults=True):
    """``rows`` rows, as the block of a batch of that size, if there are any.

    ``eta``: as in `Reader`.
    """

    TYPE = Type.GOT
    rows: Annotated[int, Meta(ge=0, le=2**20)]
    schema: SchemaSpec
    eta: Share | None = None

    def check_data(self, nbytes: int | None) -> None:
        """See `Control`."""
        one_or_none(self, nbytes, self.rows > 0)


class OfArrays(Control, frozen=True, kw_only=True, omit_defaults=True):
    """Root of messages with arrays in the data frame, one behind the other, of ``specs``.

    Or in a ``slot`` of the client's memory. A call without arrays lends it for those of its answer.
    """

    MOST: ClassVar[int] = codes.MESSAGE_BYTES
    specs: Annotated[tuple[TensorSpec, ...], Meta(max_length=codes.FIELDS)] = ()
    slot: U32 | None = None

    @property
    def nbytes(self) -> int:
        """Of the arrays."""
        return sum([spec.nbytes for spec in self.specs])

    def check_data(self, nbytes: int | None) -> None:
        """See `Control`."""
        one_or_none(self, nbytes, self.slot is None and self.nbytes > 0)


class Rollouts(OfArrays, frozen=True, kw_only=True, omit_defaults=True):
    """A call of a table of rollouts, whose answer may wait.

    Attributes
    ----------
    call : str
        One of `async_loader.rollouts.calls`, which checks ``arguments``; or of the server: "rest",
        "save", "load".
    wait_s : float | None
        How long it may take.
    """

    TYPE = Type.ROLLOUTS
    table: Name
    call: Name
    arguments: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it
    wait_s: codes.Wait | None = None


class RolloutsReply(OfArrays, frozen=True, kw_only=True, omit_defaults=True):
    """Its answer. ``total``: bytes of all arrays, if the data frame has the first of these alone;
    the call "rest" of this ``key`` brings others.
    """

    TYPE = Type.ROLLOUTS_REPLY
    answer: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it
    total: U64 = 0
    key: U64 = 0
