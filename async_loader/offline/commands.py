"""The commands import and inspect: files into a checkpoint, and what a checkpoint holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from async_loader.errors import ConfigError
from async_loader.histograms import histogram
from async_loader.offline import from_hdf5, from_minari, from_npz
from async_loader.offline.bad_data import BadData
from async_loader.offline.shown_tables import bars_of, fields_of, fields_table, rows_table
from async_loader.offline.table_episodes import episodes_of
from async_loader.os_errors import check_folder, explain
from async_loader.replay.buffer import ReplayBuffer
from async_loader.replay.samplers import Uniform

if TYPE_CHECKING:
    from rich.console import Console

FORMATS: dict[str, Callable[..., ReplayBuffer]] = {
    "minari": from_minari,
    "hdf5": from_hdf5,
    "npz": from_npz,
}
_ROWS = 5


def import_data(
    source: str,
    to: Path,
    format_: str | None,
    capacity: int | None,
    *,
    missing_ends: Any = "refuse",
    progress: bool = False,
) -> str:
    """Read a data set, save it as a checkpoint, and return what was saved, in words.

    Raises
    ------
    ConfigError, BadData, MissingExtra
    """
    if format_ is not None and format_ not in FORMATS:
        raise ConfigError(f"--format {format_}: it is one of {', '.join(FORMATS)}")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"--to {to}: it is there already, name a new folder or an empty one")
    try:
        check_folder(to)  # before the data set is read, which may take long
    except OSError as error:
        raise ConfigError(f"--to {explain(error)}") from error
    read = FORMATS[format_ or _format_of(source)]
    try:
        table = read(source, capacity=capacity, missing_ends=missing_ends, progress=progress)
    except BadData as error:
        if "missing_ends='truncate'" not in str(error):
            raise
        raise ConfigError(
            str(error).replace("missing_ends='truncate'", "--missing-ends truncate")
        ) from error
    with table:
        table.save(to)
        older = table.stats().inserted - len(table)
        rest = f"; {older:,} older steps did not fit --capacity {capacity:,}" if capacity else ""
        return f"{_counts(_facts(table))} in {to}{rest if older > 0 else ''}"


def _format_of(source: str) -> str:
    """Return the format of a path: npz, D4RL's HDF5 or else Minari."""
    path = Path(source)
    if source.endswith(".npz") or (path.is_dir() and any(path.glob("*.npz"))):
        return "npz"
    return "hdf5" if path.suffix in (".hdf5", ".h5") and path.name != "main_data.hdf5" else "minari"


def inspect(path: str, *, as_json: bool, console: Console) -> None:
    """Print what a checkpoint holds.

    Raises
    ------
    ConfigError, CorruptCheckpoint
    """
    with ReplayBuffer.from_checkpoint(path, sampler=Uniform(), limiter=None, view=None) as table:
        facts = _facts(table)
        if as_json:
            console.out(json.dumps(facts), highlight=False)
            return
        text = f"{_counts(facts)}, capacity {facts['capacity'] or 0:,}"
        console.out(text, highlight=False)
        console.print(fields_table(facts["schema"]))
        found = episodes_of(table)
        for what, values in (("length", found.counts), ("return", found.sums)):
            if values is not None and len(values):
                lines = bars_of(f"{what} of episodes", histogram(values), len(values))
                console.out("\n".join(lines), highlight=False)
        schema = table.schema
        if schema is not None and len(found.ids):
            last = len(found.ids) - 1
            picked = found.ids[np.linspace(0, last, min(_ROWS, last + 1)).astype(int)]
            console.print(rows_table(schema, table.get(picked)))


def _counts(facts: dict[str, Any]) -> str:
    steps, episodes = facts["steps"], facts["episodes"]
    return (
        f"{steps:,} step{'' if steps == 1 else 's'} of "
        f"{episodes:,} episode{'' if episodes == 1 else 's'}"
    )


def _facts(table: ReplayBuffer) -> dict[str, Any]:
    found = episodes_of(table)
    sums = found.sums
    return {
        "schema": fields_of(table.schema),
        "steps": len(table),
        "capacity": table.capacity,
        "nbytes": table.nbytes,
        "episodes": len(found.starts),
        "length": histogram(found.counts),
        "return": None if sums is None else histogram(sums),
        "returns_not_finite": 0 if sums is None else int((~np.isfinite(sums)).sum()),
    }
