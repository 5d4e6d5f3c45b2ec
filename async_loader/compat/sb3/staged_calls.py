"""Transitions of calls of `add` that a table takes together: see
async_loader/replay/table/staged_steps.py, NOTE [staged steps].
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from async_loader.replay.array_types import Array, Ids
from async_loader.replay.base.array_address import address_of
from async_loader.replay.base.field_table import NO_FIELDS, NO_PRIORITIES
from async_loader.replay.table.step_packer import StepPacker

_MOST = 64
_BYTES = 1 << 18
_CALL_BYTES = 1 << 15
"""Bytes of a call, beyond which a second copy costs more than the kernel that writes."""
look: Any = attrgetter("__class__", "dtype", "nbytes")


class StagedCalls:
    """Memory for calls that end no episode. Under the table's lock.

    Parameters
    ----------
    packer : StepPacker
        Of the table.
    columns : sequence of arrays [n_envs, ...]
        Of one call, in the order of the table's fields. The last two say whether episodes end.

    Attributes
    ----------
    count : int
        Steps that are staged.
    most : int
        Steps for which there is memory.
    call_bytes : int
    rows : int
        Steps of one call.
    looks : list
        What `look` returns of the arrays of a call.
    no_ends : bytes
        How a call ends in which no episode does.
    memory : memoryview
    pack_into : callable
        Writes the bytes of one call: ``pack_into(memory, offset, packed)``.
    fields : int64 array [fields, 5]
        Where the steps of the first call lie.
    streams : int64 array [n_envs]
        Numbers of the environments' streams, which the owner sets.
    """

    __slots__ = (
        "_flags",
        "call_bytes",
        "count",
        "fields",
        "looks",
        "memory",
        "most",
        "no_ends",
        "pack_into",
        "rows",
        "streams",
    )

    def __init__(self, packer: StepPacker, columns: Sequence[Array]) -> None:
        self.looks = list(map(look, columns))
        starts = np.cumsum([0, *(column.nbytes for column in columns)]).tolist()
        self.call_bytes = starts.pop()
        self.no_ends = bytes(self.call_bytes - starts[-2])
        self.pack_into = struct.Struct(f"{self.call_bytes}s").pack_into
        calls, self.rows = min(_MOST, _BYTES // self.call_bytes), len(columns[-1])
        memory = np.zeros(calls * self.call_bytes, np.uint8)
        self.memory = memory.data
        base = address_of(memory)
        self.fields = packer.fields_at(packer.everything, [base + start for start in starts])
        self.streams: Ids = np.empty(self.rows, np.int64)
        self.most = calls * self.rows
        self._flags = np.zeros(self.most, np.int64)
        self.count = 0

    @staticmethod
    def suits(columns: Sequence[Array]) -> bool:
        """Return whether calls of these columns are small enough."""
        return sum(column.nbytes for column in columns) <= _CALL_BYTES

    def taken(self) -> tuple[Any, ...]:
        """See `async_loader.replay.table.write.Staged`."""
        count, rows = self.count, self.rows
        return (
            self.fields,
            (rows, self.call_bytes),
            NO_FIELDS,
            count,
            np.tile(self.streams, count // rows),
            self._flags[:count],
            NO_PRIORITIES,
            np.full(count, -1, np.int64),
            self,
        )
