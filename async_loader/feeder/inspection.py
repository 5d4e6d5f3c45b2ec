"""The command inspect for a table of a feeder: fields and counts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from async_loader.errors import ConfigError
from async_loader.feeder.commands import asking
from async_loader.feeder.status_view import clean
from async_loader.feeder.wire import AboutReply, schema_of
from async_loader.offline.commands import fields_of, fields_table
from async_loader.shm.limits import human

if TYPE_CHECKING:
    from rich.console import Console

    from async_loader.feeder.client.client import Client


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
