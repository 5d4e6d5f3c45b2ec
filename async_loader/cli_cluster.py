"""The commands ``async-loader cluster ...``: many feeders, as shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from async_loader.cli_errors import Group, errors_as_lines

cluster = typer.Typer(
    help="Run many feeders as shards of a cluster, placed and restarted by Ray.",
    no_args_is_help=True,
    cls=Group,
)
CLUSTER_CONFIG = typer.Option("--config", help="YAML, as 'cluster up --print-config' prints it.")
PRINT_CONFIG = typer.Option("--print-config", help="Print all settings as YAML, and exit.")
RAY = typer.Option(
    "--ray", help="Ray's address; by default RAY_ADDRESS, or the Ray that runs on this machine."
)
CLUSTER_JSON = typer.Option("--json", help="Print one line of JSON, and nothing else.")
CLUSTER_WAIT = typer.Option("--timeout-s", help="How long a shard may deliver and save.")
DISCARD = typer.Option("--discard", help="Also if rows are lost with it.")


@cluster.command("up")
def cluster_up(
    config: Annotated[Path | None, CLUSTER_CONFIG] = None,
    ray: Annotated[str | None, RAY] = None,
    as_json: Annotated[bool, CLUSTER_JSON] = False,
    print_config: Annotated[bool, PRINT_CONFIG] = False,
) -> None:
    """Start the shards of the file that do not run yet."""
    with errors_as_lines():
        if print_config:
            from async_loader.feeder.settings_reader import as_yaml
            from async_loader.scale.cluster_settings import ClusterSettings

            example = {"feeder": {"tables": {"replay": {"capacity": 1_000_000}}}}
            made = (
                ClusterSettings.from_plain(example)
                if config is None
                else ClusterSettings.load(config)
            )
            typer.echo(as_yaml(made), nl=False)
            return
        if config is None:
            raise typer.BadParameter("give a --config; --print-config prints one")
        from async_loader.scale import commands

        commands.up(config, ray, as_json=as_json)


@cluster.command("status")
def cluster_status(
    config: Annotated[Path, CLUSTER_CONFIG],
    ray: Annotated[str | None, RAY] = None,
    as_json: Annotated[bool, CLUSTER_JSON] = False,
) -> None:
    """Print where each shard is, how it is, and the rows that it has lost."""
    with errors_as_lines():
        from async_loader.scale import commands

        commands.status(config, ray, as_json=as_json)


CLUSTER_ADDRESSES = typer.Argument(
    help="Of each shard, in the order that all clients use: for a cluster without Ray."
)
CLUSTER_KEYS = typer.Option(
    "--keys",
    help="NAME.secret, or a folder with one for each shard; by default the operator's of the file.",
)


@cluster.command("dashboard")
def cluster_dashboard(
    addresses: Annotated[list[str] | None, CLUSTER_ADDRESSES] = None,
    config: Annotated[Path | None, CLUSTER_CONFIG] = None,
    ray: Annotated[str | None, RAY] = None,
    keys: Annotated[str | None, CLUSTER_KEYS] = None,
    port: Annotated[
        int, typer.Option(help="On this machine's loopback; 0 takes a free one.")
    ] = 8484,
) -> None:
    """Serve a page that shows all shards live, as one and each by itself. Ctrl-C ends it."""
    with errors_as_lines():
        from async_loader.scale import commands

        commands.dashboard(addresses or [], config, ray, keys, port)


@cluster.command("top")
def cluster_top(
    addresses: Annotated[list[str] | None, CLUSTER_ADDRESSES] = None,
    config: Annotated[Path | None, CLUSTER_CONFIG] = None,
    ray: Annotated[str | None, RAY] = None,
    keys: Annotated[str | None, CLUSTER_KEYS] = None,
) -> None:
    """Show all shards on the whole terminal, redrawn each second. Ctrl-C ends it."""
    from rich.console import Console

    with errors_as_lines():
        from async_loader.scale import commands

        commands.top(addresses or [], config, ray, keys, Console())


@cluster.command("drain")
def cluster_drain(
    shard: Annotated[str, typer.Argument(help="As in shard-1.")],
    config: Annotated[Path, CLUSTER_CONFIG],
    ray: Annotated[str | None, RAY] = None,
    as_json: Annotated[bool, CLUSTER_JSON] = False,
    timeout_s: Annotated[float, CLUSTER_WAIT] = 60.0,
    discard: Annotated[bool, DISCARD] = False,
) -> None:
    """Remove a shard, when it has delivered or saved what it holds."""
    with errors_as_lines():
        from async_loader.scale import commands

        commands.drain(shard, config, ray, timeout_s, discard=discard, as_json=as_json)


@cluster.command("restart")
def cluster_restart(
    config: Annotated[Path, CLUSTER_CONFIG],
    shards: Annotated[list[str] | None, typer.Argument(help="By default all.")] = None,
    ray: Annotated[str | None, RAY] = None,
    as_json: Annotated[bool, CLUSTER_JSON] = False,
    timeout_s: Annotated[float, CLUSTER_WAIT] = 60.0,
    discard: Annotated[bool, DISCARD] = False,
) -> None:
    """Restart shards one after the other, with the present settings and package."""
    with errors_as_lines():
        from async_loader.scale import commands

        commands.restart(shards or [], config, ray, timeout_s, discard=discard, as_json=as_json)


@cluster.command("down")
def cluster_down(
    config: Annotated[Path, CLUSTER_CONFIG],
    ray: Annotated[str | None, RAY] = None,
    as_json: Annotated[bool, CLUSTER_JSON] = False,
    timeout_s: Annotated[float, CLUSTER_WAIT] = 60.0,
) -> None:
    """End all shards."""
    with errors_as_lines():
        from async_loader.scale import commands

        commands.down(config, ray, timeout_s, as_json=as_json)
