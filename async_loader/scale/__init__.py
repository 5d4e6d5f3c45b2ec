"""Many feeders as one: `Cluster`."""

from __future__ import annotations

from async_loader.scale.cluster import Cluster

__all__ = ["Cluster"]
