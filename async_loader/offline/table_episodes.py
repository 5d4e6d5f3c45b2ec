"""The episodes that a table holds, in the order in which they began."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError
from async_loader.offline.episode import Episode
from async_loader.replay.base import row_format as r
from async_loader.replay.buffer import ReplayBuffer, parts_of
from async_loader.replay.table.newest_episodes import NewestEpisodes, newest_episodes
from async_loader.replay.views import Transitions
from async_loader.schema import Schema


def episodes_of(table: ReplayBuffer) -> NewestEpisodes:
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
        return NewestEpisodes(none, none, none, none, none.astype(np.bool_), None)
    with state.lock:
        state.check_open()
        state.catch_up()
        return newest_episodes(state.table, int(state.table.g[r.ROWS]), drawable=True)


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
