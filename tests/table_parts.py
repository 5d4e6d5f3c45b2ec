"""What a table holds inside, for tests."""

from __future__ import annotations

from typing import NamedTuple

from async_loader.replay.buffer import ReplayBuffer, parts_of
from async_loader.replay.checkpoint import Saver
from async_loader.replay.table.insert import Inserter
from async_loader.replay.table.sample import TableSampler
from async_loader.replay.table.table_state import TableState


class DebugState(NamedTuple):
    """The parts of a `ReplayBuffer`: the objects that it works with, not copies.

    Their attributes may change between versions. Other threads change them under ``state.lock``.

    Attributes
    ----------
    state : TableState
        The lock, the table with its ids, links and items (``state.table``), samplers, writers.
    inserter : Inserter
    table_sampler : TableSampler
    saver : Saver
    """

    state: TableState
    inserter: Inserter
    table_sampler: TableSampler
    saver: Saver


def debug_state(buffer: ReplayBuffer) -> DebugState:
    """Return the parts of a buffer, for a test that looks inside.

    Steps that were gathered are written before; those that are added later may be gathered.
    """
    parts = parts_of(buffer)
    lock = parts.state.lock
    if parts.state.ready and lock.acquire(blocking=False):
        try:
            parts.state.catch_up()
        finally:
            lock.release()
    return DebugState(parts.state, parts.inserter, parts.table_sampler, buffer._saver)
