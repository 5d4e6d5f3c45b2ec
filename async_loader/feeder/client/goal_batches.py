"""Batches with hindsight goals: the feeder has chosen the goals, and the rewards are computed here.

See NOTE [parts] in replay/hindsight_parts.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.errors import Malformed
from async_loader.feeder.client.batch_structure import BatchStructure
from async_loader.replay.goal_returns import (
    NewGoals,
    NewReturns,
    ReturnPlaces,
    put_returns,
    returns_of,
)
from async_loader.replay.hindsight_parts import ACHIEVED, EACH, GOAL, INFO, PREFIX, STEPS
from async_loader.replay.hindsight_view import Hindsight
from async_loader.schema import Schema

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
        self._parts = {name: i for i, name in enumerate(names) if name.startswith(PREFIX)}
        info = [f"{INFO}{i}" for i in range(len(view.info))]
        wanted = (GOAL, STEPS, ACHIEVED, *info, "relabelled", "discount", view.reward)
        if missing := [name for name in wanted if name not in names]:
            raise Malformed(f"batches of {view!r} came without {', '.join(missing)}")
        self._info = dict(zip(view.info, info, strict=True))
        kept = [i for i, name in enumerate(names) if i not in self._parts.values()]
        super().__init__(_without_parts(schema, kept))
        self.schema, self._kept, self._view = schema, kept, view
        places = {names[i]: k for k, i in enumerate(kept)}
        self._places = ReturnPlaces(
            reward=places[view.reward],
            terminated=places.get("terminated", -1),
            done=places.get("done", -1),
            truncated=places.get("truncated", -1),
            discount=places["discount"],
        )
        self._relabelled = places["relabelled"]
        # fields of a batch lie in front of the parts: their places are those of the table's plan
        each = {f"{EACH}{place}": place for place in range(len(kept))}
        self._each = [(each[name], i) for name, i in self._parts.items() if name in each]

    def batch(self, columns: Sequence[Array], server: int) -> dict[str, Any]:
        """See `BatchStructure.batch`. Raises ConfigError for what a function may not return."""
        arrays = [columns[i] for i in self._kept]
        new = np.flatnonzero(arrays[self._relabelled])
        goals = self._goals(columns, new)
        returns = returns_of(self._view, goals)
        for i in {i for i in self._places if i >= 0} | {j for j, _ in self._each}:
            arrays[i] = arrays[i].copy()  # received ones may be read-only
        self._cut_off(arrays, columns, new, goals, returns)
        put_returns(self._view, arrays, self._places, new, returns)
        return super().batch(arrays, server)

    def _goals(self, columns: Sequence[Array], new: npt.NDArray[np.intp]) -> NewGoals:
        def of(name: str) -> Array:
            return columns[self._parts[name]][new]

        steps = of(STEPS)
        n = columns[self._parts[ACHIEVED]].shape[1]
        if len(steps) and not (steps.min() >= 1 and steps.max() <= n):
            raise Malformed(f"returns of {steps.min()} to {steps.max()} steps came, for {n}")
        info = {name: of(part) for name, part in self._info.items()}
        return NewGoals(of(GOAL), of(ACHIEVED), info, steps)

    def _cut_off(
        self,
        arrays: list[Array],
        columns: Sequence[Array],
        new: npt.NDArray[np.intp],
        goals: NewGoals,
        returns: NewReturns,
    ) -> None:
        """Show the last step of returns that end before the stored ones do."""
        cut = np.flatnonzero(returns.steps < goals.steps)
        rows, steps = new[cut], returns.steps[cut]
        for place, part in self._each:
            arrays[place][rows] = columns[part][rows, steps - 1]


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
