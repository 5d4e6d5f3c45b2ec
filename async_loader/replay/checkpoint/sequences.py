"""The sequences that a table's samplers draw, in a save: where they begin, and their priorities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.array_types import Array
from async_loader.replay.checkpoint import encoding
from async_loader.replay.checkpoint.resizing import as_told
from async_loader.replay.checkpoint.settings import view_json, view_of
from async_loader.replay.table.sequence_sampler import SequenceSampler
from async_loader.replay.table.table_state import TableState
from async_loader.replay.views import Sequences

_ROLE = "sequences/"
"""How the roles of these samplers begin in `manifest.Manifest.samplers`."""


def split_sequences(table_state: TableState, arrays: encoding.Copies) -> dict[str, Any]:
    """Return the states of the samplers of sequences by role. Under the lock."""
    states = {}
    for k, (view, sampler) in enumerate(table_state.sequence_samplers.items()):
        role = f"{_ROLE}{k}"
        kept = {"kept": sampler.saved(table_state.table.ids), "state": sampler.state()}
        states[role] = {"view": view_json(view), **encoding.split(kept, role, arrays)}
    return states


class SavedSequences:
    """What a save knows about sequences, for a table that it is loaded into.

    Parameters
    ----------
    samplers : mapping
        `manifest.Manifest.samplers`.
    arrays : mapping of str to array
    numbers : sequence of str
        Parts of a sampler's state that stay as they are.
    lasting : callable | None
        Returns the part of a sampler's state that holds with another capacity too; ``None`` if the
        table has another sampler than the save.
    same : bool
        Whether the table has the rows of the save.
    settings : mapping | None
        Of the saved table's sampler.
    rows : int
        Of the saved table.
    """

    def __init__(
        self,
        samplers: Mapping[str, Any],
        arrays: Mapping[str, Array],
        numbers: tuple[str, ...],
        lasting: Callable[[Mapping[str, Any]], dict[str, Any]] | None,
        same: bool,
        settings: Mapping[str, Any] | None,
        rows: int,
    ) -> None:
        self._settings, self._rows = settings, rows
        self._numbers, self._same = numbers, same and lasting is not None
        self._lasting = (lambda _: {}) if lasting is None else lasting
        self._by_view: dict[Sequences, dict[str, Any]] = {}
        for role, saved in samplers.items():
            if role.startswith(_ROLE):
                view = view_of(saved["view"])
                assert isinstance(view, Sequences)
                parts = {name: saved[name] for name in ("kept", "state")}
                self._by_view[view] = encoding.joined(parts, arrays)

    def follow(self, table_state: TableState) -> None:
        """Make the samplers that a table lacks. Under the lock."""
        for view, saved in self._by_view.items():
            if view in table_state.sequence_samplers:
                continue
            try:
                sampler = table_state.follow(view, saved["kept"], self._lasting(saved["state"]))
            except ConfigError:  # with another capacity it cannot show them
                continue
            self._restore(sampler, table_state, saved)

    def tell(self, table_state: TableState, sampler: SequenceSampler) -> None:
        """Tell a sampler, which knows nothing, of all items. Under the lock."""
        saved = self._by_view.get(sampler.view)
        table = table_state.table
        if saved is None or table_state.sequence_samplers.get(sampler.view) is not sampler:
            table.tell_all(sampler)
            return
        sampler.begin_at(saved["kept"], self._lasting(saved["state"]))
        table.tell_all(sampler)
        self._restore(sampler, table_state, saved)

    def _restore(
        self, sampler: SequenceSampler, table_state: TableState, saved: dict[str, Any]
    ) -> None:
        ids, kept, state = table_state.table.ids, saved["kept"], saved["state"]
        sampler.remember(kept, ids)
        if self._same and sampler.has_all(kept, ids):
            now = sampler.state()
            state = {**state, **{one: now[one] for one in self._numbers if one in state}}
            sampler.go_on(kept, state)
            return
        given = np.full(self._rows, np.nan)
        rows, priority = as_told(state, self._settings, kept["ids"] % self._rows, given)
        names = np.full(self._rows, -1, np.int64)
        names[kept["ids"] % self._rows] = kept["ids"]
        sampler.tell_again(names[rows], priority, ids, self._lasting(state))
