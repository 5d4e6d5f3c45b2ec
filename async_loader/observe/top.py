"""`async-loader top`: a status, redrawn each second, with who waits for whom on top."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from async_loader.feeder.commands import LIVE_S, RATE_S, asking
from async_loader.feeder.status_view import (
    Status,
    clean,
    grid,
    short_text,
    status_sections,
    text_line,
    text_section,
)
from async_loader.feeder.view_sections import Section, laid_out
from async_loader.lifecycle import readable
from async_loader.observe.cluster_status import paired
from async_loader.observe.dashboard.frame import frame_of
from async_loader.shm.limits import human

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_STYLES = {"bad": "bold red", "wait": "bold yellow", "flow": "green", "idle": "dim"}
_ORDER = {"silent": 0, "draining": 1}
_LEAST_SHARDS = 4
_SHARD = ["shard", "state", "items", "in/s", "out/s", "writers", "readers", "memory", "waits"]


def top_view(status: Status, before: Status | None, height: int | None) -> list[RenderableType]:
    """Return the lines of the screen: at most ``height``, if the terminal is not too low.

    Parameters
    ----------
    status, before : Status
        A `FeederStatus` or a `ClusterStatus`, and an older one.
    """
    status, before = paired(status, before)
    frame = frame_of(status, before)
    texts = [clean(one["text"]) for one in frame["headlines"]]
    tones = [_STYLES[one["tone"]] for one in frame["headlines"]]
    said = text_section(texts, tones, rank=1)
    head, *others = status_sections(status, before)
    shards = [_shards(frame["shards"])] if frame["shards"] else []
    return laid_out([said, head, *shards, *others], height)


def _shards(rows: list[Mapping[str, Any]]) -> Section:
    """Return a table of shards by number; if not all have room, of those in trouble."""
    worst = sorted(rows, key=lambda row: (_ORDER.get(row["state"], 2), -_waited(row)))

    def show(count: int) -> list[RenderableType]:
        shown = rows if count == len(rows) else worst[:count]
        return [grid(_SHARD, [_cells(row) for row in shown], 2)]

    return Section(
        count=len(rows),
        show=show,
        more=lambda shown: text_line(f"and {len(rows) - shown} shards more"),
        header=1,
        least=_LEAST_SHARDS,
    )


def _waited(row: Mapping[str, Any]) -> float:
    return float(max(row["waited"].values()))


def _cells(row: Mapping[str, Any]) -> list[str]:
    if not row["answers"]:
        return [row["name"], row["state"], *[""] * 7]
    rates = [short_text(row[key]) for key in ("items", "in_per_s", "out_per_s")]
    members = [str(row["actors"]), str(row["learners"])]
    return [
        row["name"],
        row["state"],
        *rates,
        *members,
        "" if row["nbytes"] is None else human(row["nbytes"]),
        f"{_waited(row):.0%}",
    ]


def redraw(status: Callable[[], Status], console: Console) -> None:
    """Redraw the screen once a second, until Ctrl-C. Raises what ``status`` raises."""
    from rich.console import Group
    from rich.live import Live

    with contextlib.suppress(KeyboardInterrupt):
        before, pause_s = status(), RATE_S
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                readable([], pause_s)
                now = status()
                live.update(Group(*top_view(now, before, console.height)), refresh=True)
                before, pause_s = now, LIVE_S


def top(address: str | None, keys: str | None, console: Console) -> None:
    """Show a feeder.

    Raises
    ------
    ConfigError, Broken, Timeout
        As `connect` does, also when the feeder ends.
    """
    with asking(address, keys) as client:
        redraw(client.status, console)
