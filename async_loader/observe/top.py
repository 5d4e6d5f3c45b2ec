"""`async-loader top`: a feeder's status, redrawn each second, with who waits for whom on top."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from async_loader.feeder.commands import LIVE_S, RATE_S, asking
from async_loader.feeder.status_view import Status, clean, status_view
from async_loader.lifecycle import readable
from async_loader.observe.dashboard.frame import frame_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_STYLES = {"wait": "bold yellow", "flow": "green", "idle": "dim"}


def top_view(status: Status, before: Status | None, height: int | None) -> list[RenderableType]:
    """Return the lines of the screen: at most ``height``, if the terminal is not too low."""
    from rich.text import Text

    headlines = frame_of(status, before)["headlines"]
    said: list[RenderableType] = [
        Text(clean(one["text"]), _STYLES[one["tone"]], no_wrap=True, overflow="ellipsis")
        for one in headlines
    ]
    left = None if height is None else height - len(said)
    return [*said, *status_view(status, before, left)]


def top(address: str | None, keys: str | None, console: Console) -> None:
    """Redraw the screen once a second, until Ctrl-C.

    Raises
    ------
    ConfigError, Broken, Timeout
        As `connect` does, also when the feeder ends.
    """
    from rich.console import Group
    from rich.live import Live

    with asking(address, keys) as client, contextlib.suppress(KeyboardInterrupt):
        before, pause_s = client.status(), RATE_S
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                readable([], pause_s)
                now = client.status()
                live.update(Group(*top_view(now, before, console.height)), refresh=True)
                before, pause_s = now, LIVE_S
