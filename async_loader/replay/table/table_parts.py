"""What a table consists of, for a second front over it. `replay.buffer.parts_of` hands it out."""

from __future__ import annotations

from typing import NamedTuple

from async_loader.replay.table.insert import Inserter
from async_loader.replay.table.sample import TableSampler
from async_loader.replay.table.table_state import TableState


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
