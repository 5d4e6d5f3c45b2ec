"""Whether a table can show sequences. Pure arithmetic."""

from __future__ import annotations

from async_loader.errors import ConfigError
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.views import Sequences


def check_sequences(
    view: Sequences,
    capacity: int,
    surely: int,
    limiter: RateLimiter | None,
    max_times_sampled: int,
) -> None:
    """Raise ConfigError for sequences that a table of ``capacity`` steps can never show.

    ``surely``: how many steps can be drawn while an episode is open.
    """
    if max_times_sampled:
        raise ConfigError(
            "this table counts the draws of each step, and a step is in several sequences: "
            "leave out max_times_sampled, or store each sequence as one step"
        )
    if view.whole:
        return
    if view.span > surely:
        raise ConfigError(
            f"a sequence of {view.span:,} steps does not fit: the table keeps {capacity:,}, raise "
            "the capacity"
        )
    if limiter is None:
        return
    _, most = limiter.bounds
    first = max(limiter.min_size_to_sample, most / limiter.samples_per_insert)
    if first <= view.span:  # its last step waits for the one after it
        raise ConfigError(
            f"{limiter} stop inserting at {first:,.0f} steps, before there is a sequence of "
            f"{view.span:,}: use min_size_to_sample={view.span + 1} or more for each stream"
        )
