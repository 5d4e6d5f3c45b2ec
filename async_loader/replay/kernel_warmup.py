"""Compiles the kernels of a table ahead of its first use."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.replay.base.compiled import note_kept
from async_loader.replay.base.row_format import FINAL, TRUNCATED
from async_loader.replay.buffer import ReplayBuffer, parts_of
from async_loader.replay.samplers import Fifo, Prioritized, Sampler, Uniform
from async_loader.replay.table.nonblocking_table import Incoming, NonblockingTable
from async_loader.replay.views import Sequences, Transitions, View
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
    ends = {**schema, "terminated": np.bool_}
    sequences = Sequences(2, boundary="pad")
    uses: list[tuple[dict[str, Any], Sampler, View | None]] = [
        ({"x": np.float32}, Uniform(), None),
        (schema, Prioritized(0.5), None),
        ({"x": np.float32}, Fifo(), None),
        (ends, Prioritized(0.5), sequences),
    ]
    for made, sampler, own in uses:
        buffer = ReplayBuffer(16, made, sampler=sampler, view=own, seed=0)
        _use(buffer, Transitions(n_steps=2, gamma=0.9) if made is schema else None)
        buffer.close()
    note_kept()
    _warm = True


def _use(buffer: ReplayBuffer, other: View | None) -> None:
    """Insert and draw as a server does; with another view too, unless it is ``None``."""
    table = NonblockingTable(parts_of(buffer))
    assert table.schema is not None
    columns = [np.zeros((4, *field.shape), field.dtype) for field in table.schema.fields]
    given = np.full(4, 1.0 if buffer.view is not None else np.nan)
    for flags in (np.array([0, 0, TRUNCATED, FINAL]), np.zeros(4, np.int64)):
        table.insert(Incoming(np.full(4, table.stream(0)), flags, given, columns), 0)
    table.end([0])
    for view in (None,) if other is None else (None, other):
        drawing = table.drawing(view, 0, 1, None)
        drawing.why_not(2)
        drawing.arrays(2)
        drawing.close()
    if table.sampler.prioritized:
        table.prioritize(np.zeros(1, np.int64), np.ones(1))
