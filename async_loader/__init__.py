"""Asynchronous replay-buffer loader service for reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = ["END", "AsyncDataLoader", "Field", "ReplayBuffer", "Schema", "__version__"]

if TYPE_CHECKING:
    from async_loader.loader import AsyncDataLoader
    from async_loader.replay.buffer import ReplayBuffer
    from async_loader.schema import Field, Schema
    from async_loader.source import END
else:
    _HOMES = {
        "AsyncDataLoader": "async_loader.loader",
        "ReplayBuffer": "async_loader.replay.buffer",
        "Field": "async_loader.schema",
        "Schema": "async_loader.schema",
        "END": "async_loader.source",
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
