"""Whole episodes as values and offsets, without padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.batch_format import BatchFormat, checked
from async_loader.errors import ConfigError
from async_loader.replay.array_types import Array
from async_loader.replay.views import Sequences, View

_OF_EPISODES = ("index", "weight")
"""What a batch has once for each episode."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """Takes the padding out of a batch of whole episodes.

    Fields ``[batch, time, ...]`` become ``[total, ...]``, the steps of each episode behind those of
    the one before it; ``mask`` becomes ``offsets``, int64 ``[batch + 1]``: episode ``i`` has the
    steps from ``offsets[i]`` up to ``offsets[i + 1]``. Cost: one copy of the steps.

    Parameters
    ----------
    once : tuple of str
        Top-level fields that a batch has once for each episode.
    """

    once: tuple[str, ...]

    @classmethod
    def of(cls, view: View | None) -> Ragged | None:
        """Return what a view's batches need, ``None`` for other views."""
        if isinstance(view, Sequences) and view.ragged:
            return cls((*view.state, *_OF_EPISODES))
        return None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch without padding. Arrays of steps are new."""
        mask: Array = batch["mask"]
        lengths = np.zeros(len(mask) + 1, np.int64)
        mask.sum(axis=1, out=lengths[1:])
        made = {
            name: value if name in self.once else tree.transform(value, lambda one: one[mask])
            for name, value in batch.items()
            if name != "mask"
        }
        return {**made, "offsets": np.cumsum(lengths)}


def checked_format(batch_format: object, device: object, view: View | None) -> BatchFormat:
    """As `batch_format.checked`, for batches of a view."""
    made = checked(batch_format, device)
    if made == "tensordict" and Ragged.of(view) is not None:
        raise ConfigError(
            "batch_format='tensordict' and whole='ragged': a TensorDict has fields of one length, "
            "so say whole=True"
        )
    return made


def ragged(batch: dict[str, Any], view: View | None) -> dict[str, Any]:
    """Return a batch as a view says, without padding if it is ragged."""
    change = Ragged.of(view)
    return batch if change is None else change(batch)
