"""Capacity and limits of tables that draw each item once, or show sequences. Pure arithmetic.

# NOTE [capacity of a queue]
The size of a queue counts items, its capacity rows. Where steps stand alone these are the same.
Where the schema or the view links them, rows lie beside the items: the final observation of each
episode, the steps of an open episode that wait for their successors, and the past that the stacks
of its next steps show. So that ``size`` items can wait however short the episodes are, each item
has a row for a final observation, and there is room for `OPEN_EPISODES` open episodes: for the rows
that each pins, and for those that the others keep free for it (`Table.room_for`). They have to take
turns: an episode that stands still while others go on and on holds the ring up in the end, whatever
the capacity.
"""

from __future__ import annotations

from typing import Final

from async_loader.errors import ConfigError
from async_loader.replay.arguments import positive
from async_loader.replay.hindsight_view import Hindsight
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.views import Sequences, View, depth_and_lookahead
from async_loader.schema import Schema


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


OPEN_EPISODES: Final = 32
"""Episodes that may be open at once in a queue with a derived capacity: actors, or environments of
a vector.
"""


def capacity_of(size: int, schema: Schema | None, view: View | None = None) -> int:
    """Return the rows of a queue in which ``size`` items can wait.

    Raises ConfigError for a bad size.

    See NOTE [capacity of a queue].
    """
    size = positive("size", size)
    if isinstance(view, Hindsight):
        raise ConfigError(
            "a queue gives each step once, before its episode has achieved much: use a "
            "ReplayBuffer with view=Hindsight(...)"
        )
    if isinstance(view, Sequences):
        raise ConfigError(
            "a queue gives each step once, and a step is in several sequences: store each sequence "
            "as one step of the queue, or use a ReplayBuffer with view=Sequences(...)"
        )
    depth, followed = (1, 0) if schema is None else depth_and_lookahead(schema)
    waiting = (1 if view is None else view.n_steps) - 1 + followed
    if depth == 1 and not waiting:
        return size
    pinned, reserve = depth - 1 + waiting + followed, max(1, waiting) + followed
    return size * (1 + followed) + OPEN_EPISODES * (pinned + reserve) + 2


def check_stack(schema: Schema | None) -> None:
    """Raise ConfigError for a schema that links steps: a stack reuses rows out of order."""
    linked = [] if schema is None else [field.name for field in schema.fields if field.linked]
    if linked:
        raise ConfigError(
            f"field {linked[0]!r} has a stack= or a next=, which are read from the steps around "
            "it, and a stack takes those out of order: store what a step needs in it, or use "
            "ReplayBuffer.queue(size, schema)"
        )


def check_limiter(limiter: object, max_times_sampled: int) -> None:
    """Raise ConfigError for a value that is not a limiter, and for a queue's limiter in any other
    table.
    """
    if limiter is None:
        return
    if not isinstance(limiter, RateLimiter):
        raise ConfigError(
            f"limiter={limiter!r}: give a RateLimiter or MinSize(n), or make a queue: "
            "ReplayBuffer.queue(size)"
        )
    if limiter.queue_size is not None and max_times_sampled != 1:
        raise ConfigError(
            f"limiter={limiter!r} counts on each item being drawn once, and "
            f"max_times_sampled={max_times_sampled} says otherwise: "
            f"use ReplayBuffer.queue({limiter.queue_size}, schema), or stack(...), which set both"
        )
