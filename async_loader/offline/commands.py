"""The commands import and inspect: files into a checkpoint, and what a checkpoint holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError, check_folder, explain
from async_loader.offline import from_hdf5, from_minari, from_npz
from async_loader.offline.episode import drawable_steps
from async_loader.replay.buffer import ReplayBuffer
from async_loader.replay.kept import Contents, contents, tables_in
from async_loader.replay.samplers import Uniform
from async_loader.schema import Schema
from async_loader.shm.limits import human

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def fields_of(schema: Schema | None) -> list[dict[str, Any]]:
    """Return the fields of a schema in plain values."""
    return [
        {
            "name": field.name,
            "dtype": field.dtype.name,
            "shape": list(field.shape),
            "stack": field.stack,
            "next": field.next,
        }
        for field in (schema.fields if schema is not None else ())
    ]


def fields_table(fields: Sequence[Mapping[str, Any]]) -> Table:
    """Return the fields of `fields_of` as a table."""
    from rich.markup import escape
    from rich.table import Table

    shown = Table("field", "dtype", "shape", "stack", "next", header_style="bold")
    for one in fields:
        shape = str(one["shape"])
        names = escape(one["name"]), escape(one["next"] or "")
        shown.add_row(names[0], one["dtype"], shape, str(one["stack"]), names[1])
    return shown


def spread(values: npt.NDArray[Any]) -> dict[str, float] | None:
    """Return the range of the finite numbers, and their middle; ``None`` without any."""
    values = values[np.isfinite(values)].astype(np.float64)
    asked: dict[str, Any] = {"min": np.min, "mean": np.mean, "median": np.median, "max": np.max}
    return {name: float(of(values)) for name, of in asked.items()} if len(values) else None


FORMATS: dict[str, Callable[..., ReplayBuffer]] = {
    "minari": from_minari,
    "hdf5": from_hdf5,
    "npz": from_npz,
}


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
    table = read(source, capacity=capacity, missing_ends=missing_ends, progress=progress)
    with table:
        table.save(to)
        return f"{_counts(_facts(table))} in {to}"


def _format_of(source: str) -> str:
    """Return the format of a path: npz, D4RL's HDF5 or else Minari."""
    path = Path(source)
    if source.endswith(".npz") or (path.is_dir() and any(path.glob("*.npz"))):
        return "npz"
    return "hdf5" if path.suffix in (".hdf5", ".h5") and path.name != "main_data.hdf5" else "minari"


def inspect(path: str, *, as_json: bool, console: Console) -> None:
    """Print what a checkpoint holds, or the kept tables of a folder.

    Raises
    ------
    ConfigError, CorruptCheckpoint
    """
    for file in (kept_tables := tables_in(path)):
        _inspect_kept(file, contents(file), as_json, console)
    if kept_tables:
        return
    with ReplayBuffer.from_checkpoint(path, sampler=Uniform(), limiter=None, view=None) as table:
        facts = _facts(table)
        if as_json:
            console.out(json.dumps(facts), highlight=False)
            return
        text = f"{_counts(facts)}, capacity {facts['capacity'] or 0:,}"
        console.out(text, highlight=False)
        console.print(fields_table(facts["schema"]))
        for what in ("length", "return"):
            if facts[what] is not None:
                shown = ", ".join(f"{name} {one:.4g}" for name, one in facts[what].items())
                console.out(f"{what} of episodes: {shown}", highlight=False)


def _inspect_kept(file: Path, found: Contents, as_json: bool, console: Console) -> None:
    facts = {"folder": str(file.parent), **found._asdict(), "schema": fields_of(found.schema)}
    if as_json:
        console.out(json.dumps(facts), highlight=False)
        return
    lines = (
        f"{file.parent}: {found.steps:,} steps, capacity {found.capacity:,} in "
        f"{human(found.nbytes)}, {'in use' if found.in_use else 'not in use'}",
        f"{found.inserted:,} inserted, {found.sampled:,} sampled, {found.streams:,} streams, "
        f"{found.producers:,} producers",
    )
    console.out("\n".join(lines), highlight=False)
    console.print(fields_table(facts["schema"]))


def _counts(facts: dict[str, Any]) -> str:
    steps, episodes = facts["steps"], facts["episodes"]
    return (
        f"{steps:,} step{'' if steps == 1 else 's'} of "
        f"{episodes:,} episode{'' if episodes == 1 else 's'}"
    )


def _facts(table: ReplayBuffer) -> dict[str, Any]:
    found = drawable_steps(table)
    lengths = np.bincount(found.episode)
    return {
        "schema": fields_of(table.schema),
        "steps": len(table),
        "capacity": table.capacity,
        "nbytes": table.nbytes,
        "episodes": len(lengths),
        "length": spread(lengths),
        "return": (
            None if found.rewards is None else spread(np.bincount(found.episode, found.rewards))
        ),
    }
