"""Where the rows of one table lie in a table of another capacity."""

from __future__ import annotations

import numpy as np

from async_loader.replay.array_types import Ids
from async_loader.replay.base.row_format import DELETED, FLAGS, ID, PREV
from async_loader.replay.table.table import Table


def places(ids: Ids, cursor: int, old_rows: int, new_rows: int) -> Ids:
    """Return the new rows of steps, -1 for those that do not fit or are gone.

    A table whose rows are overwritten in order holds ids from ``cursor - rows`` on. A lower id
    belongs to a row that was set aside for a writer and never filled: its step is gone.
    """
    kept = (ids >= 0) & (ids >= cursor - min(old_rows, new_rows))
    return np.where(kept, ids % new_rows, -1)


def retire(table: Table, oldest_kept: int) -> None:
    """End the items that show steps before this id, as the table would have while it was written:
    those beyond the newest `capacity`, and those whose compressed values have no room.

    Its rows are in place; `Table.restore` comes later.
    """
    heads, layout = table.storage.heads(), table.storage.layout
    rows = layout.rows
    names = heads[:, ID // 8] - 1
    used = np.flatnonzero(names >= 0)
    oldest = names[used].copy()
    for _ in range(max(field.stack for field in layout.schema.fields) - 1):
        at = oldest % rows
        there = (oldest >= 0) & (names[at] == oldest)
        before = np.where(there, heads[at, PREV // 8], -1)
        oldest = np.where(before >= 0, before, oldest)
    gone = used[oldest < oldest_kept]
    heads[gone, FLAGS // 8] |= DELETED
    table.items.alive[gone] = 0
