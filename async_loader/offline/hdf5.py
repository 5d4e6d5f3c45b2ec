"""Files in D4RL's layout: all episodes one after the other in each array."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from async_loader.errors import of_extra
from async_loader.offline.bad_data import Place
from async_loader.offline.episode import NAMES
from async_loader.offline.fill import Import, check_names, put
from async_loader.replay.buffer import ReplayBuffer
from async_loader.validation import path_of

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
    check_names("extra", extra)
    path = path_of("path", path)
    wanted, place = Import("from_hdf5", "extra", **options), Place(path)
    arrays = _arrays(path, extra, place)
    rows = len(arrays["rewards"])
    ended = np.zeros(rows, np.bool_)
    for name in arrays.keys() & {"terminals", "timeouts"}:
        flags = arrays[name].reshape(rows, -1)
        if flags.shape[1] != 1 or not np.isin(flags, (0, 1)).all():
            raise place.error(
                NAMES[name], f"{name} has shape {arrays[name].shape} or other values than 0 and 1: "
                f"give one bool for each of {rows} rows"
            )  # fmt: skip
        arrays[name] = flags[:, 0] != 0
        ended |= arrays[name]
    cuts = np.flatnonzero(ended[:-1]) + 1
    bounds = np.concatenate([[0], cuts, [rows] if rows else []]).astype(int)

    def episode(number: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, array in arrays.items():
            put(made, name, array[bounds[number] : bounds[number + 1]])
        return made

    given = ((Place(path, number), episode(number)) for number in range(len(bounds) - 1))
    return wanted.run(  # type: ignore[no-any-return]
        given,
        place,
        steps=rows,
        episodes=len(bounds) - 1,
        drop_last="next_observations" not in arrays,
    )


def _arrays(path: str, extra: Sequence[str], place: Place) -> dict[str, Any]:
    h5py = of_extra("h5py", "offline")
    arrays: dict[str, Any] = {}
    with place.reading("HDF5"), h5py.File(path, "r") as file:
        there = [name for name in ("timeouts", "next_observations") if name in file]
        for name in (*_NEEDED, *there, *extra):
            if not isinstance(file.get(name), h5py.Dataset):
                names: list[str] = []
                file.visit(names.append)
                raise place.error(
                    NAMES.get(name, name), f"the array {name} is missing, there are "
                    f"{', '.join(map(str, names[:20])) or 'none'}: correct it in extra=, or "
                    f"leave it out; D4RL's layout has {', '.join(_NEEDED)}, and from_minari reads "
                    "Minari's"
                )  # fmt: skip
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
