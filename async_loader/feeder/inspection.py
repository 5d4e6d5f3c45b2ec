"""The command inspect for a table of a feeder: fields, counts, newest episodes and some rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from async_loader.errors import ConfigError
from async_loader.feeder.client.batch_structure import SERVER_BITS
from async_loader.feeder.client.table import TableClient
from async_loader.feeder.commands import asking
from async_loader.feeder.status_view import clean
from async_loader.feeder.wire import MOST_NEWEST, AboutReply, schema_of
from async_loader.offline.commands import bars_of, fields_of, fields_table, rows_table
from async_loader.replay.views import Transitions
from async_loader.schema import END_FIELDS, Schema
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
        said = found._about(newest=MOST_NEWEST)
        if as_json:
            console.out(json.dumps(_facts(found.name, said)), highlight=False)
        else:
            _print(found, said, console)


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
    counts = {
        one: said.stats.get(one) for one in ("capacity", "nbytes", "inserted", "sampled", "deleted")
    }
    episodes = dict(said.episodes or {})
    episodes.pop("ids", None)
    return {
        "table": name,
        "schema": fields_of(_schema(said)),
        "steps": said.stats.get("size"),
        **counts,
        "sampler": said.sampler,
        "newest": episodes or None,
    }


def _schema(said: AboutReply) -> Schema | None:
    return None if said.schema is None else schema_of(said.schema)


def _print(table: TableClient, said: AboutReply, console: Console) -> None:
    facts, schema = _facts(table.name, said), _schema(said)
    memory = "" if facts["nbytes"] is None else f" in {human(facts['nbytes'])}"
    lines = [
        f"{clean(table.name)}: {facts['steps']:,} steps that can be drawn, capacity "
        f"{facts['capacity'] or 0:,}{memory}, by {clean(said.sampler)}",
        f"{facts['inserted']:,} inserted, {facts['sampled']:,} sampled, {facts['deleted']:,} "
        "deleted",
    ]
    console.out("\n".join(lines), highlight=False)
    if schema is None:
        console.out("it has no schema yet: the first writer brings it", highlight=False)
        return
    console.print(fields_table(facts["schema"]))
    console.out("\n".join(_episode_lines(said.episodes or {})), highlight=False)
    batch = _rows(table, schema, said)
    if batch is not None:
        console.print(rows_table(schema, batch))


def _episode_lines(found: dict[str, Any]) -> list[str]:
    lines = [
        f"the newest {found['steps']:,} steps: {found['episodes']:,} whole episodes, and parts of "
        f"{found['parts']:,} that began before or go on"
    ]
    for what in ("length", "return"):
        if (one := found.get(what)) is not None:
            middles = [
                f"{name} {one[name]:.4g}" for name in ("mean", "median") if one[name] is not None
            ]
            title = f"{what} of these episodes: {', '.join(middles)}"
            lines += bars_of(title, one, found["episodes"])
    return lines


def _rows(table: TableClient, schema: Schema, said: AboutReply) -> dict[str, Any] | None:
    """Return some of the newest steps as they are stored; ``None`` without any."""
    ids = (said.episodes or {}).get("ids", [])
    if not ids:
        return None
    plain = None
    if said.view is not None and said.view.sequences is not None:
        ends = ("next_", *END_FIELDS)
        names = [one.name for one in schema.fields if not one.name.startswith(ends)]
        plain = Transitions(reward=names[0]) if names else None
    first = table._connection.servers << SERVER_BITS
    batch = table.get(np.array(ids, np.int64) + first, view=plain)
    return batch if len(batch["index"]) else None
