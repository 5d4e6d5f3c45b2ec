"""What runs beside a feeder that serves: metrics and a dashboard, if its settings ask for them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from async_loader.feeder.settings import ServerSettings

STATUS_S = 5.0
"""A loop that makes no status for this long makes a scrape fail, and is shown on the dashboard."""
_log = logging.getLogger("async_loader.feeder")


@contextlib.contextmanager
def observed(
    settings: ServerSettings, ask_status: Callable[[float], Mapping[str, Any]]
) -> Iterator[None]:
    """Serve the metrics and the dashboard of a feeder until the end of the block.

    Raises
    ------
    MissingExtra, AddressInUse
        As `MetricsServer` and `Dashboard` do.
    """
    with contextlib.ExitStack() as stack:
        if settings.metrics is not None:
            from async_loader.feeder.server.policy_lag import LAG_BOUNDS
            from async_loader.observe.exporter import MetricsServer, feeder_families

            wanted = settings.metrics
            server = MetricsServer(
                lambda: feeder_families(ask_status(STATUS_S), LAG_BOUNDS),
                wanted.port,
                wanted.address,
            )
            stack.enter_context(contextlib.closing(server))
            _log.info("metrics at http://%s:%d/metrics", wanted.address, server.port)
        if settings.dashboard is not None:
            from async_loader.observe.dashboard import Dashboard

            where = settings.dashboard
            page = Dashboard(lambda: ask_status(STATUS_S), where.port, where.address)
            stack.enter_context(page)
            _log.info("dashboard at %s", page.url)
        yield
