"""The feeder: a standalone process that owns replay tables.

Actors push steps in, learners pull batches out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Client", "ClientStats", "FeederStatus", "Published", "TableClient", "connect"]

if TYPE_CHECKING:
    from async_loader.feeder.client.client import Client
    from async_loader.feeder.client.connect import connect
    from async_loader.feeder.client.stats import ClientStats
    from async_loader.feeder.client.table import TableClient
    from async_loader.feeder.client.weights import Published
    from async_loader.feeder.status import FeederStatus
else:
    _HOMES = {
        "Client": "async_loader.feeder.client.client",
        "ClientStats": "async_loader.feeder.client.stats",
        "FeederStatus": "async_loader.feeder.status",
        "Published": "async_loader.feeder.client.weights",
        "connect": "async_loader.feeder.client.connect",
        "TableClient": "async_loader.feeder.client.table",
    }

    def __getattr__(name):
        """Public names are imported when they are first used: reading the wire needs no socket."""
        if name not in _HOMES:
            raise AttributeError(f"module 'async_loader.feeder' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted(__all__)
