"""The command line: parse, call, print. Computes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Asynchronous replay-buffer loader for reinforcement learning.", no_args_is_help=True, add_completion=False
)


@app.callback()
def _root() -> None:
    """Asynchronous replay-buffer loader for reinforcement learning."""


@app.command()
def doctor() -> None:
    """What this machine offers the loader, and what to do where that is little."""
    from rich.console import Console
    from rich.table import Table

    from async_loader.doctor import examine

    table = Table("what", "fact", "remedy", header_style="bold")
    for finding in examine():
        table.add_row(finding.what, finding.fact, finding.remedy, style="yellow" if finding.remedy else "")
    Console().print(table)


@app.command()
def demo(
    target: Annotated[float, typer.Option(help="Mean return of the newest 20 episodes at which it stops, solved.")] = 475.0,
    max_seconds: Annotated[float, typer.Option(help="Give up after this long, with exit code 1.")] = 180.0,
    seed: Annotated[int, typer.Option(help="Of network, environments, exploration and batches.")] = 0,
    num_envs: Annotated[int, typer.Option(help="Environments that are stepped at a time.")] = 8,
    num_workers: Annotated[int, typer.Option(help="Worker processes of the loader; 0 and 1 use a thread.")] = 0,
    curve: Annotated[Path, typer.Option(help="Where the learning curve is written.")] = Path("demo-curve.png"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one line of JSON, and nothing else.")] = False,
) -> None:
    """A DQN learns CartPole-v1 from a ReplayBuffer through an AsyncDataLoader."""
    from async_loader.demo.report import LiveReport, QuietReport, require_plots, summary_json, write_curve
    from async_loader.demo.run import run
    from async_loader.demo.settings import Settings
    from async_loader.errors import ConfigError, MissingExtra

    try:
        settings = Settings(target=target, max_seconds=max_seconds, seed=seed, num_envs=num_envs, num_workers=num_workers)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    live = None if as_json else LiveReport()
    try:
        require_plots()  # before learning, not after it
        summary = run(settings, live or QuietReport())
    except MissingExtra as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    write_curve(summary, curve)
    if live is None:
        typer.echo(summary_json(summary))
    else:
        live.finish(summary, curve)
    raise typer.Exit(0 if summary.solved else 1)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
