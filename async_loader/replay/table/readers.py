"""The reader of each view."""

from __future__ import annotations

from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.samplers.random_numbers import RandomNumbers
from async_loader.replay.table.reader import ReplayReader
from async_loader.replay.table.table_state import TableState


def reader_of(
    table_state: TableState, read_plan: ReadPlan, numbers: RandomNumbers | None = None
) -> ReplayReader:
    """Make the reader of a read plan.

    ``numbers`` choose hindsight goals; by default the reader has its own, from the table's seed.
    """
    if numbers is None and read_plan.goals is not None:
        numbers = RandomNumbers(table_state.seeds.spawn(1)[0])
    return ReplayReader(table_state.table.storage, read_plan, numbers)
