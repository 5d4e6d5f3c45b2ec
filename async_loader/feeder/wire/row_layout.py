"""How records of steps are sent: the frames of a message are those of their layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from async_loader.errors import Malformed
from async_loader.feeder.wire import bounds
from async_loader.feeder.wire.codes import ErrorCode
from async_loader.feeder.wire.schema_codec import schema_id
from async_loader.replay.base.record_layout import RecordLayout
from async_loader.schema import Schema


@dataclass(frozen=True, eq=False)
class RowLayout(RecordLayout):
    """How rows of a schema are sent.

    Attributes
    ----------
    schema_id : int
        For the header of each message.
    bools : tuple of int
        Fields whose bytes have to be 0 or 1.
    """

    schema_id: int = 0
    bools: tuple[int, ...] = ()

    @classmethod
    def of(cls, schema: Schema) -> Self:
        """Return the layout of a schema. Raises SchemaError for one that cannot be sent."""
        number = schema_id(schema)
        bools = tuple(i for i, field in enumerate(schema.fields) if field.dtype.kind == "b")
        return replace(super().of(schema), schema_id=number, bools=bools)

    def check(self, frames: Sequence[memoryview], rows: int) -> None:
        """Raise Malformed unless these are the frames of ``rows`` rows."""
        if len(frames) != len(self.frame_bytes):
            raise Malformed(
                f"rows came in {len(frames)} frames, their schema takes {len(self.frame_bytes)}"
            )
        for i, size in enumerate(self.frame_bytes):
            if frames[i].nbytes != rows * size:
                raise Malformed(
                    f"frame {i} of {rows} rows holds {frames[i].nbytes} bytes, their schema takes "
                    f"{rows * size}"
                )

    def rows_within(self, message_bytes: int = bounds.MESSAGE_BYTES) -> int:
        """Return how many rows fit into one message.

        Raises
        ------
        Malformed
            TOO_LARGE, if not one does.
        """
        rows = min(message_bytes // max(1, self.row_bytes), 2**32 - 1)
        if not rows:
            text = (
                f"a row takes {self.row_bytes} bytes, a message {message_bytes}: raise "
                "message_bytes"
            )
            raise Malformed(text, ErrorCode.TOO_LARGE)
        return rows
