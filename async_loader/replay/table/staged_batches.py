"""Memory for batches of one shape that follow each other, as a vector of environments gives them.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Self

import numpy as np

from async_loader.replay.array_types import Ids
from async_loader.replay.base.array_address import address_of
from async_loader.replay.base.field_table import NO_FIELDS, NO_PRIORITIES
from async_loader.replay.table.last_streams import comparable
from async_loader.replay.table.step_packer import StepPacker

_ROWS = 512
_BYTES = 1 << 18
_BATCHES = 64
_look: Any = attrgetter("__class__", "dtype", "shape")
_NUMPY = np.ndarray


class StagedBatches:
    """Memory for batches that look like one, and what is known of each of them.

    Parameters
    ----------
    step_packer : StepPacker
    values : sequence of arrays [rows, ...]
        Of that batch, in the order of the schema's fields.
    stream : object
        What named its streams.
    numbers : int64 array [rows]
        Of its streams.
    known_to : mapping
        As in `LastStreams`.

    Attributes
    ----------
    rows : int
        Of a batch.
    most : int
        Rows of all batches that there is memory for.
    """

    __slots__ = (
        "_converted",
        "_ends",
        "_fields",
        "_flagged",
        "_flags",
        "_given",
        "_looks",
        "_memory",
        "_no_final",
        "_pack_into",
        "_size",
        "_step_packer",
        "_streams",
        "known_to",
        "most",
        "rows",
    )

    def __init__(
        self,
        step_packer: StepPacker,
        values: Sequence[Any],
        stream: object,
        numbers: Ids,
        known_to: Mapping[Hashable, int],
    ) -> None:
        self._step_packer, self.known_to = step_packer, known_to
        self._looks, self._given = list(map(_look, values)), comparable(stream)
        self.rows = rows = len(numbers)
        fields = step_packer.schema.fields
        self._converted = [i for i, f in enumerate(fields) if values[i].dtype is not f.dtype]
        # One field behind the other, each a column, in one call for all.
        columns = np.cumsum([0, *(rows * field.nbytes for field in fields)]).tolist()
        self._ends = [slice(columns[i], columns[i + 1]) for i in step_packer.ends]
        self._size = size = columns[-1]
        self._pack_into = struct.Struct(f"{size}s").pack_into
        batches = _batches(rows, size)
        memory = np.zeros(batches * size, np.uint8)
        self._memory, self.most = memory.data, batches * rows
        self._fields = step_packer.fields_at(
            step_packer.everything, [address_of(memory) + start for start in columns[:-1]]
        )
        self._streams = np.tile(numbers, batches)
        self._flags = np.zeros(self.most, np.int64)
        self._flagged = False
        self._no_final = np.zeros(rows, np.bool_)

    @classmethod
    def of(
        cls,
        step_packer: StepPacker,
        values: Sequence[Any],
        stream: object,
        numbers: Ids,
        known_to: Mapping[Hashable, int],
    ) -> Self | None:
        """Make memory for batches like this one; ``None`` if they cannot be staged."""
        if comparable(stream) is None or any(type(value) is not _NUMPY for value in values):
            return None
        size = len(numbers) * step_packer.schema.nbytes
        if _batches(len(numbers), size) < 2:
            return None
        return cls(step_packer, values, stream, numbers, known_to)

    def fits(self, values: Sequence[Any], stream: object) -> bool:
        """Return whether a batch looks like the one this memory is for, and names its streams."""
        try:
            return list(map(_look, values)) == self._looks and comparable(stream) == self._given
        except AttributeError:  # a list, a number
            return False

    def packed(self, values: Sequence[Any]) -> bytes | None:
        """Return the bytes of a batch that `fits`; ``None`` if it cannot be staged.

        Raises SchemaError as `StepPacker.columns`.
        """
        if self._converted:
            values = list(values)
            for i in self._converted:
                values[i] = self._step_packer.column(i, values[i])
        try:
            return b"".join(values)
        except ValueError:  # not contiguous
            return None

    def flags(self, packed: bytes, values: Sequence[Any], said: Ids | None) -> Ids | None:
        """Return the flags of a batch; ``None`` if it has none. Raises as `StepPacker.steps`."""
        if said is None and not any(packed[field].strip(b"\0") for field in self._ends):
            return None
        step_packer = self._step_packer
        return step_packer.check_ends(step_packer.column_ends(values, said), self._no_final)

    def put(self, place: int, packed: bytes, flags: Ids | None) -> None:
        """Copy a batch behind ``place`` rows."""
        rows = self.rows
        self._pack_into(self._memory, place // rows * self._size, packed)
        if not place and self._flagged:
            self._flags[:] = 0
            self._flagged = False
        if flags is not None:
            self._flagged = True
            self._flags[place : place + rows] = flags
        elif self._flagged:
            self._flags[place : place + rows] = 0  # an interrupted call may have left some

    def taken(self, count: int) -> tuple[Any, ...]:
        """Return the first ``count`` rows; see `write.Staged`."""
        return (
            self._fields,
            (self.rows, self._size),
            NO_FIELDS,
            count,
            self._streams[:count],
            self._flags[:count],
            NO_PRIORITIES,
            np.full(count, -1, np.int64),
            self,
        )


def _batches(rows: int, size: int) -> int:
    """Return how many batches of that many rows and bytes are staged."""
    return min(_BATCHES, _ROWS // rows, _BYTES // size) if rows and size else 0
