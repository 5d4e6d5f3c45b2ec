"""TorchRL's samplers and arguments, as those of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from async_loader.errors import ConfigError
from async_loader.names import describe
from async_loader.replay.samplers import Draw, Fifo, Prioritized, Uniform
from async_loader.replay.samplers.sampler import Priorities, Rows, Sampler, check_sampler

_ELSEWHERE = {
    "writer": "a table overwrites its oldest steps, as TorchRL's default does: leave it out",
    "shared": "other processes write to a feeder (connect('embedded', ...)): leave it out",
    "dim_extend": "extend() takes steps along the first dimension: leave it out",
    "sample_unit": "buffer.table.source(view=Sequences(...)) gives sequences: leave it out",
    "transform_factory": "give transform=, a function of the batch",
    "generator": "give seed=",
    "consume_after_n_samples": "async_loader.ReplayBuffer has max_times_sampled=: leave it out",
}
_OF_SPEED = {"prefetch", "compilable", "delayed_init", "dtype", "sampler_device"}
"""They change no batch. A loader of ``buffer.table`` makes batches ahead."""


def capacity_of(storage: object) -> int:
    """Return how many steps a storage of TorchRL would hold; an int as it is.

    Raises
    ------
    ConfigError
        For anything else.
    """
    storage = storage() if callable(storage) else storage
    size = getattr(storage, "max_size", storage)
    if isinstance(size, bool) or not isinstance(size, int):
        raise ConfigError(
            f"storage={describe(storage)}: give the number of steps, or a storage that has a "
            "max_size"
        )
    if len(storage) if hasattr(storage, "__len__") else 0:
        raise ConfigError(
            "storage= holds steps already, and a table has memory of its own: extend() with them"
        )
    return size


def sampler_of(sampler: Any) -> Sampler:
    """Return the sampler of a table; ``sampler`` may be a function that makes one.

    Raises
    ------
    ConfigError
        For those of TorchRL.
    """
    made = sampler() if callable(sampler) else sampler
    if made is None:
        return Uniform()
    if isinstance(made, Sampler):
        return check_sampler("sampler", made)
    raise ConfigError(
        f"sampler={type(made).__name__}: import samplers from async_loader.compat.torchrl, which "
        "has TorchRL's, or from async_loader, as Prioritized(alpha, beta); parts of trajectories "
        "come by buffer.table.source(view=Sequences(...))"
    )


def checked_transform(transform: object) -> Callable[[Any], Any]:
    """Return a transform if it is a function of the batch.

    Raises
    ------
    ConfigError
        For one of TorchRL's, which also changes what is written and keeps state.
    """
    if type(transform).__module__.split(".")[0] == "torchrl":
        raise ConfigError(
            f"{type(transform).__name__} is a transform of TorchRL, which may change what is "
            "stored too: give a function of the batch, as in transform=lambda batch: ..., and "
            "transform what you add before"
        )
    if not callable(transform):
        raise ConfigError(f"transform={describe(transform)}: give a function of the batch")
    return transform


def refuse(others: dict[str, Any]) -> None:
    """Raise ConfigError for arguments that mean something else here. Those that are off, and those
    of speed alone, are ignored.
    """
    for name, value in others.items():
        if name not in _OF_SPEED and value:
            remedy = _ELSEWHERE.get(name, "leave it out")
            raise ConfigError(f"{name}={describe(value)} of TorchRL's buffer is not here: {remedy}")


_NO_ROWS = np.empty(0, np.int64)


class SamplerWithoutReplacement(Fifo):
    """Every step once, in passes. A write or a removal begins a new one, as does a draw of more
    steps than the pass has left.

    Cost: O(steps) a pass.

    Parameters
    ----------
    drop_last : bool
        Whether the steps that are left at a pass's end, fewer than a batch, are not drawn.
    shuffle : bool
        Whether passes are in random order, not in that of writing.

    Attributes
    ----------
    left : int64 array
        Rows that this pass has not drawn yet. Empty: it is over.
    fresh : bool
        Whether the next draw begins a pass.
    """

    def __init__(self, drop_last: bool = False, shuffle: bool = True) -> None:
        super().__init__()
        self.drop_last, self.shuffle = drop_last, shuffle
        self.left: Rows = _NO_ROWS
        self.fresh, self._restored = True, False

    def insert(self, rows: Rows, priority: Priorities) -> None:
        super().insert(rows, priority)
        self.fresh, self._restored = not self._restored, False

    def remove(self, rows: Rows) -> None:
        super().remove(rows)
        self.fresh = True

    def most(self, count: int) -> int:
        """Return how many of ``count`` steps the next draw has."""
        left = (0 if self.fresh else len(self.left)) or self._items.count
        return count if self.drop_last else min(count, left)

    def is_over(self, count: int) -> bool:
        """Return whether the pass has no more batches of ``count`` steps."""
        return not self.fresh and len(self.left) < (count if self.drop_last else 1)

    def draw(self, count: int) -> Draw:
        if self.fresh or count > len(self.left):
            self.left = super().draw(self._items.count).rows
            if self.shuffle:
                order = np.argsort(self._numbers.take(len(self.left)), kind="stable")
                self.left = self.left[order]
        rows, self.left = self.left[:count], self.left[count:]
        self.fresh = False
        return Draw(rows)

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "left": self.left.tolist(),
            "fresh": self.fresh,
        }

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.left, self.fresh = np.array(state["left"], np.int64), bool(state["fresh"])
        self._restored = not self.fresh  # the items that are there come next

    def __repr__(self) -> str:
        return f"SamplerWithoutReplacement(drop_last={self.drop_last}, shuffle={self.shuffle})"


def PrioritizedSampler(
    max_capacity: int,
    alpha: float,
    beta: float,
    eps: float = 1e-8,
    dtype: object = None,
    reduction: str = "max",
    max_priority_within_buffer: bool = False,
    device: object = None,
) -> Prioritized:
    """Return the `Prioritized` sampler that draws and weighs as TorchRL's. A ``beta`` above 1
    counts as 1, which corrects all of the bias.

    Raises
    ------
    ConfigError
        For another ``reduction`` than "max".
    """
    if reduction != "max":
        raise ConfigError(f"reduction={reduction!r}: of a step's priorities the largest counts")
    return Prioritized(
        float(alpha),
        min(float(beta), 1.0),
        float(eps),
        normalize="buffer",
        new_priority="max_now" if max_priority_within_buffer else "max_ever",
    )


def RandomSampler(replacement: bool = True, **settings: Any) -> Sampler:
    """Return `Uniform`, or without replacement a `SamplerWithoutReplacement`."""
    return Uniform() if replacement else SamplerWithoutReplacement(**settings)
