"""The feeder's commands: serve, status, drain. Text of peers is cleaned before it is printed."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from async_loader.errors import AsyncLoaderError
from async_loader.lifecycle import every, readable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from async_loader.feeder.client.client import Client
    from async_loader.feeder.settings import ServerSettings

_log = logging.getLogger("async_loader.feeder")
Status = Mapping[str, Any]
LIVE_S, LOG_S, RATE_S = 1.0, 60.0, 0.5
"""Seconds between redraws of a terminal's line; between lines of a log.

For rates of a single status.
"""


def serve(settings: ServerSettings, console: Console) -> int:
    """Run a server until it is drained or stopped; return the exit code."""
    from async_loader.feeder.serving import FeederProcess

    server = FeederProcess(settings)
    report = _live if console.is_terminal else _logged
    with report(server.status, console):
        return server.run()


def log_to(console: Console) -> None:
    """Log plain lines, or on a terminal lines above the live one."""
    from rich.logging import RichHandler

    handler = (
        RichHandler(console=console, show_path=False)
        if console.is_terminal
        else logging.StreamHandler()
    )
    plain = (
        "%(message)s" if console.is_terminal else "%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.basicConfig(format=plain, level=logging.INFO, handlers=[handler])


# -- while serving ---------------------------------------------------------------------------------


class RateLog:
    """Lines of a log: sizes, and rates since the line before."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._before: Status | None = None

    def line(self) -> str | None:
        """Return the next line; ``None`` if there is no status now."""
        try:
            now = self._status()
        except (
            RuntimeError,
            AsyncLoaderError,
        ):  # another thread changes the sessions, or closes the server
            return None
        before, self._before = self._before, now
        parts = [
            _serving(name, table, _seconds(before, now), _table(before, name))
            for name, table in now["tables"].items()
        ]
        parts.append(f"{len(now['sessions'])} sessions")
        return ("draining: " if now.get("draining") else "") + ", ".join(parts)


def _serving(name: str, table: Status, seconds: float, before: Status | None) -> str:
    said = f"{clean(name)} {_count(table['size'])}" + (
        f"/{_count(table['capacity'])}" if table["capacity"] else ""
    )
    if before is None or seconds <= 0:
        return said
    came, went = ((table[what] - before[what]) / seconds for what in ("inserted", "sampled"))
    return f"{said} ({_count(max(0, came))}/s in, {_count(max(0, went))}/s out)"


def _seconds(before: Status | None, now: Status) -> float:
    return 0.0 if before is None else float(now["uptime_s"] - before["uptime_s"])


def _table(status: Status | None, name: str) -> Status | None:
    found: Status | None = None if status is None else status["tables"].get(name)
    return found


@contextlib.contextmanager
def _live(status: Callable[[], Status], console: Console) -> Iterator[None]:
    """Redraw one line at the terminal's end."""
    from rich.live import Live
    from rich.text import Text

    pace = RateLog(status)
    console.print(Text(_opening(status())))
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show() -> None:
            if line := pace.line():
                live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)

        with every(LIVE_S, show, "async-loader-report"):
            yield


@contextlib.contextmanager
def _logged(status: Callable[[], Status], console: Console) -> Iterator[None]:
    """Write lines to the log."""
    pace = RateLog(status)
    _log.info("%s", _opening(status()))

    def say() -> None:
        if line := pace.line():
            _log.info("%s", line)

    with every(LOG_S, say, "async-loader-report"):
        yield
    _log.info("ended")


def _opening(status: Status) -> str:
    return (
        f"serving {', '.join(map(clean, status['tables']))} at {clean(status['address'])} (process "
        f"{status['pid']})"
    )


# -- asking one that serves ------------------------------------------------------------------------


def show_status(
    address: str | None, keys: str | None, *, as_json: bool, watch: bool, console: Console
) -> None:
    """Print a server's status; with ``watch`` once a second, until Ctrl-C."""
    with _client(address, keys) as client:
        if watch:
            with contextlib.suppress(KeyboardInterrupt):
                _watch(client, as_json, console)
        elif as_json:
            _print_json(client.status(), console)
        else:
            before = client.status()
            readable([], RATE_S)
            console.print(*status_tables(client.status(), before), sep="\n")


def _print_json(status: Status, console: Console) -> None:
    console.out(json.dumps(status), highlight=False)


