"""Memory for batches of one shape in a row, as a vector of environments gives them."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Self

import numpy as np

from async_loader.replay.array_types import Ids
from async_loader.replay.base.array_address import address_of
from async_loader.replay.base.field_table import NO_FIELDS, NO_PRIORITIES
from async_loader.replay.table.step_packer import StepPacker

_ROWS = 448
_BYTES = 1 << 18
_BATCHES = 64
look: Any = attrgetter("__class__", "dtype", "shape")
"""Return what the values of one field have in common, in batches that look alike."""


class StagedBatches:
    """Memory for batches that look like one, and what is known of each of them.

    A batch lies there field after field, the fields that may end an episode last: so one call
    copies all its columns, and one comparison shows that no episode ends.

    Parameters
    ----------
    step_packer : StepPacker
    values : sequence of arrays [rows, ...]
        Of that batch, in the order of `order`.
    given : object
        What named its streams, as `comparable` returns it.
    numbers : int64 array [rows]
        Of its streams.
    known_to : mapping
        As in `LastStreams`.

    Attributes
    ----------
    looks : list
        What `look` returns for the values of such a batch.
    converted : list of int
        Places of the values whose dtype is not that of their field.
    memory : memoryview
        Where batches lie one after the other, ``row_bytes`` for each row.
    no_ends : bytes
        How a batch ends in which no episode does.
    rows, most : int
        Of a batch; of all batches for which there is memory.
    ids : int64 array [most]
        Of all steps, from `begin` on.
    """

    __slots__ = (
        "_fields",
        "_flagged",
        "_flags",
        "_no_final",
        "_order",
        "_step_packer",
        "_streams",
        "converted",
        "given",
        "ids",
        "known_to",
        "looks",
        "memory",
        "most",
        "no_ends",
        "pack_into",
        "row_bytes",
        "rows",
    )

    def __init__(
        self,
        step_packer: StepPacker,
        values: Sequence[Any],
        given: object,
        numbers: Ids,
        known_to: Mapping[Hashable, int],
    ) -> None:
        self._step_packer, self.known_to = step_packer, known_to
        self.looks, self.given = list(map(look, values)), given
        self.rows = rows = len(numbers)
        fields, self._order = step_packer.schema.fields, order(step_packer)
        self.converted = [
            k for k, i in enumerate(self._order) if values[k].dtype is not fields[i].dtype
        ]
        columns = np.cumsum([0, *(rows * fields[i].nbytes for i in self._order)]).tolist()
        self.no_ends = bytes(columns[-1] - columns[len(fields) - len(step_packer.ends)])
        self.row_bytes = columns[-1] // rows
        self.pack_into = struct.Struct(f"{columns[-1]}s").pack_into
        batches = _batches(rows, columns[-1])
        memory = np.zeros(batches * columns[-1], np.uint8)
        self.memory, self.most = memory.data, batches * rows
        base, addresses = address_of(memory), [0] * len(fields)
        for i, start in zip(self._order, columns, strict=False):
            addresses[i] = base + start
        self._fields = step_packer.fields_at(step_packer.everything, addresses)
        self._streams = np.tile(numbers, batches)
        self._flags = np.zeros(self.most, np.int64)
        self._flagged = False
        self._no_final = np.zeros(rows, np.bool_)
        self.ids = self._flags

    @classmethod
    def of(
        cls,
        step_packer: StepPacker,
        values: Sequence[Any],
        given: object,
        numbers: Ids,
        known_to: Mapping[Hashable, int],
    ) -> Self | None:
        """Make memory for batches like this one; ``None`` if they cannot be staged."""
        if given is None or any(type(value) is not np.ndarray for value in values):
            return None
        rows = len(numbers)
        if _batches(rows, rows * step_packer.schema.nbytes) < 2:
            return None
        return cls(step_packer, values, given, numbers, known_to)

    def convert(self, values: Sequence[Any]) -> list[Any]:
        """Return the values in the dtypes of the fields. Raises as `StepPacker.columns`."""
        made = list(values)
        for k in self.converted:
            made[k] = self._step_packer.column(self._order[k], made[k])
        return made

    def flags(self, values: Sequence[Any], said: Ids | None) -> Ids:
        """Return the flags of a batch. Raises as `StepPacker.steps`."""
        step_packer = self._step_packer
        columns = dict(zip(self._order, values, strict=True))
        ended = step_packer.column_ends([columns[i] for i in step_packer.everything], said)
        return step_packer.check_ends(ended, self._no_final)

    def begin(self, first: int) -> None:
        """Begin anew, with the step of id ``first``."""
        self.ids = np.arange(first, first + self.most)
        if self._flagged:
            self._flags[:] = 0
            self._flagged = False

    def flag(self, place: int, flags: Ids | None) -> None:
        """Set the flags of the batch behind ``place`` rows."""
        if flags is not None:
            self._flagged = True
            self._flags[place : place + self.rows] = flags
        elif self._flagged:
            self._flags[place : place + self.rows] = 0  # an interrupted call may have set some

    def taken(self, count: int) -> tuple[Any, ...]:
        """Return the first ``count`` steps; see `write.Staged`."""
        return (
            self._fields,
            (self.rows, self.rows * self.row_bytes),
            NO_FIELDS,
            count,
            self._streams[:count],
            self._flags[:count],
            NO_PRIORITIES,
            np.full(count, -1, np.int64),
            self,
        )


def order(step_packer: StepPacker) -> list[int]:
    """Return the fields in the order in which batches lie in memory."""
    return [i for i in step_packer.everything if i not in step_packer.ends] + step_packer.ends


def _batches(rows: int, nbytes: int) -> int:
    """Return how many batches of that many rows and bytes are staged."""
    return min(_BATCHES, _ROWS // rows, _BYTES // nbytes) if nbytes else 0
