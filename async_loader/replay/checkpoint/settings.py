"""A table's settings as JSON, and back. Imports and unpickles nothing that a checkpoint names."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from async_loader.errors import ConfigError
from async_loader.replay import samplers
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.views import Sequences, Transitions

_KNOWN: dict[str, Any] = {name: getattr(samplers, name) for name in samplers.__all__}
_KNOWN |= {"Transitions": Transitions, "Sequences": Sequences}


def settings_json(value: object) -> dict[str, Any]:
    """Convert the class of a sampler or a view and its settings to JSON; what cannot be converted,
    to its text.
    """
    try:
        return {"value": _encoded(value)}
    except ConfigError as error:
        return {"text": repr(value), "why": str(error)}


def settings_of(saved: dict[str, Any], role: str) -> Any:
    """Make what `settings_json` has converted.

    Raises
    ------
    ConfigError
        If the class is not one of the package, or has functions: then one has to be passed.
    """
    if "text" in saved:
        raise ConfigError(
            f"the checkpoint was saved with the {role} {saved['text']}, and {saved['why']}: pass "
            f"{role}=..., made as it was then"
        )
    return _decoded(saved["value"])


def _encoded(value: object) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_encoded(one) for one in value]
    kind = type(value)
    if _KNOWN.get(kind.__name__) is not kind:
        raise ConfigError(f"{kind.__qualname__} is no class that a checkpoint can name")
    names = inspect.signature(kind).parameters
    return {"$class": kind.__name__, **{name: _encoded(getattr(value, name)) for name in names}}


def _decoded(value: object) -> Any:
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    kind = value["$class"]
    if kind not in _KNOWN:
        raise ConfigError(
            f"the checkpoint names the class {kind!r}, and this version has none of that name"
        )
    return _KNOWN[kind](**{k: _decoded(one) for k, one in value.items() if k != "$class"})


def limiter_json(limiter: RateLimiter | None) -> Any:
    """Convert a limiter's three numbers to JSON."""
    if limiter is None:
        return None
    return [limiter.min_size_to_sample, limiter.samples_per_insert, limiter.error_buffer]


def limiter_of(saved: Sequence[Any] | None) -> RateLimiter | None:
    """Make the limiter of `limiter_json`."""
    if saved is None:
        return None
    least, ratio, buffer = saved  # which were checked when it was made
    limiter = object.__new__(RateLimiter)
    limiter._set(least, ratio, tuple(buffer) if isinstance(buffer, list) else buffer)
    return limiter
