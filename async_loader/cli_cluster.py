"""The commands ``async-loader cluster ...``: many feeders, as shards."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class Group(TyperGroup):
    """Commands that print errors as lines, and whose help shows flags without a type, which read
    as if they took a value.
    """

    def invoke(self, ctx: Any) -> Any:
        with errors_as_lines():
            return super().invoke(ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _without_types(command.get_params(ctx))
        return command


def _without_types(params: list[Any]) -> list[Any]:
    for one in params:
        if one.metavar is None and getattr(one, "is_flag", False):
            one.metavar = ""
    return params


@contextlib.contextmanager
def errors_as_lines() -> Iterator[None]:
    """Print an error as one line and exit: code 2 for a bad request,
    1 for a failure at run time.
    """
    from async_loader.errors import (
        AsyncLoaderError,
        ConfigError,
        MissingExtra,
        explain,
        missing_requirement,
    )

    try:
        yield
    except AsyncLoaderError as error:
        typer.echo(str(error), err=True)
        code = 2 if isinstance(error, ConfigError | MissingExtra) else 1
        raise typer.Exit(code) from None
    except OSError as error:
        if error.errno == errno.EPIPE:  # the program that reads the output has ended
            raise
        typer.echo(explain(error), err=True)
        raise typer.Exit(1) from None
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith(__package__):
            raise
        typer.echo(str(missing_requirement(error.name)), err=True)
        raise typer.Exit(1) from None


cluster = typer.Typer(
    help="Run many feeders as shards of a cluster, placed and restarted by Ray.",
    no_args_is_help=True,
    cls=Group,
)
_CONFIG = typer.Option("--config", help="YAML, as in share/async_loader/configs.")
Config = Annotated[Path, _CONFIG]
MaybeConfig = Annotated[Path | None, _CONFIG]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray", help="Ray's address; by default RAY_ADDRESS, or the Ray that runs on this machine."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON, and nothing else.")]
Wait = Annotated[float, typer.Option("--timeout-s", help="How long a shard may deliver and save.")]
Discard = Annotated[bool, typer.Option("--discard", help="Also if rows are lost with it.")]
Addresses = Annotated[
    list[str] | None,
    typer.Argument(
        help="Of each shard, in the order that all clients use: for a cluster without Ray."
    ),
]
Keys = Annotated[
    str | None,
    typer.Option(
        "--keys",
        help="NAME.secret, or a folder with one for each shard; by default the operator's of the "
        "file.",
    ),
]


@cluster.command("up")
def cluster_up(
    config: Config,
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """Start the shards of the file that do not run yet."""
    from async_loader.scale import commands

    commands.show(commands.operator(config, ray, as_json).up(), as_json)


@cluster.command("status")
def cluster_status(
    config: Config,
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """Print where each shard is, how it is, and the rows that it has lost."""
    from async_loader.scale import commands

    commands.show(commands.operator(config, ray, as_json).status(), as_json)


@cluster.command("dashboard")
def cluster_dashboard(
    addresses: Addresses = None,
    config: MaybeConfig = None,
    ray: Ray = None,
    keys: Keys = None,
    port: Annotated[
        int, typer.Option(help="On this machine's loopback; 0 takes a free one.")
    ] = 8484,
) -> None:
    """Serve a page that shows all shards live, as one and each by itself. Ctrl-C ends it."""
    from async_loader.scale import commands

    commands.dashboard(addresses or [], config, ray, keys, port)


@cluster.command("drain")
def cluster_drain(
    shard: Annotated[str, typer.Argument(help="As in shard-1.")],
    config: Config,
    ray: Ray = None,
    as_json: Json = False,
    timeout_s: Wait = 60.0,
    discard: Discard = False,
) -> None:
    """Remove a shard, when it has delivered or saved what it holds."""
    from async_loader.scale import commands

    ended = commands.operator(config, ray, as_json).drain(shard, timeout_s, discard=discard)
    commands.as_line(ended) if as_json else commands.show_ended([ended])


@cluster.command("restart")
def cluster_restart(
    config: Config,
    shards: Annotated[list[str] | None, typer.Argument(help="By default all.")] = None,
    ray: Ray = None,
    as_json: Json = False,
    timeout_s: Wait = 60.0,
    discard: Discard = False,
) -> None:
    """Restart shards one after the other, with the present settings and package."""
    from async_loader.scale import commands

    operator = commands.operator(config, ray, as_json)
    status = operator.restart(shards or [], timeout_s, discard=discard)
    commands.show(status, as_json)


@cluster.command("down")
def cluster_down(
    config: Config,
    ray: Ray = None,
    as_json: Json = False,
    timeout_s: Wait = 60.0,
) -> None:
    """End all shards."""
    from async_loader.scale import commands

    ended = commands.operator(config, ray, as_json).down(timeout_s)
    commands.as_line({"shards": ended}) if as_json else commands.show_ended(ended)
