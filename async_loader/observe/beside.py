"""What runs beside a feeder that serves: its metrics, if its settings ask for them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from async_loader.feeder.server.policy_lag import LAG_BOUNDS
from async_loader.feeder.settings import ServerSettings
from async_loader.observe.feeder_families import feeder_families

STATUS_S = 5.0
"""A loop that makes no status for this long makes a scrape fail."""
_log = logging.getLogger("async_loader.feeder")


@contextlib.contextmanager
def observed(
    settings: ServerSettings, ask_status: Callable[[float], Mapping[str, Any]]
) -> Iterator[None]:
    """Serve the metrics of a feeder until the end of the block.

    Raises
    ------
    MissingExtra, AddressInUse
        As `MetricsServer` does.
    """
    if settings.metrics is None:
        yield
        return
    from async_loader.observe.exporter import MetricsServer

    wanted = settings.metrics
    server = MetricsServer(
        lambda: feeder_families(ask_status(STATUS_S), LAG_BOUNDS), wanted.port, wanted.address
    )
    with contextlib.closing(server):
        _log.info("metrics at http://%s:%d/metrics", wanted.address, server.port)
        yield
