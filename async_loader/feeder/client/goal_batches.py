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
from async_loader.feeder.client.batch_structure import BatchStructure
from async_loader.replay.hindsight_goals import (
    ACHIEVED,
    EACH,
    GOAL,
    INFO,
    PREFIX,
    STEPS,
    replace_returns,
)
from async_loader.replay.hindsight_view import Hindsight
from async_loader.schema import END_FIELDS, Schema

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
