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
_look: Any = attrgetter("__class__", "dtype", "nbytes")


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
    fields : int64 array [fields, 5]
        Where the steps of the first call lie.
    streams : int64 array [n_envs]
        Numbers of the environments' streams, which the owner sets.
    """

    __slots__ = (
        "_flags",
        "_looks",
        "_memory",
        "_no_ends",
        "_pack_into",
        "_rows",
        "call_bytes",
        "count",
        "fields",
        "most",
        "streams",
    )

    def __init__(self, packer: StepPacker, columns: Sequence[Array]) -> None:
        self._looks = list(map(_look, columns))
        starts = np.cumsum([0, *(column.nbytes for column in columns)]).tolist()
        self.call_bytes = starts.pop()
        self._no_ends = bytes(self.call_bytes - starts[-2])
        self._pack_into = struct.Struct(f"{self.call_bytes}s").pack_into
        calls, self._rows = min(_MOST, _BYTES // self.call_bytes), len(columns[-1])
        memory = np.zeros(calls * self.call_bytes, np.uint8)
        self._memory = memory.data
        base = address_of(memory)
        self.fields = packer.fields_at(packer.everything, [base + start for start in starts])
        self.streams: Ids = np.empty(self._rows, np.int64)
        self.most = calls * self._rows
        self._flags = np.zeros(self.most, np.int64)
        self.count = 0

    @staticmethod
    def suits(columns: Sequence[Array]) -> bool:
        """Return whether calls of these columns are small enough."""
        return sum(column.nbytes for column in columns) <= _CALL_BYTES

    def pack(self, values: Sequence[Any]) -> bytes | None:
        """Return one call's values as they lie in memory; ``None`` if they are not arrays in the
        dtypes of the table, or if an episode ends. Without the lock.
        """
        try:
            if list(map(_look, values)) != self._looks:
                return None
            packed = b"".join(values)
        except (AttributeError, TypeError):  # no arrays, or not contiguous
            return None
        return packed if packed.endswith(self._no_ends) else None

    def put(self, packed: bytes) -> None:
        """Stage one call."""
        rows = self._rows
        self._pack_into(self._memory, self.count // rows * self.call_bytes, packed)
        self.count += rows

    def taken(self) -> tuple[Any, ...]:
        """See `async_loader.replay.table.write.Staged`."""
        count, rows = self.count, self._rows
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
