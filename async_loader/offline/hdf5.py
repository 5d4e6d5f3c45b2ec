"""Files in D4RL's layout: all episodes one after the other in each array."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from async_loader.offline.bad_data import Place
from async_loader.offline.episode import NAMES
from async_loader.offline.fill import Import, check_names
from async_loader.offline.h5_files import opened, reading
from async_loader.replay.array_types import Bools, Ids
from async_loader.replay.buffer import ReplayBuffer
from async_loader.validation import path_of

_NEEDED = ("observations", "actions", "rewards", "terminals")
_BLOCK = 1 << 16
"""Rows that are read at a time, where episodes are shorter."""


def from_hdf5(
    path: str | os.PathLike[str], *, extra: Sequence[str] = (), **options: Any
) -> ReplayBuffer:
    """Fill a table from an HDF5 file in D4RL's layout.

    The file has arrays ``[rows, ...]``: observations, actions, rewards, terminals, and where there
    are any, timeouts (the time limit) and next_observations. Without next_observations the
    observation after a timeout is unknown, and the last step of such an episode is given up, as
    D4RL's own ``qlearning_dataset`` does. Lengths, ends and rewards are checked before the first
    step is read; the steps are read in blocks.

    Parameters
    ----------
    path : str or path
    extra : sequence of str
        More arrays of the file, as "infos/qpos", which becomes the nested field ``infos.qpos``.
    **options
        As in `from_episodes`. D4RL's files often end within an episode: ``missing_ends="truncate"``
        takes it as cut off there. Where the file has no timeouts, a RuntimeWarning then says how
        long the episodes are.

    Returns
    -------
    ReplayBuffer
        Or the table that was given as ``into``.

    Raises
    ------
    BadData
        As `from_episodes`; and for a file that is missing, cut off, or lacks an array.
    MissingExtra
        If h5py is not installed.
    """
    check_names("extra", extra)
    path = path_of("path", path)
    wanted, place = Import.of(options), Place(path)
    with opened(Path(path)) as file:
        with reading(None, place):
            arrays = _arrays(file, extra, place)
        starts, stops = _bounds(arrays, place)
        if "timeouts" not in arrays and wanted.missing_ends == "truncate":
            _warn_of_no_timeouts(starts, stops, place)
        return wanted.run(  # type: ignore[no-any-return]
            _episodes(arrays, starts, stops, place),
            place,
            steps=int(stops[-1]) if len(stops) else 0,
            episodes=len(stops),
            drop_last="next_observations" not in arrays,
        )


def _arrays(file: Any, extra: Sequence[str], place: Place) -> dict[str, Any]:
    """Return the file's data sets by name; nothing of them is read."""
    optional = [name for name in ("timeouts", "next_observations") if name in file]
    found = {}
    for name in (*_NEEDED, *optional, *extra):
        if name not in file:
            remedy = (
                "correct it in extra=, or leave it out"
                if name in extra
                else f"D4RL's layout has {', '.join(_NEEDED)}; from_minari reads Minari's"
            )
            group = file.get(name.rpartition("/")[0] or "/", file)
            group = group if hasattr(group, "keys") else file  # an array has no others within
            inside = "" if group.name == "/" else f" in {group.name[1:]}"
            raise place.error(
                NAMES.get(name, name),
                f"{name} is missing, there are {', '.join(group) or 'no arrays'}{inside}: {remedy}",
            )
        if not hasattr(file[name], "shape"):
            raise place.error(
                NAMES.get(name, name), f"{name} is a group: name an array in it, as {name}/..."
            )
        found[name] = file[name]
    rows = {name: one.shape[0] if one.shape else 0 for name, one in found.items()}
    for name, count in rows.items():
        if count != rows["rewards"]:
            raise place.error(
                NAMES.get(name, name),
                f"{name} has {count} rows and rewards {rows['rewards']}: the file is incomplete, "
                "download it again",
            )
    return found


def _bounds(arrays: dict[str, Any], place: Place) -> tuple[Ids, Ids]:
    """Return where episodes begin, and where they stop; their rewards are finite."""
    rows = arrays["rewards"].shape[0] if arrays["rewards"].shape else 0
    ended = np.zeros(rows, np.bool_)
    for name in ("terminals", "timeouts"):
        if name in arrays:
            flags = _read(arrays[name], NAMES[name], place)
            if flags.size != rows:
                raise place.error(
                    NAMES[name],
                    f"{name} has shape {flags.shape}: give one value for each of {rows} rows",
                )
            flags = flags.reshape(rows)
            wrong = (flags != 0) & (flags != 1)
            if wrong.any():
                row = int(wrong.argmax())
                raise place.error(
                    NAMES[name], f"{name} has {flags[row]} in row {row}: give 0 or 1, or bools"
                )
            ended |= flags != 0
    stops = np.flatnonzero(ended) + 1
    if rows and (not len(stops) or stops[-1] != rows):
        stops = np.append(stops, rows)
    starts = np.concatenate([np.zeros(1, np.int64), stops[:-1]])[: len(stops)]
    rewards = _read(arrays["rewards"], "reward", place)
    if rewards.dtype.kind in "fc" and not (finite := np.isfinite(rewards)).all():
        row = int(np.flatnonzero(~finite.reshape(rows, -1).all(axis=1))[0])
        episode = int(np.searchsorted(stops, row, side="right"))
        raise Place(place.file, episode).error(
            "reward",
            f"step {row - int(starts[episode])} (row {row}) has {rewards[row]}: correct it, or "
            "leave the episode out",
        )
    return starts, stops


def _warn_of_no_timeouts(starts: Ids, stops: Ids, place: Place) -> None:
    if len(stops):
        longest = int((stops - starts).max())
        warnings.warn(
            f"{place.file}: without an array 'timeouts' an episode ends with its terminal step "
            f"only, and there are {len(stops)} episodes of up to {longest} steps. If a time limit "
            "cut some off, their ends are missing: add timeouts [rows], 1 where one did",
            RuntimeWarning,
            stacklevel=3,
        )


def _episodes(
    arrays: dict[str, Any], starts: Ids, stops: Ids, place: Place
) -> Iterator[tuple[Place, dict[str, Any]]]:
    first = 0
    while first < len(stops):
        begin = int(starts[first])
        last = max(first + 1, int(np.searchsorted(stops, begin + _BLOCK, side="right")))
        end = int(stops[last - 1])
        block = {
            name: _read(one, NAMES.get(name, name), place, slice(begin, end))
            for name, one in arrays.items()
        }
        for episode in range(first, last):
            where = slice(int(starts[episode]) - begin, int(stops[episode]) - begin)
            yield Place(place.file, episode), _episode(block, where)
        first = last


def _episode(block: dict[str, Any], where: slice) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, array in block.items():
        one = array[where]
        if name == "timeouts" or name == "terminals":
            one = _flags(one)
        *groups, leaf = name.split("/")
        into = made
        for group in groups:
            into = into.setdefault(group, {})
        into[leaf] = one
    return made


def _flags(array: Any) -> Bools:
    flags: Bools = array.reshape(len(array)) != 0
    return flags


def _read(dataset: Any, name: str, place: Place, rows: Any = ()) -> Any:
    with reading(name, place):
        return dataset[rows]
