"""Many feeders as one: `Cluster`.

Its client has the methods of a feeder's, over all shards: see docs/guides/cluster.md.
"""

from __future__ import annotations

from async_loader.public_names import set_public_names
from async_loader.scale.client import ClusterClient
from async_loader.scale.cluster import Cluster
from async_loader.scale.shards import Shard
from async_loader.scale.source import ClusterSource
from async_loader.scale.stats import ClusterTableStats, LostRows
from async_loader.scale.table import ClusterTable

__all__ = [
    "Cluster",
    "ClusterClient",
    "ClusterSource",
    "ClusterTable",
    "ClusterTableStats",
    "LostRows",
    "Shard",
]
set_public_names(globals())
