"""Transitions of calls of `add` that a table takes together: see
async_loader/replay/table/staged_steps.py, NOTE [staged steps].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from async_loader.replay.array_types import Array, Ids
from async_loader.replay.base.array_address import address_of
from async_loader.replay.base.field_table import NO_FIELDS, NO_PRIORITIES
from async_loader.replay.table.step_packer import StepPacker

_MOST = 64
_ALIGN = 8
_BYTES = 1 << 18
_CALL_BYTES = 1 << 15
"""Bytes of a call, beyond which a second copy costs more than the kernel that writes."""


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
    columns : list of arrays [calls, n_envs, ...]
        The memory, by field; without `truncated`, which is false in all.
    ends : memoryview
        That of `terminated`: ``n_envs`` bytes of each call, from ``ends_at + call * call_bytes``.
    ends_at : int
    fields : int64 array [fields, 5]
        Where the steps of the first call lie.
    streams : int64 array [n_envs]
        Numbers of the environments' streams, which the owner sets.
    """

    __slots__ = (
        "_flags",
        "call_bytes",
        "columns",
        "count",
        "ends",
        "ends_at",
        "fields",
        "most",
        "rows",
        "streams",
    )

    def __init__(self, packer: StepPacker, columns: Sequence[Array]) -> None:
        sizes = [-(-column.nbytes // _ALIGN) * _ALIGN for column in columns]
        starts = np.cumsum([0, *sizes]).tolist()
        self.call_bytes = starts.pop()
        calls, self.rows = min(_MOST, _BYTES // self.call_bytes), len(columns[-1])
        memory = np.zeros(calls * self.call_bytes, np.uint8)
        base = address_of(memory)
        self.columns = [
            np.ndarray(
                (calls, *column.shape),
                column.dtype,
                memory.data,
                start,
                (self.call_bytes, *column.strides),
            )
            for column, start in zip(columns[:-1], starts, strict=False)
        ]
        self.ends, self.ends_at = memory.data, starts[-2]
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
