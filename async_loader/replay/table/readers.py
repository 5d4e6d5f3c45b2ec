"""The reader of each view."""

from __future__ import annotations

from async_loader.replay.hindsight_parts import HindsightParts
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.samplers.random_numbers import RandomNumbers
from async_loader.replay.table.decompressing_reader import DecompressingReader, plan_of_locators
from async_loader.replay.table.hindsight_reader import HindsightPartsReader, HindsightReader
from async_loader.replay.table.reader import ReplayReader
from async_loader.replay.table.sequence_reader import SequenceReader
from async_loader.replay.table.storage import Storage
from async_loader.replay.table.table_state import TableState


def reader_of(
    table_state: TableState, read_plan: ReadPlan, numbers: RandomNumbers | None = None
) -> ReplayReader:
    """Make the reader of a read plan.

    ``numbers`` choose hindsight goals; by default the reader has its own, from the table's seed.
    """
    storage = table_state.table.storage
    if storage.layout.ring[1]:
        rows = _reader_of_rows(
            table_state, storage, plan_of_locators(read_plan, storage.layout.schema), numbers
        )
        return DecompressingReader(rows, storage, read_plan)
    return _reader_of_rows(table_state, storage, read_plan, numbers)


def _reader_of_rows(
    table_state: TableState, storage: Storage, read_plan: ReadPlan, numbers: RandomNumbers | None
) -> ReplayReader:
    if read_plan.sequence is not None:
        return SequenceReader(storage, read_plan)
    if read_plan.goals is not None:
        in_parts = isinstance(read_plan.goals.view, HindsightParts)
        reader = HindsightPartsReader if in_parts else HindsightReader
        return reader(storage, read_plan, numbers or RandomNumbers(table_state.goal_seeds()))
    return ReplayReader(storage, read_plan)
