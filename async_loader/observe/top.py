"""`async-loader top`: a status, redrawn each second, with who waits for whom on top."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from async_loader.feeder.commands import asking, redraw
from async_loader.feeder.status_view import (
    Screen,
    Status,
    clean,
    headline,
    short_text,
    show_status,
)
from async_loader.observe.dashboard.frame import frame_of, paired
from async_loader.shm.limits import human

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_STYLES = {"bad": "bold red", "wait": "bold yellow", "flow": "green", "idle": "dim"}
_ORDER = {"silent": 0, "draining": 1}
_BELOW, _BELOW_SHARDS = 22, 11
"""Lines that are kept for what follows."""
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
    screen = Screen(height)
    screen.add(texts, tones, keep=_BELOW)
    screen.add([headline(status)])
    worst = sorted(frame["shards"], key=lambda row: (_ORDER.get(row["state"], 2), -_waited(row)))
    screen.table(_SHARD, [_cells(row) for row in worst], 2, keep=_BELOW_SHARDS, more="shards more")
    show_status(screen, status, before)
    return screen.lines


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


def top(address: str | None, keys: str | None, console: Console) -> None:
    """Show a feeder.

    Raises
    ------
    ConfigError, Broken, Timeout
        As `connect` does, also when the feeder ends.
    """
    with asking(address, keys) as client:
        redraw(client.status, top_view, console, whole_screen=True)
