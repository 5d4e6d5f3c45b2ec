"""Asynchronous replay-buffer loader service for reinforcement learning."""

from __future__ import annotations

import contextlib as _contextlib
from typing import TYPE_CHECKING

from async_loader import errors
from async_loader.public_names import set_public_names

# torch imports it, which Python refuses to a thread that goes on when the main thread has ended.
with _contextlib.suppress(RuntimeError):
    import concurrent.futures.thread as _early  # noqa: F401

__version__ = "0.1.0"

__all__ = [
    "END",
    "Applied",
    "AsyncDataLoader",
    "Balanced",
    "DataLoader",
    "Field",
    "Fifo",
    "Hindsight",
    "Lifo",
    "Linear",
    "MaxHeap",
    "MinHeap",
    "MinSize",
    "Mixture",
    "Prioritized",
    "Ragged",
    "RankPrioritized",
    "RateLimiter",
    "Recency",
    "ReplayBuffer",
    "Rollouts",
    "Sampler",
    "Schema",
    "Sequences",
    "Source",
    "Table",
    "Transitions",
    "Uniform",
    "Writer",
    "__version__",
    "connect",
    "errors",
]

if TYPE_CHECKING:
    from async_loader.async_data_loader import AsyncDataLoader
    from async_loader.dataset.data_loader import DataLoader
    from async_loader.feeder import connect
    from async_loader.replay.buffer import ReplayBuffer
    from async_loader.replay.hindsight_view import Hindsight
    from async_loader.replay.rate_limiter import MinSize, RateLimiter
    from async_loader.replay.samplers import (
        Balanced,
        Fifo,
        Lifo,
        Linear,
        MaxHeap,
        MinHeap,
        Prioritized,
        RankPrioritized,
        Recency,
        Sampler,
        Uniform,
    )
    from async_loader.replay.views import Sequences, Transitions
    from async_loader.rollouts.rollouts import Rollouts
    from async_loader.rollouts.schema import Ragged
    from async_loader.schema import Field, Schema
    from async_loader.source import END, Applied, Source
    from async_loader.sources.mixture import Mixture
    from async_loader.table import Table, Writer

set_public_names(
    globals(),
    {
        "AsyncDataLoader": "async_loader.async_data_loader",
        "DataLoader": "async_loader.dataset.data_loader",
        "Hindsight": "async_loader.replay.hindsight_view",
        "Mixture": "async_loader.sources.mixture",
        "Ragged": "async_loader.rollouts.schema",
        "ReplayBuffer": "async_loader.replay.buffer",
        "Rollouts": "async_loader.rollouts.rollouts",
        "Sequences": "async_loader.replay.views",
        "Transitions": "async_loader.replay.views",
        "connect": "async_loader.feeder.client.connect",
        **dict.fromkeys(("Field", "Schema"), "async_loader.schema"),
        **dict.fromkeys(("END", "Applied", "Source"), "async_loader.source"),
        **dict.fromkeys(("Table", "Writer"), "async_loader.table"),
        **dict.fromkeys(("MinSize", "RateLimiter"), "async_loader.replay.rate_limiter"),
        **dict.fromkeys(
            (
                "Balanced",
                "Fifo",
                "Lifo",
                "Linear",
                "MaxHeap",
                "MinHeap",
                "Prioritized",
                "RankPrioritized",
                "Recency",
                "Sampler",
                "Uniform",
            ),
            "async_loader.replay.samplers",
        ),
    },
)
