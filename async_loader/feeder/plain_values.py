"""Samplers and limiters as plain values, as in a configuration and on the wire, and back.

A sampler is ``{"kind": "prioritized", "alpha": 0.6, ...}``, as derived_settings.py defines it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from async_loader.errors import ConfigError
from async_loader.replay.checkpoint.settings import limiter_json, limiter_of
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.samplers import Sampler
from async_loader.replay.samplers.sampler import check_sampler


def plain_of(sampler: object) -> dict[str, Any]:
    """Convert a sampler to plain values.

    Raises
    ------
    ConfigError
        If it is not a sampler, or of a class that a feeder does not have.
    """
    # It registers the classes; late, since most clients send no sampler.
    import async_loader.feeder.table_settings  # noqa: F401
    from async_loader.feeder.derived_settings import plain

    made: dict[str, Any] = plain(check_sampler("sampler", sampler), "sampler")
    return made


def sampler_said(sampler: object) -> dict[str, Any] | None:
    """As `plain_of`; ``None`` for a class that a feeder does not have."""
    try:
        return plain_of(sampler)
    except ConfigError:
        return None


def sampler_from(said: dict[str, Any]) -> Sampler:
    """Return a new sampler from plain values. Raises ConfigError."""
    from async_loader.feeder.settings_errors import settings_of  # late: as above
    from async_loader.feeder.table_settings import SamplerSettings

    settings: Any = settings_of(said, SamplerSettings, "sampler")
    made: Sampler = settings.make()
    return made


def limiter_plain(limiter: RateLimiter | None) -> Any:
    """Return least size, samples per insert and error buffer of a limiter."""
    return limiter_json(limiter)


def limiter_from(said: Sequence[Any] | None) -> RateLimiter | None:
    """Return the limiter of `limiter_plain`."""
    if said is None:
        return None
    least, ratio, buffer = said
    return limiter_of([int(least), ratio, list(buffer) if isinstance(buffer, tuple) else buffer])
