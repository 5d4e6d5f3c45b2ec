"""Collation of unrolled trajectories: time first, then the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from async_loader.compat.ding.collate import default_collate, is_tree_tensor, positions

STATE = "prev_state"


def timestep_collate(batch: Sequence[Mapping[str, Any]] | Sequence[Sequence[Any]]) -> Any:
    """Collate B trajectories of T steps into one batch ``[T, B, ...]``.

    The trajectories are not changed.

    Parameters
    ----------
    batch : sequence of mappings, or of lists of T tree tensors
        Each value of a mapping is a list of T entries, or a tensor, which becomes ``[B, ...]``, or
        a mapping of these.

    Returns
    -------
    dict, or a tree tensor for trajectories of these
        Lists of tensors or numbers as tensors ``[T, B, ...]``, other lists as lists of T collated
        steps. ``prev_state``, if present, as a list of T tuples (of tree tensors: lists) of B
        states, which are not collated.

    Raises
    ------
    ValueError
        For trajectories of different T (the original cuts them to the shortest).
    """
    if not len(batch):
        raise IndexError("the batch has 0 trajectories: collate at least one")
    samples: Any = batch
    first = samples[0]
    if isinstance(first, list) and first and is_tree_tensor(first[0]):
        return _of_trees(positions(samples))
    rest = [{key: value for key, value in sample.items() if key != STATE} for sample in samples]
    collated: dict[str, Any] = _steps(default_collate(rest))
    if STATE in first:
        collated[STATE] = [
            tuple(states) for states in positions([sample[STATE] for sample in samples])
        ]
    return collated


def _steps(value: Any) -> Any:
    """Stack T collated steps to one tensor if they are tensors, also within mappings."""
    if isinstance(value, Mapping):
        return {key: _steps(part) for key, part in value.items()}
    together = (
        isinstance(value, list) and value and all(isinstance(step, torch.Tensor) for step in value)
    )
    return torch.stack(value) if together else value


def _of_trees(steps: list[list[Any]]) -> Any:
    """Collate T steps of B tree tensors to one."""
    kind, stated = type(steps[0][0]), STATE in steps[0][0].json()
    rest = [
        default_collate(
            [
                {key: value for key, value in sample.json().items() if key != STATE}
                for sample in step
            ]
        )
        for step in steps
    ]
    made = kind(default_collate(rest, cat_1dim=False))
    if stated:
        made.prev_state = [[sample.get(STATE) for sample in step] for step in steps]
    return made
