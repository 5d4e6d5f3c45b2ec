"""The episodes that a table holds, in the order in which they began."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError
from async_loader.offline.episode import Episode
from async_loader.replay.array_types import Floats, Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.buffer import ReplayBuffer, parts_of
from async_loader.replay.table.rebuild import in_order
from async_loader.replay.table.storage import Storage
from async_loader.replay.views import Transitions
from async_loader.schema import Schema


class TableEpisodes(NamedTuple):
    """The steps of a table that can be drawn, by episode.

    Attributes
    ----------
    ids : int64 array [steps]
        Of the steps, oldest first.
    order : int64 array [steps]
        Places in ``ids``, episode after episode.
    starts : int64 array [episodes]
        Where each begins in ``order``.
    flags : int64 array [steps]
        Of ``ids``: those of row_format.py.
    sums : float64 array [episodes] | None
        Of rewards; ``None`` for a table without a field ``reward`` of single numbers.
    """

    ids: Ids
    order: Ids
    starts: Ids
    flags: Ids
    sums: Floats | None

    @property
    def counts(self) -> Ids:
        """Return the steps of each episode."""
        return np.diff(np.append(self.starts, len(self.ids)))


def episodes_of(table: ReplayBuffer) -> TableEpisodes:
    """Return the episodes of a table; parts of those whose other steps are gone or to come.

    Raises
    ------
    ConfigError
        For a table of another process, or without a schema.
    """
    if not isinstance(table, ReplayBuffer):
        raise ConfigError(
            f"{type(table).__name__} is not a ReplayBuffer of this process: save() the table, and "
            "use ReplayBuffer.from_checkpoint()"
        )
    state = parts_of(table).state
    if not state.ready:
        none = np.empty(0, np.int64)
        return TableEpisodes(none, none, none, none, None)
    with state.lock:
        state.check_open()
        state.catch_up()
        rows, storage = in_order(state.table), state.table.storage
        ids, heads = state.table.ids[rows], storage.heads()[rows]
        before, flags = heads[:, r.PREV // 8], heads[:, r.FLAGS // 8] % r.VERSION_ONE
        at = np.minimum(np.searchsorted(ids, before), max(0, len(ids) - 1))
        joined = (before >= 0) & (ids[at] == before) & (flags[at] & r.ENDS == 0)
        root = np.where(joined, at, np.arange(len(ids)))
        while not np.array_equal(further := root[root], root):
            root = further
        order = np.argsort(root, kind="stable")
        starts = np.flatnonzero(np.diff(root[order], prepend=-1))
        return TableEpisodes(ids, order, starts, flags, _sums(storage, rows[order], starts))


def _sums(storage: Storage, rows: Ids, starts: Ids) -> Floats | None:
    """Return the sum of the rewards of each episode."""
    for i, field in enumerate(storage.layout.schema.fields):
        if field.name == "reward" and field.shape == () and field.dtype.kind in "biuf":
            rewards: Floats = storage.cell(i)[rows].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):  # a sum may be infinite, or NaN
                return np.add.reduceat(rewards, starts) if len(starts) else rewards
    return None


def read_episodes(table: ReplayBuffer) -> Iterator[Episode]:
    """Yield the episodes of a table, each with the observation after its last step if it is known.

    One that goes on, or whose later steps are gone, is truncated after the last step there is.

    Raises
    ------
    ConfigError
        For a table of another process, and for steps that went while they were read.
    """
    found = episodes_of(table)
    schema = table.schema
    if schema is None:
        return
    steps_alone = None if table.view is None else Transitions()
    for places in np.split(found.order, found.starts[1:]) if len(found.starts) else ():
        batch = table.get(found.ids[places], view=steps_alone)
        if gone := len(places) - len(batch["index"]):
            raise ConfigError(
                f"{gone} steps were overwritten while the table was "
                "read: let no writer add meanwhile, or save() it and read the checkpoint"
            )
        yield _episode(schema, batch, int(found.flags[places[-1]]))


def _episode(schema: Schema, batch: dict[str, Any], flags: int) -> Episode:
    """Return an episode from its rows: without stacks, which a table makes."""
    root = schema.structure
    assert root is not None
    newest = [(slice(None), -1) if field.stack > 1 else slice(None) for field in schema.fields]
    leaves = schema.leaves({name: batch[name] for name in root.keys})
    steps = schema.rebuild([leaf[at] for leaf, at in zip(leaves, newest, strict=True)])
    final = None
    shown = [(f.next, at) for f, at in zip(schema.fields, newest, strict=True) if f.next]
    if (
        "obs" in steps
        and len({name for name, _ in shown}) == 1
        and (flags & r.AWAITS or not flags & r.TERMINATED)
    ):
        structure, after = tree.structure_of(steps["obs"]), batch[shown[0][0]]
        if tree.structure_of(after) == structure:
            leaves = list(tree.leaves(after, structure))
            final = [leaf[at][-1] for leaf, (_, at) in zip(leaves, shown, strict=True)]
            final = tree.rebuild(structure, final)
    rest = {name: one for name, one in steps.items() if name not in ("terminated", "truncated")}
    truncated = bool(flags & r.TRUNCATED) or not flags & r.ENDS
    return Episode(rest, final, bool(flags & r.TERMINATED), truncated)
