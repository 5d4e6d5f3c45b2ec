"""The feeder's commands: serve, inspect, drain. Text of peers is cleaned before it is printed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from async_loader.errors import ConfigError, Timeout
from async_loader.feeder.wire import AboutReply, schema_of
from async_loader.lifecycle import Deadline
from async_loader.offline.commands import fields_of, fields_table
from async_loader.shm.limits import human
from async_loader.validation import require_linux

if TYPE_CHECKING:
    from rich.console import Console

    from async_loader.feeder.client.client import Client
    from async_loader.feeder.settings import ServerSettings


def inspect(
    address: str, table: str | None, keys: str | None, *, as_json: bool, console: Console
) -> None:
    """Print what a table of a feeder holds. It draws nothing: counts and limiters stay as they are.

    Parameters
    ----------
    table : str | None
        May be left out where the feeder has one table.

    Raises
    ------
    ConfigError
        For a table that is not there.
    Timeout, Broken, Unsupported
    """
    with asking(address, keys, "inspect") as of:
        found = of.table(_named(of, table))
        said = found._about()
        if as_json:
            console.out(json.dumps(_facts(found.name, said)), highlight=False)
        else:
            _print(_facts(found.name, said), console)


def _named(client: Client, table: str | None) -> str:
    known = list(client.status()["tables"])
    if table in known:
        return str(table)
    if table is None and len(known) == 1:
        return known[0]
    names = ", ".join(map(clean, known)) or "none"
    asked = "name one of its tables" if table is None else f"there is no table {table!r} here"
    raise ConfigError(f"{asked}, there are: {names}")


def _facts(name: str, said: AboutReply) -> dict[str, Any]:
    counts = ("capacity", "nbytes", "inserted", "sampled", "deleted")
    return {
        "table": name,
        "schema": fields_of(None if said.schema is None else schema_of(said.schema)),
        "steps": said.stats.get("size"),
        **{one: said.stats.get(one) for one in counts},
        "sampler": said.sampler,
    }


def _print(facts: dict[str, Any], console: Console) -> None:
    memory = "" if facts["nbytes"] is None else f" in {human(facts['nbytes'])}"
    lines = [
        f"{clean(facts['table'])}: {facts['steps']:,} steps that can be drawn, capacity "
        f"{facts['capacity'] or 0:,}{memory}, by {clean(facts['sampler'])}",
        f"{facts['inserted']:,} inserted, {facts['sampled']:,} sampled, {facts['deleted']:,} "
        "deleted",
    ]
    console.out("\n".join(lines), highlight=False)
    if facts["schema"]:
        console.print(fields_table(facts["schema"]))
    else:
        console.out("it has no schema yet: the first writer brings it", highlight=False)


_log = logging.getLogger("async_loader.feeder")
_ASK_S = 10.0  # for a feeder that is there
Status = Mapping[str, Any]
Beside = Callable[
    ["ServerSettings", Callable[[float], Status]], contextlib.AbstractContextManager[object]
]
"""Starts what serves a feeder's figures, from its settings and a call that returns its status
within a number of seconds.
"""


def serve(settings: ServerSettings, beside: Beside) -> int:
    """Run a server until it is drained or stopped; return the exit code.

    ``beside``: what runs beside the server, see `Beside`.
    """
    require_linux("a feeder")
    from async_loader.feeder.serving import FeederProcess

    server = FeederProcess(settings)
    where = ", ".join(map(clean, settings.tables)), clean(server.address), os.getpid()
    try:
        with beside(settings, server.ask_status):
            # It says "serving" when SIGTERM ends it in order, not before.
            return server.run(ready=lambda: _log.info("serving %s at %s (process %d)", *where))
    finally:
        server.close()
        _log.info("ended")


def clean(text: str) -> str:
    """Return a peer's text without control characters."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in str(text))


def count_text(number: float) -> str:
    """Return a number with a decimal only where it matters."""
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"


def drain(address: str | None, keys: str | None, *, as_json: bool, console: Console) -> None:
    """Tell a server to take nothing new, deliver what it has, and end; return when it has."""
    with asking(address, keys) as client:
        client.drain()
        if as_json:
            console.out(json.dumps({"address": client.address, "drained": True}), highlight=False)


@contextlib.contextmanager
def asking(address: str | None, keys: str | None, name: str = "async-loader") -> Iterator[Client]:
    """Return a client for one command: a feeder that is not there is an error at once.

    Raises
    ------
    ConfigError, Timeout, Broken, Unsupported
    """
    from async_loader.feeder import addresses, connect, reach

    where = address or str(addresses.default())
    if "://" in where and (reason := reach.absent(where, Deadline(_ASK_S))):
        raise Timeout(f"the feeder at {where} {reason}: {reach.HINT}")
    with connect(
        address or None, on_disconnect="raise", timeout_s=_ASK_S, keys=keys, name=name
    ) as client:
        yield client
