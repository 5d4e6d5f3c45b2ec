"""The episodes that a table holds, in the order in which they began."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError
from async_loader.offline.episode import Episode
from async_loader.replay.array_types import Array, Floats, Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.buffer import ReplayBuffer, parts_of
from async_loader.replay.table.newest_episodes import episode_sums
from async_loader.replay.views import Transitions
from async_loader.schema import Schema


class EpisodeIndex(NamedTuple):
    """Which steps make the episodes of a table.

    Attributes
    ----------
    ids : int64 array [steps]
        Episode after episode.
    starts : int64 array [episodes]
        Where each begins in ``ids``.
    flags : int64 array [steps]
        Those of row_format.py.
    reward : float array [steps] | None
        ``None`` for a table without a field ``reward`` of single numbers.
    cut : int
        Episodes whose stacks show steps that are not among these: deleted ones, or overwritten.
    """

    ids: Ids
    starts: Ids
    flags: Ids
    reward: Floats | None
    cut: int = 0

    @property
    def lengths(self) -> Ids:
        """Return the steps of each episode."""
        return np.diff(np.append(self.starts, len(self.ids)))

    @property
    def returns(self) -> Floats | None:
        """Return the sum of each episode's rewards."""
        return None if self.reward is None else episode_sums(self.reward, self.starts)


def episodes_of(table: ReplayBuffer) -> EpisodeIndex:
    """Return the episodes of a table; parts of those whose other steps are gone or to come.

    Raises
    ------
    ConfigError
        For a table of another process.
    """
    if not isinstance(table, ReplayBuffer):
        raise ConfigError(
            f"{type(table).__name__} is not a ReplayBuffer of this process: save() the table, and "
            "use ReplayBuffer.from_checkpoint()"
        )
    state = parts_of(table).state
    none = np.empty(0, np.int64)
    if not state.ready:
        return EpisodeIndex(none, none, none, None)
    with state.lock:
        state.check_open()
        state.catch_up()
        inner = state.table
        rows = np.flatnonzero(inner.items.alive)
        rows = rows[np.argsort(inner.ids[rows])]
        ids, heads = inner.ids[rows].copy(), inner.storage.heads()[rows]
        reward = _rewards(state.table.storage.layout.schema, inner.storage, rows)
    before, flags = heads[:, r.PREV // 8], heads[:, r.FLAGS // 8] % r.VERSION_ONE
    at = np.searchsorted(ids, before)
    at[at == len(ids)] = 0
    joined = (before >= 0) & (ids[at] == before) if len(ids) else np.zeros(0, np.bool_)
    joined &= flags[at] & r.ENDS == 0
    root = np.where(joined, at, np.arange(len(ids)))
    while len(root) and (further := root[root]).tolist() != root.tolist():
        root = further
    order = np.argsort(root, kind="stable")
    starts = np.flatnonzero(np.diff(root[order], prepend=-1))
    ordered = None if reward is None else reward[order]
    cut = int((before[order[starts]] >= 0).sum()) if inner.g[r.DEPTH] > 1 else 0
    return EpisodeIndex(ids[order], starts, flags[order], ordered, cut)


def _rewards(schema: Schema, storage: Any, rows: Ids) -> Floats | None:
    for i, field in enumerate(schema.fields):
        if field.name == "reward" and field.shape == () and field.dtype.kind in "biuf":
            values: Floats = storage.cell(i)[rows].astype(np.float64)
            return values
    return None


def read_episodes(table: ReplayBuffer) -> Iterator[Episode]:
    """Yield the episodes of a table, each with the observation after its last step if it is known.

    One that goes on, or whose later steps are gone, is truncated after the last step there is.

    Raises
    ------
    ConfigError
        For a table of another process, and for steps that went while they were read.
    """
    index = episodes_of(table)
    schema = table.schema
    if schema is None:
        return
    stops = np.append(index.starts[1:], len(index.ids))
    steps_alone = None if table.view is None else Transitions()
    for start, stop in zip(index.starts.tolist(), stops.tolist(), strict=True):
        batch = table.get(index.ids[start:stop], view=steps_alone)
        if len(batch["index"]) != stop - start:
            raise ConfigError(
                f"{stop - start - len(batch['index'])} steps were overwritten while the table was "
                "read: let no writer add meanwhile, or save() it and read the checkpoint"
            )
        yield _episode(schema, batch, int(index.flags[stop - 1]))


def _episode(schema: Schema, batch: dict[str, Any], flags: int) -> Episode:
    """Return an episode from its rows: without stacks, which a table makes."""
    leaves = schema.leaves({name: batch[name] for name in schema.structure.keys})  # type: ignore[union-attr]
    plain = [_newest(one, field.stack) for field, one in zip(schema.fields, leaves, strict=True)]
    steps: dict[str, Any] = schema.rebuild(plain)
    count = len(batch["index"])
    terminated, truncated = np.zeros((2, count), np.bool_)
    terminated[-1] = bool(flags & r.TERMINATED)
    truncated[-1] = bool(flags & r.TRUNCATED) or not flags & r.ENDS
    for name in ("terminated", "truncated"):
        steps.pop(name, None)
    following = None
    if "obs" in steps and (flags & r.AWAITS or not flags & r.TERMINATED):
        names = {f.next for f in schema.fields if f.next and f.name.split(".")[0] == "obs"}
        if len(names) == 1:
            following = batch[names.pop()]
            if tree.structure_of(following) == tree.structure_of(steps["obs"]):
                stacks = [f.stack for f in schema.fields if f.name.split(".")[0] == "obs"]
                structure = tree.structure_of(following)
                following = tree.rebuild(
                    structure, map(_newest, tree.leaves(following, structure), stacks)
                )
            else:
                following = None
    return Episode(steps, following, terminated, truncated)


def _newest(array: Array, stack: int) -> Array:
    return array[:, -1] if stack > 1 else array
