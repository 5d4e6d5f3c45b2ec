"""Compiles the kernels of a table ahead of its first use."""

from __future__ import annotations

import numpy as np

from async_loader.replay.base.compiled import note_kept
from async_loader.replay.base.row_format import FINAL, TRUNCATED
from async_loader.replay.buffer import ReplayBuffer, parts_of
from async_loader.replay.samplers import Fifo, Prioritized, Uniform
from async_loader.replay.table.nonblocking_table import Incoming, NonblockingTable
from async_loader.replay.views import Transitions
from async_loader.schema import Field

_warm = False
"""Whether this process has called `warm`."""


def is_warm() -> bool:
    """Return whether this process has called `warm`."""
    return _warm


def warm() -> None:
    """Compile the kernels that a served table calls, or load them; once for each process.

    Takes seconds if none is cached, during which a loop would not answer.
    """
    global _warm
    if _warm:
        return
    schema = {
        "x": Field((), np.dtype(np.float32), next="y"),
        "big": ((1 << 10,), np.float32),
        "reward": np.float32,
    }
    for made, sampler in (
        ({"x": np.float32}, Uniform()),
        (schema, Prioritized(0.5)),
        ({"x": np.float32}, Fifo()),
    ):
        buffer = ReplayBuffer(16, made, sampler=sampler, seed=0)
        table = NonblockingTable(parts_of(buffer))
        columns = (
            [np.zeros((4, *field.shape), field.dtype) for field in table.schema.fields]
            if table.schema
            else []
        )
        flags = np.array([0, 0, TRUNCATED, FINAL])
        table.insert(Incoming(np.full(4, table.stream(0)), flags, np.full(4, np.nan), columns), 0)
        table.insert(
            Incoming(
                np.full(4, table.stream(0)), np.zeros(4, np.int64), np.full(4, np.nan), columns
            ),
            0,
        )
        table.end([0])
        for view in (None, Transitions(n_steps=2, gamma=0.9)) if len(columns) > 1 else (None,):
            drawing = table.drawing(view, 0, 1, None)
            drawing.why_not(2)
            drawing.arrays(2)
            drawing.close()
        if type(sampler) is Prioritized:
            table.prioritize(np.zeros(1, np.int64), np.ones(1))
        buffer.close()
    note_kept()
    _warm = True
