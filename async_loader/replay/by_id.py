"""The side of a ReplayBuffer that changes steps by their ids. Adds none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from async_loader.errors import SchemaError
from async_loader.replay.arguments import floats_of, ids_of, named
from async_loader.replay.inserting import Inserter
from async_loader.replay.owner import Owner
from async_loader.replay.staging import Stage
from async_loader.source import Applied

_SETTLED = ("terminated", "truncated", "done")
"""Fields that are not updated: what follows from them has happened."""


class ById:
    """New priorities, late values, deletions: for the steps that they were meant for, or for nobody."""

    _owner: Owner
    _in: Inserter

    def update_priorities(self, index: Any, priority: Any) -> Applied:
        """New priorities of items, by id.

        Parameters
        ----------
        index : int64 array or tensor [rows]
            Ids, as in a batch's ``index``. What became of the steps in the meantime does not matter: an id is never reused.
        priority : float array or tensor [rows]
            Finite, not negative. Of an id that is named twice the last counts.

        Returns
        -------
        Applied
            How many were still there (``applied``) and how many were not (``stale``).

        Raises
        ------
        Unsupported
            If the table has no prioritized sampler or remover.
        ConfigError
            Names a priority that is not allowed, before any is changed.
        """
        return self._in.prioritize(ids_of(index), floats_of(priority, "priority"))

    def update(self, index: Any, /, **fields: Any) -> Applied:
        """Overwrite fields of steps, by id: a reward that arrives late, a value that was computed anew.

        Parameters
        ----------
        index : int64 array or tensor [rows]
        **fields
            Arrays or tensors ``[rows, ...]``; names of top-level fields.

        Returns
        -------
        Applied

        Raises
        ------
        SchemaError
            For a field that is not there or does not fit; and for `terminated`, `truncated` and `done`, as what follows from
            those has happened.
        """
        ids = ids_of(index)
        owner = self._owner
        if not owner.ready:
            return Applied(0, len(ids))
        columns = columns_of(owner.stage, fields, len(ids))
        with owner.lock:
            return owner.own().patch(ids, columns)

    def delete(self, index: Any) -> Applied:
        """Take items out, by id: they are not drawn any more. Their neighbours' stacks and returns still show them."""
        ids = ids_of(index)
        owner = self._owner
        if not owner.ready:
            return Applied(0, len(ids))
        with owner.lock:
            applied = owner.own().delete(ids)
            owner.waiters.ring()
            return applied


def columns_of(stage: Stage, fields: Mapping[str, Any], rows: int) -> dict[int, npt.NDArray[Any]]:
    """New values ``[rows, ...]`` of fields, by their places in the schema. Raises SchemaError, as `ById.update`."""
    columns: dict[int, npt.NDArray[Any]] = {}
    known = {field.name: i for i, field in enumerate(stage.schema.fields)}
    for name, value in named(fields):
        if name not in known or name in _SETTLED:
            raise SchemaError(f"field {name!r} cannot be updated: {', '.join(n for n in known if n not in _SETTLED)} can")
        column = stage.fits[known[name]].column(value)
        if len(column) != rows:
            raise SchemaError(f"field {name!r} has {len(column)} rows for {rows} ids: one for each")
        columns[known[name]] = column
    return columns
