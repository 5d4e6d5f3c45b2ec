"""A feeder on a terminal: who waits for whom, tables, weights and clients.

What does not fit is counted in a line; the worst comes first.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from async_loader.feeder.commands import asking, clean, count_text
from async_loader.lifecycle import readable
from async_loader.observe.dashboard.frame import STATES, Status, frame_of
from async_loader.rollouts.stats import RolloutStats

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

LIVE_S = 1.0  # between redraws
_STYLES = {"bad": "bold red", "wait": "bold yellow", "flow": "green", "idle": "dim"}
_FLOWS = ("inserts_per_s", "samples_per_s")
_WIDEST = 36  # of a cell
_LEAST = {"clients": 5, "notes": 1, "headlines": 3, "tables": 3}
"""Lines that each part keeps on a terminal that is too low; the first gives way first."""
_STALE = {"became_old": "became too old", "came_old": "came too old", "other_run": "other run"}


def screen(status: Status, height: int | None = None) -> list[RenderableType]:
    """Return the lines of a `FeederStatus`.

    Parameters
    ----------
    height : int, optional
        Of the terminal; ``None``: all is shown.
    """
    from rich.text import Text

    frame = frame_of(status)
    parts = {
        "headlines": [text for _, text in frame["headlines"]],
        "head": [_head(frame)],
        "tables": _grid(["table", "size", "in/s", "out/s", "out/in", "writers", "readers"],
                        (_table(name, one) for name, one in frame["tables"].items()), 1),
        "notes": [*_notes(frame), *_weights(frame)],
        "summary": [_summary(frame)],
        "clients": _grid(["client", "state", "rows/s", "batches/s", "age"],
                         map(_client, sorted(frame["sessions"], key=_trouble)), 2),
    }  # fmt: skip
    unlisted = frame["sessions_open"] - len(frame["sessions"])
    excess = 0 if height is None else sum(map(len, parts.values())) - height
    for name, least in _LEAST.items():
        lines = parts[name]
        cut = min(excess, len(lines) - least)
        if cut > 0:
            excess -= cut
            del lines[-cut - 1 :]
            unlisted += cut + 1
        if unlisted > 0:
            lines.append(f"and {unlisted} {name} more")
        unlisted = 0
    styles = [_STYLES[tone] for tone, _ in frame["headlines"]]
    lines = [line for part in parts.values() for line in part]
    return [
        Text(clean(line), styles[i] if i < len(parts["headlines"]) else "", no_wrap=True,
             overflow="ellipsis")
        for i, line in enumerate(lines)
    ]  # fmt: skip


def _grid(names: Sequence[str], rows: Iterator[Sequence[str]], texts: int) -> list[str]:
    """Return rows below names, if there are any; all but the first ``texts`` cells are numbers."""
    cells = [names, *([clean(cell)[:_WIDEST] for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            f"{cell:{side}{width}}"
            for cell, side, width in zip(row, "<" * texts + ">" * len(row), widths, strict=False)
        )
        for row in cells
    ]
    return lines[1:] and lines


def _head(frame: Status) -> str:
    where = f"{frame['address']}, process {frame['pid']}, up {_duration(frame['uptime_s'])}"
    return f"{where}, draining" if frame["draining"] else where


def _table(name: str, one: Status) -> list[str]:
    size = short_text(one["size"])
    size += f" / {short_text(one['capacity'])}" if one["capacity"] else ""
    size += " full" if one["full"] else ""
    flows = [short_text(one[key]) for key in _FLOWS]
    return [
        name, size, *flows, f"{one['samples_per_insert']:.3g}", str(one["writers"]),
        str(one["readers"]),
    ]  # fmt: skip


def _notes(frame: Status) -> Iterator[str]:
    for name, one in frame["tables"].items():
        yield from (f"{name} waits: {text}" for text in one["waiting"])
        counts = [f"{count:,} {_STALE[why]}" for why, count in one["stale"].items() if count]
        if counts:
            yield f"{name}: max_lag left out {', '.join(counts)}"
    for name, one in frame.get("rollouts", {}).items():
        yield from (f"{name}: {line}" for line in str(RolloutStats.of(one)).splitlines())


def _weights(frame: Status) -> Iterator[str]:
    waiting = frame["weights_waiting"]
    for name, version in frame["weights"].items():
        age = _duration(frame["weights_age_s"][name])
        said = f"weights {name}: version {version}, published {age} ago"
        yield said + (f", {waiting[name]} wait for a newer one" if waiting.get(name) else "")
    for table, one in frame["tables"].items():
        for name, lag in one["policies"].items():
            if "lag" in lag:
                yield f"  {table} gets steps of {name} {lag['oldest']}: {lag['lag']} behind"
            if "batch_lag" in lag:
                yield f"  {table} gives batches with steps of {name} {lag['batch_lag']} behind"
    for name in waiting.keys() - frame["weights"].keys():
        yield f"weights {name}: {waiting[name]} wait for the first"


def _summary(frame: Status) -> str:
    count = frame["sessions_open"]
    gone = [f"{many} {how}" for how, many in sorted(frame["sessions_ended"].items()) if many]
    before = f", and before: {', '.join(gone)}" if gone else ""
    return f"{count} client{'' if count == 1 else 's'}{before}"


def _trouble(one: Status) -> tuple[float, ...]:
    """Return a key that sorts the worst first: dead, silent, held back, behind."""
    return STATES[one["state"]], -one["in_flight_bytes"], -(one["lag"] or 0), one["id"]


def _client(one: Status) -> list[str]:
    user = f"{one['user']} at " if one["user"] else ""
    state = one["state"]
    if state == "connected":
        state = "held back" if one["in_flight_bytes"] else state
        state += f", {one['lag']} behind" if one["lag"] else ""
    else:
        state += f" {_duration(one['silent_s'])}"
    return [
        f"{one['name']} {user}{one['host']}:{one['pid']}".strip(),
        state,
        count_text(one["rows_per_s"]) if one["writers"] else "",
        count_text(one["batches_per_s"]) if one["readers"] else "",
        _duration(one["age_s"]),
    ]


def short_text(number: float) -> str:
    """Return a number as `count_text` does, from a million on in three digits: ``12.3 M``."""
    for unit, name in ((1e9, "G"), (1e6, "M")):
        if number >= unit:
            return f"{number / unit:#.3g} {name}"
    return count_text(number)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


# -- commands --------------------------------------------------------------------------------------


def show_status(address: str | None, keys: str | None, *, as_json: bool, console: Console) -> None:
    """Print a server's status."""
    with asking(address, keys) as client:
        status = client.status()
        if as_json:
            console.out(json.dumps(status), highlight=False)
        else:
            console.print(
                *screen(status, console.height - 1 if console.is_terminal else None), sep="\n"
            )


def top(address: str | None, keys: str | None, console: Console) -> None:
    """Redraw a feeder's status on the whole terminal once a second, until Ctrl-C.

    Raises
    ------
    ConfigError, Broken, Timeout
        As `connect` does, also when the feeder ends.
    """
    from rich.console import Group
    from rich.live import Live

    with (
        asking(address, keys) as client,
        contextlib.suppress(KeyboardInterrupt),
        Live(console=console, auto_refresh=False, screen=console.is_terminal) as live,
    ):
        while True:
            live.update(Group(*screen(client.status(), console.height)), refresh=True)
            readable([], LIVE_S)
