"""Output of the demo for people: live progress, a summary, a curve; and for programs:
one line of JSON.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from async_loader.demo.settings import Episode, Settings, Summary
from async_loader.errors import ConfigError, MissingExtra
from async_loader.lifecycle import every
from async_loader.os_errors import check_folder, explain

JSON_KEYS = (
    "solved",
    "mean_return",
    "env_steps",
    "batches",
    "learner_wait_fraction",
    "limiter_wait_fraction",
    "seconds",
    "start_seconds",
    "inserts_per_s",
    "samples_per_insert",
    "policy_lag",
    "policy_lag_s",
    "drawn_policy_lag",
)


class QuietReport:
    """Prints nothing."""

    def watch(self, snapshot: Callable[[], Summary]) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class LiveReport:
    """Prints live progress: a table that is redrawn four times a second,
    or lines if the console cannot redraw.

    Parameters
    ----------
    console : Console, optional
    every_s : float
        Seconds between two lines in a pipe, a file or a dumb terminal.
    """

    def __init__(self, console: Console | None = None, every_s: float = 3.0) -> None:
        self._console = console or Console()
        self._every_s = every_s
        self._last: Summary | None = None

    def begin(self, settings: Settings) -> None:
        """Print that the start begins, which takes some seconds."""
        self._console.print(f"Starting a feeder and {settings.num_actors} actors ...")

    @contextlib.contextmanager
    def watch(self, snapshot: Callable[[], Summary]) -> Iterator[None]:
        def look() -> Summary:
            self._last = snapshot()
            return self._last

        settings = look().settings
        self._console.print(
            f"A DQN learns CartPole-v1 until the newest {settings.window} episodes return "
            f"{settings.target:g} on average"
            f" (at most {settings.max_seconds:g} s from the first batch on)."
        )
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            with Live(
                get_renderable=lambda: _table(look()),
                console=self._console,
                refresh_per_second=4,
                transient=True,
            ):
                yield
        else:
            with every(
                self._every_s,
                lambda: self._console.print(_line(look()), soft_wrap=True),
                "async-loader-demo-lines",
            ):
                yield

    def finish(self, summary: Summary, curve: Path | None = None) -> None:
        """Print the result, and the path of the curve."""
        self._console.print(_table(summary))
        verdict = "[green]solved[/green]" if summary.solved else "[red]not solved[/red]"
        took = f"{summary.seconds:.0f} s, and {summary.start_seconds:.0f} s of starting"
        self._console.print(
            f"{verdict} after {took}" + (f"; curve in {escape(str(curve))}" if curve else "")
        )

    def stop(self) -> None:
        """Print the state at which the run was stopped."""
        if self._last is not None:
            self._console.print("\n", _table(self._last), sep="")


def summary_json(summary: Summary) -> str:
    """Return the summary as one line of JSON with the keys of `JSON_KEYS`."""
    return json.dumps({key: getattr(summary, key) for key in JSON_KEYS})


def require_plots() -> None:
    """Import the requirements of `write_curve`, so that a missing one is found before learning.

    Raises
    ------
    MissingExtra
        matplotlib is not installed.
    """
    _figure()


def check_curve(path: Path) -> None:
    """Find out before learning whether `write_curve` can write this file; leaves nothing behind.

    Raises
    ------
    ConfigError
    """
    try:
        if path.is_file() or path.is_dir():
            with path.open("ab"):
                return
        if path.exists():  # a device, or a pipe, which waits for its reader
            return
        if not path.parent.exists():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        check_folder(path.parent)
    except OSError as error:
        error.filename = str(path)  # not the temporary one
        raise ConfigError(f"the curve cannot be written to {explain(error)}") from error


def write_curve(summary: Summary, path: str | Path) -> None:
    """Draw every episode's return and the mean of the newest ones over the environment steps,
    as a PNG.

    Raises
    ------
    MissingExtra
        matplotlib is not installed.
    """
    settings, episodes = summary.settings, summary.episodes
    steps = [episode.env_steps for episode in episodes]
    figure = _figure()
    axes = figure.add_subplot()
    axes.plot(
        steps, [episode.total_reward for episode in episodes], ".", alpha=0.35, label="one episode"
    )
    axes.plot(
        steps,
        _moving_means(episodes, settings.window),
        label=f"mean of the newest {settings.window}",
    )
    axes.axhline(settings.target, linestyle="--", color="gray", label=f"target {settings.target:g}")
    axes.set(
        xlabel="environment steps",
        ylabel="return",
        ylim=(0, 520),
        title=f"CartPole-v1, DQN, seed {settings.seed}: {summary.mean_return:.0f} after "
        f"{summary.seconds:.0f} s",
    )
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(path, format="png", dpi=120)


def _figure() -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra(
            'the curve needs matplotlib: pip install "async_loader[demo]"'
        ) from error
    # Figure and Agg without pyplot: needs no display and leaves no global state.
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _moving_means(episodes: tuple[Episode, ...], window: int) -> list[float]:
    rewards = [episode.total_reward for episode in episodes]
    newest = [rewards[max(0, i + 1 - window) : i + 1] for i in range(len(rewards))]
    return [sum(some) / len(some) for some in newest]


def _line(summary: Summary) -> str:
    if summary.waits_for:
        return f"{summary.start_seconds:5.0f} s  waits for {summary.waits_for}"
    return (
        f"{summary.seconds:5.0f} s  return {summary.mean_return:.1f}, {summary.env_steps:,} "
        "environment steps, "
        f"{summary.batches:,} batches, learner waited {summary.learner_wait_fraction:.1%} "
        f"({_causes(summary)})"
    )


def _causes(summary: Summary) -> str:
    limiter = summary.limiter_wait_fraction
    rest = summary.learner_wait_fraction - limiter
    return f"{limiter:.1%} for the limiter, {rest:.1%} for a batch on its way"


def _table(summary: Summary) -> Table:
    settings, seconds = summary.settings, summary.seconds or math.inf
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column()
    if summary.waits_for:
        table.add_row("waits for", f"{summary.start_seconds:.0f} s", summary.waits_for)
    bar = ProgressBar(
        total=settings.target, completed=min(summary.mean_return, settings.target), width=30
    )
    table.add_row("return", f"{summary.mean_return:.1f}", bar)
    table.add_row("env steps", f"{summary.env_steps:,}")
    table.add_row("batches", f"{summary.batches:,}", f"{summary.batches / seconds:,.0f} a second")
    table.add_row(
        "inserts",
        f"{summary.inserts_per_s:,.0f}/s",
        f"each sampled {summary.samples_per_insert:.1f} times",
    )
    lag_ms = summary.policy_lag_s * 1000
    table.add_row(
        "newest steps",
        f"{summary.policy_lag:,.0f}",
        f"updates older than the policy is now ({lag_ms:,.0f} ms)",
    )
    table.add_row(
        "steps in batches",
        f"{summary.drawn_policy_lag:,.0f}",
        "updates older than the policy, on average",
    )
    table.add_row("learner waited", f"{summary.learner_wait_fraction:.1%}", _causes(summary))
    table.add_row("time", f"{summary.seconds:.1f} s", f"of at most {settings.max_seconds:g} s")
    return table
