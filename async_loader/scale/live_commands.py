"""The commands ``cluster dashboard`` and ``cluster top``, which show a cluster live."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from async_loader.errors import ConfigError
from async_loader.lifecycle import readable
from async_loader.observe.dashboard import Dashboard
from async_loader.observe.top import redraw
from async_loader.scale import local_ray
from async_loader.scale.client import ClusterClient
from async_loader.scale.cluster import Cluster
from async_loader.scale.cluster_settings import ClusterSettings
from async_loader.scale.stats import ClusterStatus

ASK_S = 1.0
"""A shard that gives no status for this long is shown as silent."""
_CONNECT_S = 10.0


def dashboard(
    addresses: Sequence[str], config: Path | None, ray: str | None, keys: str | None, port: int
) -> None:
    """Serve the page until Ctrl-C. Raises as `watched`, and as `Dashboard`."""
    with watched(addresses, config, ray, keys) as client:
        with Dashboard(lambda: status_of(client), port) as page:
            Console().print(f"dashboard: {page.url}", highlight=False, soft_wrap=True)
            with contextlib.suppress(KeyboardInterrupt):
                readable([], None)


def top(
    addresses: Sequence[str],
    config: Path | None,
    ray: str | None,
    keys: str | None,
    console: Console,
) -> None:
    """Redraw the screen once a second, until Ctrl-C. Raises as `watched`."""
    with watched(addresses, config, ray, keys) as client:
        redraw(lambda: status_of(client), console)


def status_of(client: ClusterClient) -> ClusterStatus:
    """Return the status of all shards that answer soon."""
    return client.status(timeout_s=ASK_S)


@contextlib.contextmanager
def watched(
    addresses: Sequence[str], config: Path | None, ray: str | None, keys: str | None
) -> Iterator[ClusterClient]:
    """Return a client of the shards at these addresses, or of those that the file's cluster has.

    Keys are by default those of the role "operator" that ``cluster up`` has made.

    Raises
    ------
    ConfigError
        Neither addresses nor a file, or both; and as `Cluster.static` and `Cluster.connect`.
    Timeout, Broken, MissingExtra
    """
    if bool(addresses) == (config is not None):
        given = f"--config and {len(addresses)} addresses" if addresses else "neither"
        raise ConfigError(
            f"{given}: give --config FILE for a cluster on Ray, or the address of each shard"
        )
    if config is None:
        client = Cluster.static(addresses, keys=keys, name="async-loader", timeout_s=_CONNECT_S)
    else:
        client = _of_settings(ClusterSettings.load(config), ray, keys)
    with client:
        yield client


def _of_settings(settings: ClusterSettings, ray: str | None, keys: str | None) -> ClusterClient:
    made = settings.network.keys
    if keys is None and made is not None:
        keys = str(Path(made) / "operator")
    return Cluster.connect(
        ray or local_ray.address(),
        cluster=settings.name,
        keys=keys,
        name="async-loader",
        timeout_s=_CONNECT_S,
    )
