"""Samplers and limiters as plain values, as a configuration and the wire have them, and back. Imports nothing that is named.

A sampler is ``{"kind": "prioritized", "alpha": 0.6, ...}``: the kind is the name of its class in snake case.
"""

from __future__ import annotations

from typing import Any

from async_loader.errors import ConfigError
from async_loader.feeder.derived import snake
from async_loader.replay import samplers
from async_loader.replay.checkpoint.settings import limiter_json, limiter_of, sampler_json, sampler_of
from async_loader.replay.limiter import RateLimiter
from async_loader.replay.samplers import Sampler
from async_loader.replay.samplers.sampler import check_sampler

_CLASS = "$class"


def plain_of(sampler: object) -> dict[str, Any]:
    """A sampler as it travels.

    Raises
    ------
    ConfigError
        For what is no sampler, or one of a class that a feeder does not have.
    """
    found = sampler_json(check_sampler("sampler", sampler))
    if found["settings"] is None:
        raise ConfigError(f"sampler={sampler!r} cannot travel to the feeder: {found['why']}")
    plain: dict[str, Any] = _plain(found)
    return plain


def sampler_from(plain: dict[str, Any]) -> Sampler:
    """The sampler that a map says, new. Raises ConfigError."""
    try:
        made: Sampler = sampler_of(_known(plain), "sampler")
    except (TypeError, KeyError) as error:
        raise ConfigError(f"sampler {plain.get('kind')!r}: {error}") from None
    return made


def limiter_plain(limiter: RateLimiter | None) -> Any:
    """Least size, samples per insert, error buffer."""
    return limiter_json(limiter)


def limiter_from(plain: Any) -> RateLimiter | None:
    """The inverse of `limiter_plain`."""
    if plain is None:
        return None
    least, ratio, buffer = plain
    return limiter_of([int(least), ratio, list(buffer) if isinstance(buffer, tuple) else buffer])


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {"kind": snake(value[_CLASS]), **{name: _plain(one) for name, one in value["settings"].items()}}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _known(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kinds = {snake(name): name for name in samplers.__all__ if _is_kind(getattr(samplers, name))}
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(f"there is no sampler {str(kind)[:80]!r}: it is one of {', '.join(sorted(kinds))}")
    settings = {name: _known(one) for name, one in value.items() if name != "kind"}
    return {_CLASS: kinds[kind], "settings": settings}


def _is_kind(found: Any) -> bool:
    return found is samplers.Linear or (isinstance(found, type) and found is not Sampler and hasattr(found, "bind"))
