"""Serves metrics over HTTP for Prometheus, and what else runs beside a feeder. The one file that
imports prometheus_client.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from http import HTTPStatus
from itertools import accumulate
from typing import Any

from async_loader.errors import AsyncLoaderError, ConfigError, of_extra
from async_loader.feeder.settings import ServerSettings
from async_loader.observe.dashboard import Dashboard
from async_loader.observe.http_server import Served, WebServer
from async_loader.public_names import set_public_names
from async_loader.rollouts.stats import RolloutStats
from async_loader.stats import DURATIONS, LoaderStats, Stats

__all__ = ["Exporter"]
set_public_names(globals())

STATUS_S = 5.0
"""A loop that makes no status for this long makes a scrape fail, and is shown on the dashboard."""
_log = logging.getLogger("async_loader.feeder")


class Exporter(Served):
    """Serves the metrics of loaders, tables and clients at ``http://ADDRESS:PORT/metrics``.

    Threads: a thread of its own answers scrapes; `close` may be called from any. A scrape reads
    snapshots (`stats`): it holds no lock while a batch is made, and costs nothing in between.

    Parameters
    ----------
    *objects : AsyncDataLoader | DataLoader | ReplayBuffer | Client
        Anything whose ``stats()`` is one of this package's. Several of one kind are told apart by
        the label ``name``: their number in this order, from 0.
    port : int
        0 takes a free one, see `port`.
    address : str
        By default this machine's loopback: metrics are read without a key.
    **named : as objects
        Objects with names of your own.

    Raises
    ------
    MissingExtra
        Without prometheus_client: install ``async_loader[metrics]``.
    AddressInUse
        If another program has the port.
    ConfigError
        For an object without such stats, and an address or a port that cannot be.

    Examples
    --------
    >>> with Exporter(loader, learner=buffer, port=9464):  # doctest: +SKIP
    ...     train(loader)
    """

    def __init__(
        self, *objects: Any, port: int = 9464, address: str = "127.0.0.1", **named: Any
    ) -> None:
        given = {**{str(i): one for i, one in enumerate(objects)}, **named}
        if not given:
            raise ConfigError("there is nothing to export: give a loader, a table or a client")
        for name, one in given.items():
            stats = getattr(one, "stats", None)
            if not (callable(stats) and isinstance(stats(), Stats)):
                raise ConfigError(
                    f"object {name!r} is a {type(one).__name__}, which has no stats() of a loader, "
                    "a table or a client"
                )
        self._server = MetricsServer(lambda: metrics_of(given), port, address)

    @property
    def port(self) -> int:
        """The port that is served."""
        return self._server.server_port


class MetricsServer(WebServer):
    """Serves what a callable returns, and the figures of this process.

    Parameters
    ----------
    collect : callable
        Returns metrics of one value each; called once a scrape, on a thread of the server. What it
        raises is the scrape's error (500).
    port, address
        See `Exporter`.
    """

    def __init__(
        self, collect: Callable[[], Iterable[Any]], port: int, address: str = "127.0.0.1"
    ) -> None:
        prometheus_client = of_extra("prometheus_client", "metrics")
        registry = prometheus_client.CollectorRegistry(auto_describe=False)
        prometheus_client.ProcessCollector(registry=registry)
        self._collect = collect
        registry.register(self)
        ok = HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8"
        super().__init__(
            "metrics", address, port, lambda _: (*ok, prometheus_client.generate_latest(registry))
        )

    def collect(self) -> Iterable[Any]:
        """Return all metrics; those of one name are one, with all values."""
        found: dict[str, Any] = {}
        for metric in self._collect():
            same = found.setdefault(metric.name, metric)
            if same is not metric:
                same.samples += metric.samples
        return found.values()


_COUNTERS = frozenset(
    ("rows_in", "rows_out", "batches_out", "redelivered", "duplicates", "stale", "weights_stale",
     "writers_blocked_s", "readers_blocked_s", "sessions_ended", "counters")
)  # fmt: skip
_BOUNDS = (*(repr(2.0**i / 1e6) for i in range(DURATIONS - 1)), "+Inf")
_UNITS = {"nbytes": "memory_bytes", "bytes_sent": "sent_bytes", "bytes_kept": "kept_bytes"}


def metrics_of(objects: Mapping[str, Any]) -> Iterator[Any]:
    """Return the metrics of objects by name. Objects that are closed are left out."""
    for name, one in objects.items():
        with contextlib.suppress(AsyncLoaderError):
            stats: Stats = one.stats()
            yield from _of(stats, stats.KIND, {"name": name})


def _of(stats: Stats, prefix: str, labels: Mapping[str, str]) -> Iterator[Any]:
    yield from _numbers(prefix, stats.numbers(), labels, stats.COUNTERS)
    for name, part in stats.parts():
        yield from _of(part, f"{prefix}_stage", {**labels, "stage": name})
    if isinstance(stats, LoaderStats) and stats.durations:
        from prometheus_client.metrics_core import HistogramMetricFamily

        metric = HistogramMetricFamily(
            f"async_loader_{prefix}_batch_latency_seconds",
            "Calls of next() by duration.",
            labels=tuple(labels),
        )
        buckets = list(zip(_BOUNDS, accumulate(stats.durations), strict=True))
        metric.add_metric(tuple(labels.values()), buckets, stats.learner.wait_s)
        yield metric


def _numbers(
    prefix: str,
    values: Mapping[str, Any],
    labels: Mapping[str, object],
    counters: Container[str] = _COUNTERS,
) -> Iterator[Any]:
    """Return a metric for each number; the rest is left out."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    for key, value in values.items():
        if isinstance(value, int | float):
            family = CounterMetricFamily if key in counters else GaugeMetricFamily
            name = _UNITS.get(key, re.sub(r"(?<!per)_s$", "_seconds", key))
            text = f"{key} of a {prefix.partition('_')[0]}'s status or stats."
            metric = family(f"async_loader_{prefix}_{name}", text, labels=tuple(labels))
            metric.add_metric(list(map(str, labels.values())), float(value))
            yield metric


