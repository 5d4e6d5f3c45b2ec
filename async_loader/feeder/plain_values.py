"""Samplers and limiters as plain values, as a configuration and the wire have them, and back. Imports nothing that is named.

A sampler is ``{"kind": "prioritized", "alpha": 0.6, ...}``, as `derived` makes it of its class.
"""

from __future__ import annotations

from typing import Any

from async_loader.replay.checkpoint.settings import limiter_json, limiter_of
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.samplers import Sampler
from async_loader.replay.samplers.sampler import check_sampler


def plain_of(sampler: object) -> dict[str, Any]:
    """A sampler as it travels.

    Raises
    ------
    ConfigError
        For what is no sampler, or one of a class that a feeder does not have.
    """
    import async_loader.feeder.table_settings  # noqa: F401 - says which classes have settings; late: most clients send none
    from async_loader.feeder.derived_settings import plain

    made: dict[str, Any] = plain(check_sampler("sampler", sampler), "sampler")
    return made


def sampler_from(said: dict[str, Any]) -> Sampler:
    """The sampler that a map says, new. Raises ConfigError."""
    from async_loader.feeder.settings_errors import settings_of  # late: as above
    from async_loader.feeder.table_settings import SamplerSettings

    settings: Any = settings_of(said, SamplerSettings, "sampler")
    made: Sampler = settings.make()
    return made


def limiter_plain(limiter: RateLimiter | None) -> Any:
    """Least size, samples per insert, error buffer."""
    return limiter_json(limiter)


def limiter_from(said: Any) -> RateLimiter | None:
    """The inverse of `limiter_plain`."""
    if said is None:
        return None
    least, ratio, buffer = said
    return limiter_of([int(least), ratio, list(buffer) if isinstance(buffer, tuple) else buffer])
