"""Serves metrics over HTTP for Prometheus, and what else runs beside a feeder. The one file that
imports prometheus_client.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import accumulate
from typing import Any

from async_loader.errors import AsyncLoaderError, ConfigError, of_extra
from async_loader.feeder.settings import ServerSettings
from async_loader.feeder.status_view import client_name
from async_loader.observe.dashboard import Dashboard
from async_loader.observe.http_server import Viewer, ViewerServer
from async_loader.public_names import set_public_names
from async_loader.stats import DURATIONS, LoaderStats, Stats

__all__ = ["Exporter"]
set_public_names(globals())

STATUS_S = 5.0
"""A loop that makes no status for this long makes a scrape fail, and is shown on the dashboard."""
_log = logging.getLogger("async_loader.feeder")


class Exporter:
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
            if not known(one):
                raise ConfigError(
                    f"object {name!r} is a {type(one).__name__}, which has no stats() of a loader, "
                    "a table or a client"
                )
        self._server = MetricsServer(lambda: families_of(given), port, address)

    @property
    def port(self) -> int:
        """The port that is served."""
        return self._server.port

    def close(self) -> None:
        """Stop serving, and end open connections. May be called again."""
        self._server.close()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MetricsServer(ViewerServer):
    """Serves what a callable returns, and the figures of this process.

    Parameters
    ----------
    collect : callable
        Returns all families; called once a scrape, on a thread of the server. What it raises is
        the scrape's error (500).
    port, address
        See `Exporter`.
    """

    def __init__(
        self, collect: Callable[[], Iterable[Any]], port: int, address: str = "127.0.0.1"
    ) -> None:
        prometheus_client = of_extra("prometheus_client", "metrics")
        self._registry = prometheus_client.CollectorRegistry(auto_describe=False)
        prometheus_client.ProcessCollector(registry=self._registry)
        self._registry.register(self)
        self._generate, self.collect = prometheus_client.generate_latest, collect
        super().__init__("metrics", address, port, _Scrape)

    def text(self) -> bytes:
        """Return a scrape."""
        made: bytes = self._generate(self._registry)
        return made

    @property
    def port(self) -> int:
        """The port that is served."""
        return int(self.server_port)


class _Scrape(Viewer):
    server: MetricsServer

    def do_GET(self) -> None:
        """Answer the metrics, whatever the path."""
        try:
            body, status = self.server.text(), HTTPStatus.OK
        except Exception as error:  # the scrape's, whatever a status or an object has raised
            body, status = f"{error}\n".encode(), HTTPStatus.INTERNAL_SERVER_ERROR
        self.send(status, "text/plain; version=0.0.4; charset=utf-8", body)


def _metric(name: str, kind: str, text: str) -> Any:
    """Return a metric of the library, to which values are added."""
    from prometheus_client.metrics_core import Metric

    return Metric(f"async_loader_{name}", text, kind)


def _add(metric: Any, value: float, **labels: object) -> None:
    name = metric.name + ("_total" if metric.type == "counter" else "")
    metric.add_sample(name, {key: str(one) for key, one in labels.items()}, value)


def _add_histogram(
    metric: Any, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: str
) -> None:
    """Add observations by size: ``counts`` are those of each bucket alone, one more than bounds."""
    sums = list(accumulate(counts))
    for bound, count in zip([*(repr(float(one)) for one in bounds), "+Inf"], sums, strict=True):
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    metric.add_sample(f"{metric.name}_count", labels, sums[-1])
    metric.add_sample(f"{metric.name}_sum", labels, total)


_BOUNDS = tuple(2.0**i / 1e6 for i in range(DURATIONS - 1))
_UNITS = {"nbytes": "memory_bytes", "bytes_sent": "sent_bytes", "bytes_kept": "kept_bytes"}


def known(one: Any) -> bool:
    """Return whether an object's ``stats()`` can be exported."""
    stats = getattr(one, "stats", None)
    return callable(stats) and isinstance(stats(), Stats)


