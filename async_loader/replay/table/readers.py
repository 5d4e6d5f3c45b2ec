"""The reader of each view."""

from __future__ import annotations

from typing import NamedTuple

from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.samplers.random_numbers import RandomNumbers
from async_loader.replay.table.insert import Inserter
from async_loader.replay.table.reader import ReplayReader
from async_loader.replay.table.sample import TableSampler
from async_loader.replay.table.table_state import TableState


def reader_of(
    table_state: TableState, read_plan: ReadPlan, numbers: RandomNumbers | None = None
) -> ReplayReader:
    """Make the reader of a read plan.

    ``numbers`` choose hindsight goals; by default the reader has its own, from the table's seed.
    """
    if numbers is None and read_plan.goals is not None:
        numbers = RandomNumbers(table_state.goal_seeds())
    return ReplayReader(table_state.table.storage, read_plan, numbers)


class TableParts(NamedTuple):
    """The parts that every front of one table shares.

    `ReplayBuffer` is the front that waits, `NonblockingTable` the one for an event loop. Both may
    be used side by side, since each part takes the table's lock by itself.

    Attributes
    ----------
    state : TableState
        The lock, the table under it, its limits, and the waiting calls.
    inserter : Inserter
        Adds steps and changes priorities.
    table_sampler : TableSampler
        Draws and reads items.
    """

    state: TableState
    inserter: Inserter
    table_sampler: TableSampler
