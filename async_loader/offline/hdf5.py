"""HDF5 files: of D4RL's layout, all episodes one after the other in each array, and Minari's,
through Minari itself.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError, of_extra
from async_loader.offline.bad_data import Place
from async_loader.offline.episode import NAMES, NEEDED, read_episodes
from async_loader.offline.fill import import_episodes, nested
from async_loader.replay.buffer import ReplayBuffer
from async_loader.validation import path_of

_ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations")


def from_minari(dataset: Any, *, extra: Sequence[str] = (), **options: Any) -> ReplayBuffer:
    """Fill a table from a Minari data set.

    Observations come with the one after an episode's last step.

    Parameters
    ----------
    dataset : str | path | minari.MinariDataset
        An id such as "D4RL/door/human-v2" that Minari has on this machine, a folder with
        ``main_data.hdf5`` (or ``data/main_data.hdf5``), that file, or a data set, also one that
        `filter_episodes` has made.
    extra : sequence of str
        Infos to import too, as "infos/qpos", which becomes the nested field ``infos.qpos``: what
        ``env.step`` returned for each step. Where there is one more than steps, the first is that
        of ``env.reset``, which is left out.
    **options
        As in `from_episodes`. Minari has float64 observations and rewards: ``float_dtype=
        "float32"`` halves the table.

    Returns
    -------
    ReplayBuffer
        Or the table that was given as ``into``.

    Raises
    ------
    BadData
        As `from_episodes`; and for a data set that is missing, cut off or incomplete.
    MissingExtra
        If Minari is not installed.
    """
    if isinstance(dataset, str | bytes | os.PathLike):
        place = Place(path_of("dataset", dataset))
        dataset = _load(place)
    elif hasattr(dataset, "storage"):
        place = Place(str(dataset.id))
    else:
        raise ConfigError(f"{dataset!r} is not a Minari data set: give one, its id or its path")
    return import_episodes(  # type: ignore[no-any-return]
        _read(dataset, extra, place),
        place,
        steps=int(dataset.total_steps),
        episodes=len(dataset.episode_indices),
        **options,
    )


def to_minari(table: ReplayBuffer, name: str, **options: Any) -> Any:
    """Write the episodes of a table as a Minari data set, through Minari itself.

    As with `to_npz`, an episode that goes on is written as one that was truncated. Minari wants the
    observation after each last step: where the table does not have it, as after a terminated step
    without ``final_obs``, the last observation stands in its place.

    Parameters
    ----------
    table : ReplayBuffer
        Of this process, with fields ``obs``, ``action`` and ``reward``.
    name : str
        The data set's id, as "pendulum/mixed-v0".
    **options
        Of ``minari.create_dataset_from_buffers``: ``env=``, or ``observation_space=`` and
        ``action_space=``; ``algorithm_name=`` and so on. ``jpeg_encoding`` is False unless given,
        so that images stay as they are.

    Returns
    -------
    minari.MinariDataset

    Raises
    ------
    ConfigError
        If the table lacks a field, has no episodes, or is one of another process; and without
        ``env`` and spaces.
    MissingExtra
        If Minari is not installed.
    """
    if options.get("env") is None and not {"observation_space", "action_space"} <= options.keys():
        raise ConfigError(
            "Minari needs the spaces of a data set: give env='Pendulum-v1', or observation_space= "
            "and action_space="
        )
    minari = of_extra("minari", "offline")
    buffer_of = of_extra("minari.data_collector", "offline").EpisodeBuffer
    buffers = []
    for number, columns in enumerate(read_episodes(table)):
        if missing := [name for name in NEEDED if name not in columns]:
            raise ConfigError(f"the table has no field {missing[0]!r}, which Minari needs")
        more = tree.transform(columns["obs"], lambda leaf: np.append(leaf, leaf[-1:], 0))
        one_more = operator.itemgetter(slice(len(columns["terminated"]) + 1))
        columns["obs"] = tree.transform(more, one_more)
        values = [columns[name] for name in (*NEEDED, "terminated", "truncated")]
        fields = dict(zip(_ARRAYS, values, strict=True))
        buffers.append(buffer_of(id=number, infos={}, **fields))
    if not buffers:
        raise ConfigError("the table has no episodes to write: fill it first")
    return minari.create_dataset_from_buffers(
        name, buffer=buffers, **{"jpeg_encoding": False, **options}
    )


def _load(place: Place) -> Any:
    minari, path = of_extra("minari", "offline"), Path(place.file)
    folder = path.parent if path.is_file() else path / "data" if (path / "data").is_dir() else path
    with place.reading("a Minari data set (minari.list_local_datasets() names those here)"):
        return minari.MinariDataset(folder) if folder.is_dir() else minari.load_dataset(place.file)


def _read(
    dataset: Any, extra: Sequence[str], place: Place
) -> Iterator[tuple[Place, dict[str, Any]]]:
    for number in map(int, dataset.episode_indices):
        here = Place(place.file, number)
        with here.reading("an episode of Minari"):
            one = next(iter(dataset.storage.get_episodes([number])))
            made = {name: one[name] for name in _ARRAYS}
        for name in extra:
            try:
                made[name] = functools.reduce(operator.getitem, name.split("/"), one)
            except (KeyError, TypeError):
                raise here.error(
                    name.replace("/", "."), "it is missing: leave it out of extra="
                ) from None
        yield here, nested(made)


_NEEDED = ("observations", "actions", "rewards", "terminals")


def from_hdf5(
    path: str | os.PathLike[str], *, extra: Sequence[str] = (), **options: Any
) -> ReplayBuffer:
    """Fill a table from an HDF5 file in D4RL's layout.

    The file has arrays ``[rows, ...]``: observations, actions, rewards, terminals, and where there
    are any, timeouts (the time limit) and next_observations. Without next_observations the
    observation after a timeout is unknown, and the last step of such an episode is given up, as
    D4RL's own ``qlearning_dataset`` does. The arrays are read whole.

    Parameters
    ----------
    path : str or path
    extra : sequence of str
        More arrays of the file, as "infos/qpos", which becomes the nested field ``infos.qpos``.
    **options
        As in `from_episodes`. D4RL's files often end within an episode: ``missing_ends="truncate"``
        takes it as cut off there.

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
    path = path_of("path", path)
    place = Place(path)
    arrays = _arrays(path, extra, place)
    rows = len(arrays["rewards"])
    ended = np.zeros(rows, np.bool_)
    for name in arrays.keys() & {"terminals", "timeouts"}:
        ended |= (arrays[name] != 0).any(axis=tuple(range(1, arrays[name].ndim)))
    cuts = np.flatnonzero(ended[:-1]) + 1
    bounds = [0, *cuts.tolist(), rows]
    given = (
        (Place(path, number), nested({name: one[start:stop] for name, one in arrays.items()}))
        for number, (start, stop) in enumerate(itertools.pairwise(bounds))
    )
    return import_episodes(  # type: ignore[no-any-return]
        given,
        place,
        steps=rows,
        episodes=len(bounds) - 1,
        drop_last="next_observations" not in arrays,
        **options,
    )


def _arrays(path: str, extra: Sequence[str], place: Place) -> dict[str, Any]:
    h5py = of_extra("h5py", "offline")
    arrays: dict[str, Any] = {}
    with place.reading("HDF5"), h5py.File(path, "r") as file:
        there = [name for name in ("timeouts", "next_observations") if name in file]
        for name in (*_NEEDED, *there, *extra):
            if not isinstance(file.get(name), h5py.Dataset):
                raise place.error(
                    NAMES.get(name, name),
                    f"the array {name} is missing: correct extra=; D4RL's layout has "
                    f"{', '.join(_NEEDED)}, and from_minari reads Minari's",
                )
            arrays[name] = np.atleast_1d(file[name][()])
    rows = len(arrays["rewards"])
    for name, array in arrays.items():
        if len(array) != rows:
            raise place.error(
                NAMES.get(name, name),
                f"{name} has {len(array)} rows and rewards {rows}: the file is incomplete, "
                "download it again",
            )
    return arrays
