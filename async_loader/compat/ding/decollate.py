"""Splitting of batches into samples by DI-engine's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

STATES = ("prev_state", "prev_actor_state", "prev_critic_state")


def default_decollate(batch: Any, ignore: Sequence[str] = STATES) -> list[Any]:
    """Split a batch along its first axis.

    Parameters
    ----------
    batch : tensor, mapping, sequence or distribution
        Tensors ``[B, ...]`` become B tensors ``[...]`` (of shape ``(1,)`` for ``[B]``), views of
        the batch; mappings become B dicts; sequences B tuples; a
        ``torch.distributions.Distribution`` becomes B times None.
    ignore : sequence of str
        Keys whose values are lists of B entries already.

    Raises
    ------
    TypeError
        For types without a rule.
    ValueError
        For parts of different B (the original cuts them to the smallest).
    """
    if isinstance(batch, torch.Tensor):
        parts = torch.split(batch, 1, dim=0)
        return [part.squeeze(0) for part in parts] if batch.dim() > 1 else list(parts)
    if isinstance(batch, Mapping):
        names = list(batch)
        columns = [
            batch[key] if key in ignore else default_decollate(batch[key], ignore) for key in names
        ]
        return [dict(zip(names, row, strict=True)) for row in _rows(columns, names)]
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return _rows([default_decollate(part, ignore) for part in batch], list(range(len(batch))))
    if isinstance(batch, torch.distributions.Distribution):
        return [None] * (batch.batch_shape[0] if batch.batch_shape else 1)
    raise TypeError(
        f"a batch of {type(batch).__qualname__} cannot be taken apart: give tensors, mappings and "
        "sequences of tensors, or "
        "name the key in ignore"
    )


def _rows(columns: Sequence[Sequence[Any]], names: Sequence[Any]) -> list[Any]:
    lengths = {name: len(column) for name, column in zip(names, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"the parts of the batch differ in size, {lengths}: give all of them the same first "
            "axis"
        )
    return list(zip(*columns, strict=True))
