"""The control messages that are calls of a table. See docs/wire.md, and `Control`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from async_loader.errors import Malformed
from async_loader.feeder.wire import codes
from async_loader.feeder.wire.codes import U32, U64, Name, Path, Text, Type
from async_loader.feeder.wire.control import Control, Plain, Share, TensorSpec, one_or_none
from async_loader.feeder.wire.schema_codec import SchemaSpec


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
    kind: Literal["full", "incremental"]
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
