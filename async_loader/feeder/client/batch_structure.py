"""Batches with hindsight goals: the feeder has chosen the goals, and the rewards are computed here.

See NOTE [parts] in replay/hindsight_goals.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.errors import Malformed
from async_loader.replay.hindsight_view import (
    ACHIEVED,
    EACH,
    GOAL,
    INFO,
    PREFIX,
    STEPS,
    Hindsight,
    replace_returns,
)
from async_loader.schema import END_FIELDS, Schema

SERVER_BITS = 48
"""Higher bits of an id are the number of its server; see `Connection.servers`. The first is 0."""


class BatchStructure:
    """Builds the batches of one schema.

    Parameters
    ----------
    schema : Schema
        Of a batch's rows, with ``index``.
    sequences : bool
        Whether a row is a sequence, whose ``step_index`` holds ids too.

    Attributes
    ----------
    shown : Schema
        Of the batches.
    ids : list of int
        Places of its fields that hold ids.
    """

    def __init__(self, schema: Schema, sequences: bool = False) -> None:
        self.schema = self.shown = schema
        names = [field.name for field in schema.fields]
        self.ids = [names.index(name) for name in ("index", "step_index")[: 1 + sequences]]
        root = schema.structure
        flat = type(root) is tree.Node and root.kind is dict and not any(root.children)
        self._names = root.keys if flat and root is not None else None

    def batch(self, columns: Sequence[npt.NDArray[Any]], server: int) -> dict[str, Any]:
        """Return the batch; ``server`` is the number of the server that gave its ids.

        Ids that can be written are changed in place: a batch in a slot is copied to a device from
        there.
        """
        if server:
            columns = list(columns)
            for place in self.ids:
                columns[place] = _ids_of(columns[place], server)
        if self._names is not None:
            return tree.fields(self._names, columns)
        batch: dict[str, Any] = tree.rebuild_batch(self.shown.structure, columns)
        return batch


def _ids_of(ids: npt.NDArray[np.int64], server: int) -> npt.NDArray[np.int64]:
    """Return ids as this client has them; -1, where there is no step, stays."""
    into = ids if ids.flags.writeable else ids.copy()
    return np.add(ids, server << SERVER_BITS, out=into, where=ids >= 0)


def local_ids(index: npt.NDArray[np.int64], server: int) -> npt.NDArray[np.bool_]:
    """Return which ids are of this server."""
    here: npt.NDArray[np.bool_] = index >> SERVER_BITS == server
    return here


def remote_ids(index: npt.NDArray[np.int64], server: int) -> npt.NDArray[np.int64]:
    """Return ids of this server as it gave them."""
    return index - (server << SERVER_BITS)


Array = npt.NDArray[Any]


def structure_of(
    schema: Schema, sequences: bool = False, goals: Hindsight | None = None
) -> BatchStructure:
    """Return what builds the batches of a schema. ``goals``: the view, if they show its goals.

    Raises Malformed if the schema lacks what that view needs.
    """
    return BatchStructure(schema, sequences) if goals is None else GoalBatches(schema, goals)


class GoalBatches(BatchStructure):
    """Builds batches of one schema with hindsight goals, and calls the functions of their view.

    Parameters
    ----------
    schema : Schema
        Of a batch's rows as they were sent.
    view : Hindsight

    Raises
    ------
    Malformed
        If the schema lacks what the view needs.
    """

    def __init__(self, schema: Schema, view: Hindsight) -> None:
        names = [field.name for field in schema.fields]
        parts = {name: i for i, name in enumerate(names) if name.startswith(PREFIX)}
        info = [f"{INFO}{i}" for i in range(len(view.info))]
        wanted = (GOAL, STEPS, ACHIEVED, *info, "relabelled", "discount", view.reward)
        if missing := [name for name in wanted if name not in names]:
            raise Malformed(f"batches of {view!r} came without {', '.join(missing)}")
        kept = [i for i in range(len(names)) if i not in parts.values()]
        super().__init__(_without_parts(schema, kept))
        self.schema, self._kept, self._view = schema, kept, view
        self._places = {names[i]: k for k, i in enumerate(kept)}
        self._relabelled = self._places["relabelled"]
        # fields of a batch lie in front of the parts: their places are those of the table's plan
        self._each = [place for place in range(len(kept)) if f"{EACH}{place}" in parts]
        known = {*wanted, *(f"{EACH}{place}" for place in self._each)}
        self._parts = {name: i for name, i in parts.items() if name in known}

    def batch(self, columns: Sequence[Array], server: int) -> dict[str, Any]:
        """See `BatchStructure.batch`. Raises ConfigError for what a function may not return."""
        arrays = [columns[i] for i in self._kept]
        new = np.flatnonzero(arrays[self._relabelled])
        parts = {name: columns[i] for name, i in self._parts.items()}
        steps, n = parts[STEPS][new], parts[ACHIEVED].shape[1]
        if len(steps) and not (steps.min() >= 1 and steps.max() <= n):
            raise Malformed(f"returns of {steps.min()} to {steps.max()} steps came, for {n}")
        changed = (self._view.reward, "discount", *END_FIELDS)
        for i in {self._places[name] for name in changed if name in self._places} | {*self._each}:
            arrays[i] = arrays[i].copy()  # received ones may be read-only
        replace_returns(self._view, arrays, self._places, new, parts)
        return super().batch(arrays, server)


def _without_parts(schema: Schema, kept: Sequence[int]) -> Schema:
    root = schema.structure
    assert isinstance(root, tree.Node)
    pairs = [
        (key, child)
        for key, child in zip(root.keys, root.children, strict=True)
        if not (isinstance(key, str) and key.startswith(PREFIX))
    ]
    structure = tree.Node(root.kind, tuple(k for k, _ in pairs), tuple(c for _, c in pairs))
    return Schema(structure, tuple(schema.fields[i] for i in kept))
