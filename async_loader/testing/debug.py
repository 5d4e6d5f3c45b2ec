"""What a table holds inside, for tests."""

from __future__ import annotations

from typing import NamedTuple

from async_loader.public_names import set_public_names
from async_loader.replay.buffer import ReplayBuffer, shared_table
from async_loader.replay.checkpoint import Saver
from async_loader.replay.table.by_id import SharedTable

__all__ = ["DebugState", "debug_state"]
set_public_names(globals())


class DebugState(NamedTuple):
    """The parts of a `ReplayBuffer`: the objects that it works with, not copies.

    Their attributes may change between versions. Other threads change them under ``state.lock``.

    Attributes
    ----------
    state : SharedTable
        The lock, the table with its ids, links and items (``state.table``), samplers, writers.
    saver : Saver
    """

    state: SharedTable
    saver: Saver


def debug_state(buffer: ReplayBuffer) -> DebugState:
    """Return the parts of a buffer, for a test that looks inside.

    Steps that were gathered are written before; those that are added later may be gathered.
    """
    state = shared_table(buffer)
    lock = state.lock
    if state.ready and lock.acquire(blocking=False):
        try:
            state.catch_up()
        finally:
            lock.release()
    return DebugState(state, buffer._saver)
