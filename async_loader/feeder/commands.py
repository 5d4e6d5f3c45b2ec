"""The feeder's commands: serve, status, drain. Text of peers is cleaned before it is printed."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from async_loader.errors import AsyncLoaderError, Timeout
from async_loader.feeder.status_view import (
    Status,
    clean,
    count_text,
    rate,
    seconds_between,
    status_view,
    table_of,
)
from async_loader.lifecycle import Deadline, every, readable

if TYPE_CHECKING:
    from rich.console import Console

    from async_loader.feeder.client.client import Client
    from async_loader.feeder.settings import ServerSettings

_log = logging.getLogger("async_loader.feeder")
_ASK_S = 10.0  # for a feeder that is there
LIVE_S, LOG_S, RATE_S = 1.0, 60.0, 0.5
"""Seconds between redraws of a terminal's line; between lines of a log.

For rates of a single status.
"""


AskStatus = Callable[[float], Status]
Beside = Callable[["ServerSettings", AskStatus], contextlib.AbstractContextManager[object]]
"""Starts what serves a feeder's figures, from its settings and a call that returns its status
within a number of seconds.
"""


def _nothing(
    settings: ServerSettings, ask_status: AskStatus
) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def serve(settings: ServerSettings, console: Console, beside: Beside = _nothing) -> int:
    """Run a server until it is drained or stopped; return the exit code.

    ``beside``: what runs beside the server, see `Beside`.
    """
    from async_loader.feeder.serving import FeederProcess

    server = FeederProcess(settings)
    report = _live if console.is_terminal else _logged
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(beside(settings, server.ask_status))
        except BaseException:
            server.close()
            raise
        # It says "serving" when SIGTERM ends it in order, not before.
        return server.run(ready=lambda: stack.enter_context(report(server.status, console)))


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
            _serving(name, table, seconds_between(before, now), table_of(before, name))
            for name, table in now["tables"].items()
        ]
        parts.append(f"{len(now['sessions'])} sessions")
        return ("draining: " if now.get("draining") else "") + ", ".join(parts)


def _serving(name: str, table: Status, seconds: float, before: Status | None) -> str:
    said = f"{clean(name)} {count_text(table['size'])}" + (
        f"/{count_text(table['capacity'])}" if table["capacity"] else ""
    )
    if before is None or seconds <= 0:
        return said
    came, went = (
        count_text(rate(table, before, what, seconds)) for what in ("inserted", "sampled")
    )
    return f"{said} ({came}/s in, {went}/s out)"


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
    with asking(address, keys) as client:
        if watch:
            with contextlib.suppress(KeyboardInterrupt):
                _watch(client, as_json, console)
        elif as_json:
            _print_json(client.status(), console)
        else:
            before = client.status()
            readable([], RATE_S)
            height = console.height if console.is_terminal else None
            console.print(*status_view(client.status(), before, height), sep="\n")


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
            live.update(Group(*status_view(now, before, console.height)), refresh=True)
            before, pause_s = now, LIVE_S


def drain(address: str | None, keys: str | None, *, as_json: bool, console: Console) -> None:
    """Tell a server to take nothing new, deliver what it has, and end; return when it has."""
    with asking(address, keys) as client:
        client.drain()
        if as_json:
            _print_json({"address": client.address, "drained": True}, console)


@contextlib.contextmanager
def asking(address: str | None, keys: str | None, name: str = "async-loader") -> Iterator[Client]:
    """Return a client for one command: a feeder that is not there is an error at once.

    Raises
    ------
    ConfigError, Timeout, Broken, Unsupported
    """
    from async_loader.feeder import addresses, connect, reach

    where = address or str(addresses.default())
    if "://" in where and (reason := reach.refused(where, Deadline(_ASK_S))):
        raise Timeout(f"the feeder at {where} {reason}: {reach.hint(where)}")
    with connect(
        address or None, on_disconnect="raise", timeout_s=_ASK_S, keys=keys, name=name
    ) as client:
        yield client