def families_of(objects: Mapping[str, Any]) -> list[Any]:
    """Return the metrics of objects by name. Objects that are closed are left out."""
    families: dict[str, Any] = {}
    for name, one in objects.items():
        try:
            stats: Stats = one.stats()
        except AsyncLoaderError:
            continue
        for metric in _of(stats, stats.KIND, {"name": name}):
            same = families.setdefault(metric.name, metric)
            if same is not metric:
                same.samples += metric.samples
    return list(families.values())


def _of(stats: Stats, prefix: str, labels: Mapping[str, str]) -> Iterator[Any]:
    for field, value in stats.numbers().items():
        kind = "counter" if field in stats.COUNTERS else "gauge"
        named = _UNITS.get(field, re.sub(r"_s$", "_seconds", field))
        metric = _metric(f"{prefix}_{named}", kind, f"{field} of {type(stats).__name__}.")
        _add(metric, value, **labels)
        yield metric
    for name, part in stats.parts():
        yield from _of(part, f"{prefix}_stage", {**labels, "stage": name})
    if isinstance(stats, LoaderStats) and stats.durations:
        text = "Calls of next() by duration."
        metric = _metric(f"{prefix}_batch_latency_seconds", "histogram", text)
        _add_histogram(metric, _BOUNDS, stats.durations, stats.learner.wait_s, **labels)
        yield metric


Status = Mapping[str, Any]
_Columns = tuple[tuple[str, str, str, str], ...]
"""Of each metric the name, kind, key in a status, and text."""

_TABLE: _Columns = (
    ("table_items", "gauge", "size", "Items that can be drawn."),
    ("table_capacity_steps", "gauge", "capacity", "Steps that the table keeps."),
    ("table_memory_bytes", "gauge", "nbytes", "Shared memory of the full table."),
    ("table_inserted_items", "counter", "inserted_total", "Items inserted."),
    ("table_sampled_items", "counter", "sampled_total", "Items sampled."),
    ("table_deleted_items", "counter", "deleted_total", "Items removed to make room, or deleted."),
    ("table_samples_per_insert", "gauge", "samples_per_insert", "Items sampled per item inserted."),
    ("table_writers", "gauge", "writers", "Writers that are open."),
    ("table_readers", "gauge", "readers", "Readers that are open."),
    ("table_received_rows", "counter", "rows_in", "Steps received and inserted."),
    ("table_sent_rows", "counter", "rows_out", "Rows of batches sent."),
    ("table_sent_batches", "counter", "batches_out", "Batches sent."),
    ("table_redelivered_batches", "counter", "redelivered", "Batches of returned rows."),
    ("table_duplicate_messages", "counter", "duplicates", "Inserts received twice, and dropped."),
    ("table_queued_rows", "gauge", "queued_rows", "Rows received that wait for the table."),
    ("table_queued_bytes", "gauge", "queued_bytes", "Bytes received that wait for the table."),
    ("table_queue_age_seconds", "gauge", "queue_age_s", "Time that the oldest of them waits."),
)
_CLIENT: _Columns = (
    ("client_received_rows", "counter", "rows_in", "Steps received from its writers."),
    ("client_sent_batches", "counter", "batches_out", "Batches sent to its readers."),
    ("client_in_flight_bytes", "gauge", "in_flight_bytes", "Bytes received, and not in a table."),
    ("client_silent_seconds", "gauge", "silent_s", "Time since the client was last heard."),
    ("client_connected", "gauge", "connected", "1 while a connection of the client is open."),
)

_FEEDER: _Columns = (
    ("feeder_uptime_seconds", "gauge", "uptime_s", "Time since the start."),
    ("feeder_draining", "gauge", "draining", "1 while the feeder drains."),
    ("feeder_clients", "gauge", "sessions_open", "Clients with an open session."),
    ("weights_stale", "counter", "weights_stale", "Published versions that were ignored as old."),
)
_TRAFFIC = {
    "messages": ("feeder_messages", "Messages, by plane and direction."),
    "bytes": ("feeder_message_bytes", "Bytes of messages."),
    "refused": ("feeder_refused_messages", "Messages refused, by reason."),
    "faults": ("feeder_faults", "Errors of the feeder itself."),
}
_LAGS = (
    (
        "policy_lag_versions",
        "lag",
        "Versions between the weights of the writer furthest behind and the published ones.",
    ),
    ("policy_lag_seconds", "lag_s", "Time between the publication of these two."),
    (
        "policy_lag_batch_versions",
        "batch_lag",
        "Versions between the oldest row of a queue's last batch and the published weights.",
    ),
)
_WEIGHTS = (
    ("weights_version", "weights", "The newest version that was published."),
    ("weights_age_seconds", "weights_age_s", "Time since it was published."),
    ("weights_waiting_clients", "weights_waiting", "Clients that wait for a newer version."),
)


