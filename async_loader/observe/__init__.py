"""Metrics for Prometheus: of a feeder, and of the objects in a learner's or an actor's process.

    stats of loaders, tables, clients ---> families ---> Exporter ---> http://127.0.0.1:9464/metrics
    status of a feeder ------------------> families ---> (``metrics: {port: 9464}`` in its settings)

Needs the extra ``metrics``: ``pip install "async_loader[metrics]"``.
"""

from async_loader.observe.dashboard import Dashboard
from async_loader.observe.exporter import Exporter
from async_loader.public_names import set_public_names

__all__ = ["Dashboard", "Exporter"]
set_public_names(globals())
