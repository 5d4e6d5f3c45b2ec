"""Collation of unrolled trajectories: time first, then the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from async_loader.compat.ding.collate import default_collate, positions

STATE = "prev_state"


def timestep_collate(batch: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Collate B trajectories of T steps into one batch ``[T, B, ...]``.

    The trajectories are not changed.

    Parameters
    ----------
    batch : sequence of mappings
        Each value is a list of T entries, or a tensor, which becomes ``[B, ...]``.

    Returns
    -------
    dict
        Lists of tensors or numbers as tensors ``[T, B, ...]``, other lists as lists of T collated
        steps. ``prev_state``, if present, as a list of T tuples of B states, which are not
        collated.

    Raises
    ------
    ValueError
        For trajectories of different T (the original cuts them to the shortest).
    """
    if not len(batch):
        raise IndexError("the batch has 0 trajectories: collate at least one")
    rest = [{key: value for key, value in sample.items() if key != STATE} for sample in batch]
    collated: dict[str, Any] = {key: _steps(value) for key, value in default_collate(rest).items()}
    if STATE in batch[0]:
        collated[STATE] = [
            tuple(states) for states in positions([sample[STATE] for sample in batch])
        ]
    return collated


def _steps(value: Any) -> Any:
    """Stack T collated steps to one tensor if they are tensors."""
    together = (
        isinstance(value, list) and value and all(isinstance(step, torch.Tensor) for step in value)
    )
    return torch.stack(value) if together else value