def feeder_families(status: Status, bounds: tuple[int, ...]) -> Iterator[Any]:
    """Return the metrics of a status.

    ``bounds``: of the histogram of policy lags, see `FeederStatus`.
    """
    tables = status["tables"].items()
    info = _metric("feeder_info", "gauge", "1; its labels say what the feeder is.")
    _add(info, 1, incarnation=status["incarnation"], wire_version=status["version"])
    ended = _metric("feeder_clients_ended", "counter", "Clients that left, died or were lost.")
    for how, count in status["sessions_ended"].items():
        _add(ended, count, how=how)
    traffic = {what: _metric(name, "counter", help_) for what, (name, help_) in _TRAFFIC.items()}
    for name, count in status["counters"].items():
        what, _, rest = name.partition("_")
        plane, _, way = rest.rpartition("_")
        if what in traffic:
            labels = {"reason": rest} if what == "refused" else {"plane": plane, "direction": way}
            _add(traffic[what], count, **({} if what == "faults" else labels))
    yield from (info, ended, *traffic.values())
    yield from _columns(_FEEDER, [({}, status)])
    yield from _columns(_TABLE, [({"table": name}, one) for name, one in tables])
    yield from _columns(_CLIENT, [(_client(one), one) for one in status["sessions"]])
    blocked = _metric(
        "table_blocked_seconds",
        "counter",
        "Time in which the table let no reader draw (too few items, or the limiter), or no writer "
        "insert (the limiter, or a full queue).",
    )
    stale = _metric("table_stale_items", "counter", "Items left out by max_lag, by reason.")
    steps = _metric(
        "policy_lag_steps",
        "histogram",
        "Received steps by how many versions their weights were behind the published ones.",
    )
    lags = [(key, _metric(name, "gauge", help_)) for name, key, help_ in _LAGS]
    for name, table in tables:
        for side in ("readers", "writers"):
            _add(blocked, table[f"{side}_blocked_s"], table=name, side=side)
        for reason, count in table["stale"].items():
            _add(stale, count, table=name, reason=reason)
        for policy, one in table["policies"].items():
            for key, metric in lags:
                if key in one:
                    _add(metric, one[key], table=name, policy=policy)
        for policy, one in table["policy_lags"].items():
            _add_histogram(steps, bounds, one["counts"], one["sum"], table=name, policy=policy)
    yield from (blocked, stale, *(metric for _, metric in lags), steps)
    for name, key, help_ in _WEIGHTS:
        metric = _metric(name, "gauge", help_)
        for policy, value in status[key].items():
            _add(metric, value, policy=policy)
        yield metric


def _columns(columns: _Columns, rows: list[tuple[dict[str, str], Status]]) -> Iterator[Any]:
    for name, kind, key, help_ in columns:
        metric = _metric(name, kind, help_)
        for labels, one in rows:
            if one[key] is not None:
                _add(metric, float(one[key]), **labels)
        yield metric


def _client(session: Mapping[str, Any]) -> dict[str, str]:
    return {
        "client": client_name(session),
        "host": str(session["host"]),
        "pid": str(session["pid"]),
        "session": str(session["id"]),
    }


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

            wanted = settings.metrics
            server = MetricsServer(
                lambda: feeder_families(ask_status(STATUS_S), LAG_BOUNDS),
                wanted.port,
                wanted.address,
            )
            stack.enter_context(contextlib.closing(server))
            _log.info("metrics at http://%s:%d/metrics", wanted.address, server.port)
        if settings.dashboard is not None:
            where = settings.dashboard
            page = Dashboard(lambda: ask_status(STATUS_S), where.port, where.address)
            stack.enter_context(page)
            _log.info("dashboard at %s", page.url)
        yield
