"""Asynchronous replay-buffer loader service for reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "END",
    "AsyncDataLoader",
    "DataLoader",
    "Field",
    "Fifo",
    "Lifo",
    "Linear",
    "MaxHeap",
    "MinHeap",
    "MinSize",
    "Prioritized",
    "Queue",
    "RankPrioritized",
    "RateLimiter",
    "ReplayBuffer",
    "Schema",
    "Stack",
    "Transitions",
    "Uniform",
    "__version__",
]

if TYPE_CHECKING:
    from async_loader.epochs.loader import DataLoader
    from async_loader.loader import AsyncDataLoader
    from async_loader.replay.buffer import ReplayBuffer
    from async_loader.replay.limiter import MinSize, Queue, RateLimiter, Stack
    from async_loader.replay.samplers import Fifo, Lifo, Linear, MaxHeap, MinHeap, Prioritized, RankPrioritized, Uniform
    from async_loader.replay.views import Transitions
    from async_loader.schema import Field, Schema
    from async_loader.source import END
else:
    _HOMES = {
        "AsyncDataLoader": "async_loader.loader",
        "DataLoader": "async_loader.epochs.loader",
        "ReplayBuffer": "async_loader.replay.buffer",
        "Transitions": "async_loader.replay.views",
        "Field": "async_loader.schema",
        "Schema": "async_loader.schema",
        "END": "async_loader.source",
        **dict.fromkeys(("MinSize", "Queue", "RateLimiter", "Stack"), "async_loader.replay.limiter"),
        **dict.fromkeys(
            ("Fifo", "Lifo", "Linear", "MaxHeap", "MinHeap", "Prioritized", "RankPrioritized", "Uniform"),
            "async_loader.replay.samplers",
        ),
    }

    def __getattr__(name):
        """Public names are imported when they are first used: a table needs no loader, a loader no table."""
        if name not in _HOMES:
            raise AttributeError(f"module 'async_loader' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted(__all__)