def _watch(client: Client, as_json: bool, console: Console) -> None:
    from rich.console import Group
    from rich.live import Live

    if as_json:
        while True:
            _print_json(client.status(), console)
            readable([], LIVE_S)
    before, pause_s = client.status(), RATE_S
    with Live(console=console, auto_refresh=False) as live:
        while True:
            readable([], pause_s)
            now = client.status()
            live.update(Group(*status_tables(now, before)), refresh=True)
            before, pause_s = now, LIVE_S


def drain(address: str | None, keys: str | None, *, as_json: bool, console: Console) -> None:
    """Tell a server to take nothing new, deliver what it has, and end; return when it has."""
    with _client(address, keys) as client:
        client.drain()
        if as_json:
            _print_json({"address": client.address, "drained": True}, console)


@contextlib.contextmanager
def _client(address: str | None, keys: str | None) -> Iterator[Client]:
    from async_loader.feeder import connect

    with connect(address or None, on_disconnect="raise", timeout_s=10.0, keys=keys) as client:
        yield client


def status_tables(status: Status, before: Status | None = None) -> list[RenderableType]:
    """Return a status as tables. Rates are since ``before``, or since the start."""
    from rich.text import Text

    pid, address = clean(str(status.get("pid", "?"))), clean(str(status.get("address", "?")))
    head = f"{address}, process {pid}, up {_duration(status.get('uptime_s', 0))}"
    head += ", draining" if status.get("draining") else ""
    shown: list[RenderableType] = [Text(head), _tables(status, before)]
    if status.get("sessions"):
        shown.append(_sessions(status["sessions"]))
    shown += [Text(line) for line in _weights(status)]
    return shown


def _weights(status: Status) -> Iterator[str]:
    ages, waiting = status.get("weights_age_s", {}), status.get("weights_waiting", {})
    for name, version in status.get("weights", {}).items():
        said = f"weights {clean(name)}: version {version}"
        if name in ages:
            said += f", published {_duration(ages[name])} ago"
        if waiting.get(name):
            said += f", {waiting[name]} wait for a newer one"
        yield said
        for table, one in status.get("tables", {}).items():
            lag = one.get("policies", {}).get(name)
            if lag is not None and "lag" in lag:
                behind = f"{lag['lag']} behind, {_duration(lag['lag_s'])}"
                yield f"  {clean(table)} gets steps of version {lag['oldest']}: {behind}"
    for name in waiting.keys() - status.get("weights", {}).keys():
        yield f"weights {clean(name)}: {waiting[name]} wait for the first"


def _tables(status: Status, before: Status | None) -> RenderableType:
    rows, seconds = [], _seconds(before, status)
    for name, one in status.get("tables", {}).items():
        size = f"{_count(one['size'])} / {_count(one['capacity'] or 0)}"
        old = _table(before, name)
        if old is not None and seconds > 0:
            rates = [max(0.0, one[what] - old[what]) / seconds for what in ("inserted", "sampled")]
        else:
            rates = [one["inserts_per_s"], one["samples_per_s"]]
        flow = [*map(_count, rates), f"{one['samples_per_insert']:.3g}"]
        rows.append(
            [
                name,
                size,
                *flow,
                str(one["writers"]),
                str(one["readers"]),
                "\n".join(map(str, one["waiting"])),
            ]
        )
    return _grid(
        ["table", "size", "in/s", "out/s", "out/in", "writers", "readers", "who waits"], rows
    )


def _sessions(sessions: list[Status]) -> RenderableType:
    rows = [
        [
            (f"{one['user']} at " if one.get("user") else "") + f"{one['host']}:{one['pid']}",
            str(one["user_agent"]), _duration(one["age_s"]), _duration(one["silent_s"]),
            str(one["writers"]), str(one["readers"]), _bytes(one["in_flight_bytes"]),
        ]
        for one in sessions
    ]  # fmt: skip
    return _grid(["session", "agent", "age", "silent", "writers", "readers", "in flight"], rows)


def _grid(names: list[str], rows: list[list[str]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table(*names, header_style="bold")
    for row in rows:
        grid.add_row(*(Text("\n".join(map(clean, cell.split("\n")))) for cell in row))
    return grid


def clean(text: str) -> str:
    """Return a peer's text without control characters."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in str(text))


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"


def _bytes(number: float) -> str:
    from async_loader.shm.limits import human

    return human(int(number))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{seconds:.1f} s"
    )
