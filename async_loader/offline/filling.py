"""Writes checked episodes into a table, in bulk; what a failed import has added is taken out."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import AsyncLoaderError
from async_loader.interrupts import SignalsDeferred
from async_loader.offline.episode import Episode
from async_loader.replay.array_types import Ids
from async_loader.schema import Schema
from async_loader.table import Table

_ROWS = 4096
"""Short episodes are written together, up to this many steps."""


class TableFiller:
    """Adds whole episodes to a table, as a stream of its own.

    Parameters
    ----------
    table : Table
        Of this process, or of a feeder.
    schema : Schema, optional
        Of the steps, for a table that has none yet.
    timeout_s : float, optional
        Of each write; a feeder's table, or one with a limiter, may have to wait.

    Attributes
    ----------
    steps, episodes : int
        Written so far.
    """

    def __init__(
        self, table: Table, schema: Schema | None = None, timeout_s: float | None = None
    ) -> None:
        self._table, self._timeout_s = table, timeout_s
        self._writer = table.writer(schema=schema if table.schema is None else None)
        self._stream: Hashable = self._writer.stream
        self._limited = table.limiter is not None
        self._waiting: list[Episode] = []
        self._rows = 0
        self._ids: list[Ids] = []
        self.steps = self.episodes = 0

    def put(self, episode: Episode) -> None:
        """Add an episode, at once or with those that follow it."""
        if self._waiting and (self._waiting[-1].following is None) != (episode.following is None):
            self._write()  # together, each would have an observation after its end
        self._waiting.append(episode)
        self._rows += len(episode)
        if self._rows >= _ROWS:
            self._write()

    def finish(self) -> None:
        """Return when all episodes are in the table."""
        if self._waiting:
            self._write()
        self._writer.close(self._timeout_s)

    def undo(self, error: BaseException) -> None:
        """Take out what was added. ``error`` says what stays in a feeder's table."""
        if self._ids:
            self._table.delete(np.concatenate(self._ids))
        elif self.steps:
            error.add_note(
                f"{self.episodes} episodes with {self.steps} steps had been sent to the feeder "
                "before: clear() the table, or load() a save of it, to be without them"
            )
        try:
            self._writer.close(self._timeout_s)
        except AsyncLoaderError:  # the one that ended the import says why
            return

    def _write(self) -> None:
        episodes, self._waiting, self._rows = self._waiting, [], 0
        joined = episodes[0] if len(episodes) == 1 else _joined(episodes)
        given: dict[str, Any] = {
            "terminated": joined.terminated,
            "truncated": joined.truncated,
            "final_obs": joined.following,
            "timeout_s": self._timeout_s,
        }
        if self._limited:  # interruptible, since it may wait
            self._note(self._writer.extend(joined.steps, **given), episodes)
            return
        with SignalsDeferred():
            self._note(self._writer.extend(joined.steps, **given), episodes)

    def _note(self, ids: Ids | None, episodes: list[Episode]) -> None:
        if ids is not None:
            self._ids.append(ids)
        self.steps += sum(map(len, episodes))
        self.episodes += len(episodes)


def _joined(episodes: list[Episode]) -> Episode:
    """Return several episodes one after the other."""
    structure = tree.structure_of(episodes[0].steps)
    columns = tree.columns(structure, [one.steps for one in episodes])
    return Episode(
        tree.rebuild(structure, map(np.concatenate, columns)),
        None if episodes[0].following is None else _last_observations(episodes),
        np.concatenate([one.terminated for one in episodes]),
        np.concatenate([one.truncated for one in episodes]),
    )


def _last_observations(episodes: list[Episode]) -> Any:
    """Return final observations at the rows that end episodes; the other rows are not looked at."""
    structure = tree.structure_of(episodes[0].following)
    finals = [list(tree.leaves(one.following, structure)) for one in episodes]
    ends = np.cumsum([len(one) for one in episodes]) - 1
    rows = [np.zeros((int(ends[-1]) + 1, *leaf.shape[1:]), leaf.dtype) for leaf in finals[0]]
    for at, final in zip(ends.tolist(), finals, strict=True):
        for into, leaf in zip(rows, final, strict=True):
            into[at] = leaf[-1]
    return tree.rebuild(structure, rows)
