"""Arguments of TorchRL's replay buffers, as those of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from async_loader.compat.torchrl.samplers import (
    PrioritizedSampler,
    SamplerWithoutReplacement,
    SliceSampler,
)
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
_WRITERS = {"RoundRobinWriter", "TensorDictRoundRobinWriter"}
"""They overwrite the oldest steps, as a table does."""
_SLICES = (
    "num_slices",
    "slice_len",
    "end_key",
    "end_keys",
    "traj_key",
    "cache_values",
    "truncated_key",
    "init_key",
    "strict_length",
    "pad_output",
)


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
    """Return the sampler of a table for one of TorchRL's, by its name, or for a function that makes
    one; and what draws slices in its place.

    Raises
    ------
    ConfigError
        For others of TorchRL, which have no counterpart here.
    """
    made = sampler() if callable(sampler) else sampler
    name = type(made).__name__
    if made is None or name == "RandomSampler":
        return Uniform(), None
    if isinstance(made, SliceSampler):
        return Uniform(), made
    if isinstance(made, Sampler):
        return check_sampler("sampler", made), None
    if name == "SamplerWithoutReplacement":
        return SamplerWithoutReplacement(made.drop_last, made.shuffle), None
    if name == "PrioritizedSampler":
        return PrioritizedSampler(
            0,
            made._alpha,
            made._beta,
            made._eps,
            reduction=getattr(made, "reduction", "max"),
            max_priority_within_buffer=getattr(made, "_max_priority_within_buffer", False),
        ), None
    if name == "SliceSampler":
        return Uniform(), SliceSampler(**_settings_of(made))
    known = PUBLIC["async_loader.compat.torchrl"]
    remedy = known.get(name, "give one of async_loader, as Uniform() or Prioritized(alpha, beta)")
    raise ConfigError(f"sampler={name} of TorchRL is not here: {remedy}")


def _settings_of(slices: Any) -> dict[str, Any]:
    """Return the arguments that a SliceSampler of TorchRL was made with."""
    given = {name: getattr(slices, name) for name in _SLICES if hasattr(slices, name)}
    if getattr(slices, "_fetch_traj", False):  # it has an end_key too, for steps without numbers
        given["end_key"] = None
    given["span"] = any(getattr(slices, "span", ()))
    given["fragmented"] = getattr(slices, "fragmented", False)
    given["trajectories"] = "static-stop-and-length" in getattr(slices, "_cache", ())
    return given


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
        if name == "writer" and _kind_of(value) in _WRITERS:
            continue
        remedy = _ELSEWHERE.get(name, "leave it out")
        raise ConfigError(f"{name}={describe(value)} of TorchRL's buffer is not here: {remedy}")


def _kind_of(made: object) -> str:
    """Return the name of an object's class, or of the class that a function of it makes."""
    kind = getattr(made, "func", made)
    return kind.__name__ if isinstance(kind, type) else type(kind).__name__
