"""Where the rows of one table lie in a table of another capacity, and what its samplers knew of
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from async_loader.replay.array_types import Floats, Ids
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


def as_told(
    state: Mapping[str, Any], settings: Mapping[str, Any] | None, rows: Ids, given: Floats
) -> tuple[Ids, Floats]:
    """Return items in the order in which a sampler was told of them, and the priorities that they
    have there: also those of items that came without one.

    Parameters
    ----------
    state, settings : mapping
        Of the sampler, from a save; ``None`` for a class that is not of the package.
    rows : int64 array [items]
        By their ids.
    given : float64 array [rows of the table]
        The priorities that items came with, or were given; NaN for none.
    """
    if "order" in state:
        listed = np.asarray(state["order"], np.int64)
        rows = listed[np.isin(listed, rows)]
    elif "ages" in state:
        rows = rows[np.argsort(np.asarray(state["ages"])[rows], kind="stable")]
    known = given[rows]
    if "keys" in state:
        priority = np.abs(np.asarray(state["keys"])[rows])
    elif "mass" in state and settings is not None:
        mass, alpha = np.asarray(state["mass"])[rows], settings["alpha"]
        # of alpha=0 all masses are the same, whatever the priorities
        shifted = mass ** (1.0 / alpha) if alpha else np.where(mass > 0, np.nan, 0.0)
        priority = np.maximum(shifted - settings["eps"], 0.0)
    else:
        priority = known
    return rows, np.where(np.isnan(known), priority, known)
