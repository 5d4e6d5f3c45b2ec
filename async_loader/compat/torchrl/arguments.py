"""Arguments of TorchRL's replay buffers, as those of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from async_loader.errors import ConfigError
from async_loader.replay.samplers import Prioritized, Uniform
from async_loader.replay.samplers.sampler import Sampler, check_sampler

_ELSEWHERE = {
    "writer": "a table overwrites its oldest steps, as TorchRL's default does: leave it out",
    "prefetch": "AsyncDataLoader(buffer.table, batch_size) makes batches ahead: leave it out",
    "shared": "other processes write to a feeder (connect('embedded', ...)): leave it out",
    "dim_extend": "extend() takes steps along the first dimension: leave it out",
    "sample_unit": "buffer.table.source(view=Sequences(...)) gives sequences: leave it out",
    "transform_factory": "give transform=, a function of the batch",
    "generator": "give seed=",
    "consume_after_n_samples": "async_loader.ReplayBuffer has max_times_sampled=: leave it out",
}


def capacity_of(storage: object) -> int:
    """Return how many steps a storage of TorchRL would hold; an int as it is.

    Raises
    ------
    ConfigError
        For anything else.
    """
    size = getattr(storage, "max_size", storage)
    if isinstance(size, bool) or not isinstance(size, int):
        raise ConfigError(
            f"storage={storage!r}: give the number of steps, or a storage that has a max_size"
        )
    if len(storage) if hasattr(storage, "__len__") else 0:
        raise ConfigError(
            "storage= holds steps already, and a table has memory of its own: extend() with them"
        )
    return size


def sampler_of(sampler: Any) -> Sampler:
    """Return a sampler of this package for one of TorchRL's, by its name; one of ours as it is.

    Raises
    ------
    ConfigError
        For others of TorchRL, which have no counterpart here.
    """
    if sampler is None:
        return Uniform()
    if isinstance(sampler, Sampler):
        return check_sampler("sampler", sampler)
    name = type(sampler).__name__
    if name == "RandomSampler":
        return Uniform()
    if name == "PrioritizedSampler":
        return Prioritized(float(sampler._alpha), float(sampler._beta), float(sampler._eps))
    raise ConfigError(
        f"sampler={name}: give Uniform(), Prioritized(alpha, beta), or another sampler of "
        "async_loader; for slices use buffer.table.source(view=Sequences(...))"
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
        raise ConfigError(f"transform={transform!r}: give a function of the batch")
    return transform


def refuse(others: dict[str, Any]) -> None:
    """Raise ConfigError for arguments that mean nothing here; those that are off are ignored."""
    for name, value in others.items():
        if value is None or value is False or (name == "prefetch" and value == 0):
            continue
        remedy = _ELSEWHERE.get(name, "leave it out")
        raise ConfigError(f"{name}={value!r} of TorchRL's buffer is not here: {remedy}")
