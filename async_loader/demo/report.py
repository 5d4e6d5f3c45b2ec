"""What a person sees of the demo: live progress, a summary, a curve; and what a program reads: one line of JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from async_loader.demo.settings import Episode, Summary
from async_loader.errors import MissingExtra

JSON_KEYS = (
    "solved", "mean_return", "env_steps", "batches", "learner_wait_fraction", "seconds",
    "inserts_per_s", "samples_per_insert", "policy_lag", "policy_lag_s", "drawn_policy_lag",
)  # fmt: skip


class QuietReport:
    """Looks on and says nothing."""

    def watch(self, snapshot: Callable[[], Summary]) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class LiveReport:
    """A table that is redrawn four times a second while the demo runs, and stays as the summary at the end."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()

    @contextlib.contextmanager
    def watch(self, snapshot: Callable[[], Summary]) -> Iterator[None]:
        settings = snapshot().settings
        self._console.print(
            f"A DQN learns CartPole-v1 until the newest {settings.window} episodes return {settings.target:g} on average"
            f" (at most {settings.max_seconds:g} s)."
        )
        live = Live(get_renderable=lambda: _table(snapshot()), console=self._console, refresh_per_second=4, transient=True)
        with live:
            yield

    def finish(self, summary: Summary, curve: Path | None = None) -> None:
        """Print how it went, and where the curve is."""
        self._console.print(_table(summary))
        verdict = "[green]solved[/green]" if summary.solved else "[red]not solved[/red]"
        self._console.print(f"{verdict} after {summary.seconds:.0f} s" + (f"; curve in {escape(str(curve))}" if curve else ""))


def summary_json(summary: Summary) -> str:
    """The summary as one line of JSON with the keys of `JSON_KEYS`."""
    return json.dumps({key: getattr(summary, key) for key in JSON_KEYS})


def require_plots() -> None:
    """Import what `write_curve` needs, to find out before learning that it is missing.

    Raises
    ------
    MissingExtra
        matplotlib is not installed.
    """
    _figure()


def write_curve(summary: Summary, path: str | Path) -> None:
    """Draw every episode's return and the mean of the newest ones over the environment steps, as a PNG.

    Raises
    ------
    MissingExtra
        matplotlib is not installed.
    """
    settings, episodes = summary.settings, summary.episodes
    steps = [episode.env_steps for episode in episodes]
    figure = _figure()
    axes = figure.add_subplot()
    axes.plot(steps, [episode.total_reward for episode in episodes], ".", alpha=0.35, label="one episode")
    axes.plot(steps, _moving_means(episodes, settings.window), label=f"mean of the newest {settings.window}")
    axes.axhline(settings.target, linestyle="--", color="gray", label=f"target {settings.target:g}")
    axes.set(
        xlabel="environment steps",
        ylabel="return",
        ylim=(0, 520),
        title=f"CartPole-v1, DQN, seed {settings.seed}: {summary.mean_return:.0f} after {summary.seconds:.0f} s",
    )
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(path, format="png", dpi=120)


def _figure() -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra('the curve needs matplotlib: pip install "async_loader[demo]"') from error
    # Figure and Agg by themselves, without pyplot: no display is looked for and no global state is left.
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _moving_means(episodes: tuple[Episode, ...], window: int) -> list[float]:
    rewards = [episode.total_reward for episode in episodes]
    newest = [rewards[max(0, i + 1 - window) : i + 1] for i in range(len(rewards))]
    return [sum(some) / len(some) for some in newest]


def _table(summary: Summary) -> Table:
    settings = summary.settings
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column()
    bar = ProgressBar(total=settings.target, completed=min(summary.mean_return, settings.target), width=30)
    table.add_row("return", f"{summary.mean_return:.1f}", bar)
    table.add_row("env steps", f"{summary.env_steps:,}", f"{summary.env_steps / summary.seconds:,.0f} a second")
    table.add_row("batches", f"{summary.batches:,}", f"{summary.batches / summary.seconds:,.0f} a second")
    table.add_row("inserts", f"{summary.inserts_per_s:,.0f}/s", f"each sampled {summary.samples_per_insert:.1f} times")
    lag_ms = summary.policy_lag_s * 1000
    table.add_row("policy lag", f"{summary.policy_lag:,.0f}", f"updates, {lag_ms:,.0f} ms: the actors' newest steps")
    table.add_row("", f"{summary.drawn_policy_lag:,.0f}", "updates: the steps learned from")
    table.add_row("learner waited", f"{summary.learner_wait_fraction:.1%}", "of the time, for data")
    table.add_row("time", f"{summary.seconds:.1f} s", f"of at most {settings.max_seconds:g} s")
    return table
