"""The feeder: a standalone process that owns replay tables.

Actors push steps in, learners pull batches out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from async_loader.public_names import set_public_names

__all__ = ["Client", "ClientStats", "FeederStatus", "Published", "TableClient", "connect"]

if TYPE_CHECKING:
    from async_loader.feeder.client.client import Client
    from async_loader.feeder.client.connect import connect
    from async_loader.feeder.client.stats import ClientStats
    from async_loader.feeder.client.table import TableClient
    from async_loader.feeder.client.weights import Published
    from async_loader.feeder.status import FeederStatus

set_public_names(
    globals(),
    {
        "Client": "async_loader.feeder.client.client",
        "ClientStats": "async_loader.feeder.client.stats",
        "FeederStatus": "async_loader.feeder.status",
        "Published": "async_loader.feeder.client.weights",
        "connect": "async_loader.feeder.client.connect",
        "TableClient": "async_loader.feeder.client.table",
    },
)
