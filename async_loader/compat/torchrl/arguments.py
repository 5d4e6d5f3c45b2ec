"""Arguments of TorchRL's replay buffers, as those of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from async_loader.compat.torchrl.samplers import SliceSampler
from async_loader.errors import ConfigError
from async_loader.name_hints import PUBLIC, describe
from async_loader.replay.samplers import Uniform
from async_loader.replay.samplers.sampler import Sampler, check_sampler

_ELSEWHERE = {
    "writer": "a table overwrites its oldest steps, as TorchRL's default does: leave it out",
    "shared": "other processes write to a feeder (connect('embedded', ...)): leave it out",
    "dim_extend": "extend() takes steps along the first dimension: leave it out",
    "sample_unit": "buffer.table.source(view=Sequences(...)) gives sequences: leave it out",
    "transform_factory": "give transform=, a function of the batch",
    "generator": "give seed=",
    "consume_after_n_samples": "async_loader.ReplayBuffer has max_times_sampled=: leave it out",
}
_DEFAULTS = {"dim_extend": 0, "transport": "auto", "sync": True}
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


def sampler_of(sampler: Any) -> tuple[Sampler, SliceSampler | None]:
    """Return the sampler of a table, and what draws slices in its place.

    Raises
    ------
    ConfigError
        For an object of TorchRL's.
    """
    made = sampler() if callable(sampler) else sampler
    if made is None or isinstance(made, SliceSampler):
        return Uniform(), made
    if isinstance(made, Sampler):
        return check_sampler("sampler", made), None
    name, here = type(made).__name__, "async_loader.compat.torchrl"
    remedy = PUBLIC[here].get(name, f"import it from {here}, or give one of async_loader")
    raise ConfigError(f"sampler={name} is not of this package: {remedy}")


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
        if name in _OF_SPEED or value is None or value is False:
            continue
        if name in _DEFAULTS and value == _DEFAULTS[name]:
            continue
        remedy = _ELSEWHERE.get(name, "leave it out")
        raise ConfigError(f"{name}={describe(value)} of TorchRL's buffer is not here: {remedy}")