_MAPS = {
    "sessions_ended": "how",
    "connections": "what",
    "counters": "what",
    "weights": "policy",
    "weights_age_s": "policy",
    "weights_waiting": "policy",
}
"""Numbers by name in a status, and the label of the names."""


def feeder_metrics(status: Mapping[str, Any]) -> Iterator[Any]:
    """Return the metrics of a `FeederStatus`: its numbers, by their names."""
    yield from _numbers("feeder", status, {})
    for key, label in _MAPS.items():
        for name, value in status[key].items():
            yield from _numbers("feeder", {key: value}, {label: name})
    for name, table in status["tables"].items():
        labels = {"table": name}
        yield from _numbers("table", table, labels)
        for reason, count in table["stale"].items():
            yield from _numbers("table", {"stale": count}, {**labels, "reason": reason})
        for policy, one in table["policies"].items():
            yield from _numbers("policy", one, {**labels, "policy": policy})
    for name, table in status["rollouts"].items():
        labels, stats = {"table": name}, RolloutStats.of(table)
        yield from _numbers("rollouts", stats.numbers(), labels, stats.COUNTERS)
        for key in ("ended", "given_back"):
            for reason, count in table[key].items():
                named = {f"{key}_by_reason": count}
                yield from _numbers("rollouts", named, {**labels, "reason": reason}, tuple(named))
    for one in status["sessions"]:
        labels = {
            "client": one["name"],
            "host": one["host"],
            "pid": one["pid"],
            "session": one["id"],
        }
        yield from _numbers("client", one, labels)


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
        if wanted := settings.metrics:
            server = MetricsServer(
                lambda: feeder_metrics(ask_status(STATUS_S)), wanted.port, wanted.address
            )
            stack.callback(server.close)
            _log.info("metrics at http://%s:%d/metrics", wanted.address, server.server_port)
        if where := settings.dashboard:
            page = stack.enter_context(
                Dashboard(lambda: ask_status(STATUS_S), where.port, where.address)
            )
            _log.info("dashboard at %s", page.url)
        yield
