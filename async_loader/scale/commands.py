"""The commands ``cluster up``, ``status``, ``drain``, ``restart``, ``down`` and ``dashboard``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from async_loader.errors import ConfigError
from async_loader.feeder.commands import clean, count_text
from async_loader.lifecycle import readable
from async_loader.observe.dashboard import Dashboard
from async_loader.scale import ray_library
from async_loader.scale.client import ClusterClient
from async_loader.scale.cluster import Cluster
from async_loader.scale.cluster_settings import ClusterSettings
from async_loader.scale.operations import Operator, Say
from async_loader.scale.stats import ClusterStatus

ASK_S = 1.0
"""A shard that gives no status for this long is shown as silent."""
_CONNECT_S = 10.0


def operator(config: Path, ray: str | None, as_json: bool) -> Operator:
    """Return what works on the cluster of a file, connected to its Ray."""
    settings = ClusterSettings.load(config)
    ray_library.join(ray)
    return Operator(settings, _say(as_json))


def show_ended(ended: list[dict[str, Any]]) -> None:
    """Print what the shards have held that were ended."""
    for one in ended:
        saved = f", saved in {one['saves']}" if one.get("saves") else ""
        how = f": {clean(one['error'])}" if one.get("error") else f", with {_held(one['rows'])}"
        Console().print(f"{one['shard']} has ended{how}{saved}", highlight=False)


def _say(as_json: bool) -> Say:
    console = Console(stderr=True)
    return lambda line: None if as_json else console.print(clean(line), highlight=False)


def as_line(value: object) -> None:
    """Print a line of JSON."""
    Console().out(json.dumps(value), highlight=False)


def _held(rows: dict[str, int]) -> str:
    return ", ".join(f"{count} rows of {clean(name)}" for name, count in rows.items()) or "no rows"


def show(status: dict[str, Any], as_json: bool) -> None:
    """Print the status of a cluster."""
    if as_json:
        as_line(status)
        return
    table = Table("shard", "state", "address", "host", "rows", "lost", "why")
    for one in status["shards"]:
        style = "" if one["state"] == "serving" else "yellow"
        cells = (
            one["name"],
            one["state"],
            one.get("address") or "",
            one.get("host") or "",
            _sizes(one),
            _held(one["lost_rows"]) if one["lost_rows"] else "",
            one.get("error") or "",
        )
        table.add_row(*(clean(cell) for cell in cells), style=style)
    console = Console()
    console.print(f"cluster {status['cluster']}, {status['nodes']} nodes", highlight=False)
    console.print(table)


def _sizes(shard: dict[str, Any]) -> str:
    tables = shard["feeder"]["tables"] if shard.get("feeder") else {}
    return ", ".join(f"{name} {count_text(one['size'])}" for name, one in tables.items())


# -- live ----------------------------------------------------------------------------------------


def dashboard(
    addresses: Sequence[str], config: Path | None, ray: str | None, keys: str | None, port: int
) -> None:
    """Serve the page until Ctrl-C. Raises as `watched`, and as `Dashboard`."""
    with watched(addresses, config, ray, keys) as client:
        with Dashboard(lambda: status_of(client), port) as page:
            Console().print(f"dashboard: {page.url}", highlight=False, soft_wrap=True)
            with contextlib.suppress(KeyboardInterrupt):
                readable([], None)


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
        settings = ClusterSettings.load(config)
        made = settings.network.keys
        client = Cluster.connect(
            ray,
            cluster=settings.name,
            keys=keys or (None if made is None else str(Path(made) / "operator.secret")),
            name="async-loader",
            timeout_s=_CONNECT_S,
        )
    with client:
        yield client
