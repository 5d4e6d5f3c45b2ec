"""Serves metrics over HTTP for Prometheus. The one file that imports prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http import HTTPStatus
from itertools import accumulate
from typing import Any

from async_loader.errors import ConfigError, MissingExtra
from async_loader.observe.families import Family, Histogram
from async_loader.observe.http_server import Viewer, ViewerServer
from async_loader.observe.object_families import families_of, known
from async_loader.public_names import set_public_names

__all__ = ["Exporter"]
set_public_names(globals())


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
        self, collect: Callable[[], Iterable[Family]], port: int, address: str = "127.0.0.1"
    ) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise MissingExtra(
                'metrics need prometheus_client: pip install "async_loader[metrics]"'
            ) from error
        registry = prometheus_client.CollectorRegistry(auto_describe=False)
        prometheus_client.ProcessCollector(registry=registry)
        registry.register(_Collector(collect))
        self.text = partial(prometheus_client.generate_latest, registry)
        super().__init__("metrics", address, port, _Scrape)

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


class _Collector:
    """Converts families to the library's metrics."""

    def __init__(self, collect: Callable[[], Iterable[Family]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Any]:
        return (_metric(family) for family in self._collect())


def _metric(family: Family) -> Any:
    from prometheus_client.metrics_core import Metric

    name = family.full_name.removesuffix("_total")
    metric = Metric(name, family.help, family.kind)
    for labels, value in family.samples:
        if isinstance(value, Histogram):
            sums = list(accumulate(value.counts))
            bounds = [repr(float(bound)) for bound in value.bounds]
            for bound, count in zip([*bounds, "+Inf"], sums, strict=True):
                metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
            metric.add_sample(f"{name}_count", labels, sums[-1])
            metric.add_sample(f"{name}_sum", labels, value.sum)
        else:
            metric.add_sample(family.full_name, labels, value)
    return metric
