"""The command line: parses arguments, calls the library and prints results."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from async_loader import __version__
from async_loader.cli_cluster import Group, Json, cluster

app = typer.Typer(
    help="Asynchronous replay-buffer loader for reinforcement learning.",
    no_args_is_help=True,
    cls=Group,
)


Address = Annotated[
    str | None,
    typer.Argument(
        help="The feeder's, as in tcp://127.0.0.1:5555; by default that of 'serve' without --bind."
    ),
]
Keys = Annotated[
    str | None,
    typer.Option(help="This client's keys: a NAME.secret that 'async-loader keys' made."),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"async_loader {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Asynchronous replay-buffer loader for reinforcement learning."""


@app.command()
def doctor(
    as_json: Json = False,
) -> None:
    """Report what this machine offers the loader, and the remedy where it offers too little."""
    from rich.console import Console
    from rich.table import Table

    from async_loader.doctor import examine, verdict

    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(finding) for finding in examine()]))
        return
    table = Table("what", "fact", "remedy", header_style="bold")
    for finding in (findings := examine()):
        table.add_row(
            finding.what, finding.fact, finding.remedy, style="yellow" if finding.remedy else ""
        )
    Console().print(table)
    typer.echo(verdict(findings))


@app.command()
def serve(
    config: Annotated[
        Path | None, typer.Option(help="YAML, as in share/async_loader/configs.")
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="As replay:1000000 (steps) or replay:8GiB. May be given again.",
            metavar="NAME:SIZE",
        ),
    ] = None,
    bind: Annotated[
        str | None,
        typer.Option(help="tcp://127.0.0.1:5555 or ipc:///path; by default a socket of your own."),
    ] = None,
    allow_insecure: Annotated[
        bool, typer.Option("--allow-insecure", help="Bind beyond this machine without keys.")
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Folder that clients may save tables to; each table has a folder of its own in it."
        ),
    ] = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Serve a page that shows the feeder live.")
    ] = False,
    dashboard_port: Annotated[
        int, typer.Option(help="Of the page, on this machine's loopback.")
    ] = 8484,
) -> None:
    """Run a feeder: replay tables in a process of their own.

    SIGTERM, Ctrl-C and 'async-loader drain' end it.
    """
    from async_loader.feeder import commands
    from async_loader.feeder.settings import ServerSettings
    from async_loader.observe.exporter import observed

    settings = ServerSettings.of(
        table or (),
        bind=bind,
        config=config,
        allow_insecure=allow_insecure,
        checkpoint=checkpoint,
        dashboard_port=dashboard_port if dashboard else None,
    )
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO
    )
    raise typer.Exit(commands.serve(settings, observed))


@app.command()
def status(
    address: Address = None,
    as_json: Json = False,
    keys: Keys = None,
) -> None:
    """Print a feeder's status: tables, connected clients, and what each of them waits for."""
    from rich.console import Console

    from async_loader.observe.terminal import show_status

    show_status(address, keys, as_json=as_json, console=Console())


@app.command()
def top(
    address: Address = None,
    keys: Keys = None,
) -> None:
    """Show a feeder on the whole terminal, redrawn each second: who waits for whom, rates, clients.

    Ctrl-C ends it.
    """
    from rich.console import Console

    from async_loader.observe.terminal import top as show

    show(address, keys, Console())


@app.command()
def drain(
    address: Address = None,
    as_json: Json = False,
    keys: Keys = None,
) -> None:
    """Tell a feeder to accept no new steps, deliver the batches it has, and end."""
    from rich.console import Console

    from async_loader.feeder import commands

    commands.drain(address, keys, as_json=as_json, console=Console())


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="Where the server's keys are, or will be.")],
    names: Annotated[list[str] | None, typer.Argument(help="Clients to make keys for.")] = None,
) -> None:
    """Create key files, so that connections are encrypted and only known clients are accepted.

    Overwrites nothing.
    """
    from async_loader.feeder.curve_keys import make_keys

    for path in make_keys(folder, names or ()):
        typer.echo(
            f"{path}" if path.name == "server.secret" else f"{path} (take this one to the client)"
        )


@app.command("import")
def import_data(
    source: Annotated[
        str, typer.Argument(help="A file, a folder, a pattern of npz files, or a Minari id.")
    ],
    to: Annotated[Path, typer.Option(help="Folder of the checkpoint: a new or an empty one.")],
    format_: Annotated[
        str | None,
        typer.Option("--format", help="minari, hdf5 (D4RL) or npz; by default from the name."),
    ] = None,
    capacity: Annotated[
        int | None, typer.Option(help="Steps of the table; by default all of them.")
    ] = None,
    missing_ends: Annotated[
        str, typer.Option(help="Episodes without an end: 'refuse' or 'truncate'.")
    ] = "refuse",
) -> None:
    """Make a table of a data set, and save it as a checkpoint."""
    import sys

    from async_loader.offline import commands

    saved = commands.import_data(
        source,
        to,
        format_,
        capacity,
        missing_ends=missing_ends,
        progress=sys.stderr.isatty(),
    )
    typer.echo(saved)


@app.command()
def inspect(
    what: Annotated[
        str,
        typer.Argument(help="Folder that a table was saved to or is kept in, or an address."),
    ],
    table: Annotated[
        str | None, typer.Argument(help="Of a feeder alone; may be left out if there is one.")
    ] = None,
    as_json: Json = False,
    keys: Keys = None,
) -> None:
    """Print the schema and counts of a checkpoint, of kept tables, or of a feeder's table.

    Of a checkpoint also the lengths and returns of its episodes.
    """
    from rich.console import Console

    if "://" in what:
        from async_loader.feeder.commands import inspect as inspect_table

        inspect_table(what, table, keys, as_json=as_json, console=Console())
        return
    from async_loader.offline import commands

    commands.inspect(what, as_json=as_json, console=Console())


app.add_typer(cluster, name="cluster")


def main() -> None:
    """Entry point of the console script, and of ``python -m async_loader``."""
    app(prog_name="async-loader")


if __name__ == "__main__":
    main()
