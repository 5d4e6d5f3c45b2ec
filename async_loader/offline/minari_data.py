"""Minari's data sets: read and written through the package, or read by h5py alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError, MissingExtra
from async_loader.offline.bad_data import Place
from async_loader.offline.fill import Import, check_names
from async_loader.offline.h5_files import opened, reading, value_of
from async_loader.offline.npz import columns_of
from async_loader.offline.table_episodes import read_episodes
from async_loader.replay.buffer import ReplayBuffer
from async_loader.validation import path_of

_FILE = "main_data.hdf5"
_NEEDED = ("observations", "actions", "rewards", "terminations", "truncations")


def from_minari(dataset: Any, *, extra: Sequence[str] = (), **options: Any) -> ReplayBuffer:
    """Fill a table from a Minari data set.

    Observations come with the one after an episode's last step. A path is read by h5py, without
    Minari, but where the data is not HDF5 or its images are JPEG.

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
        If Minari, or h5py, is needed and not installed.
    """
    check_names("extra", extra)
    wanted = Import.of(options)
    if isinstance(dataset, str | bytes | os.PathLike):
        dataset = path_of("dataset", dataset)
        file = _file_of(Path(dataset))
        if file is not None and _is_plain(file):
            return _from_file(wanted, file, extra)
        place = Place(dataset)
        dataset = _load(dataset, file, place)
    elif not hasattr(dataset, "storage"):
        raise ConfigError(f"{dataset!r} is not a Minari data set: give one, its id or its path")
    else:
        place = Place(str(dataset.id))
    numbers = [int(one) for one in dataset.episode_indices]
    return wanted.run(  # type: ignore[no-any-return]
        _read_through(dataset, numbers, extra, place),
        place,
        steps=int(dataset.total_steps),
        episodes=len(numbers),
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
    minari = _minari("to_minari writes")
    from minari.data_collector import EpisodeBuffer

    schema = table.schema
    names = [] if schema is None else [field.name.split(".")[0] for field in schema.fields]
    for needed in ("obs", "action", "reward"):
        if schema is not None and needed not in names:
            raise ConfigError(f"the table has no field {needed!r}, which Minari needs")
    buffers = []
    for number, episode in enumerate(read_episodes(table)):
        columns = columns_of(episode)
        if episode.following is None:
            columns["obs"] = tree.transform(
                columns["obs"], lambda leaf: np.concatenate([leaf, leaf[-1:]])
            )
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations=columns["obs"],
                actions=columns["action"],
                rewards=columns["reward"],
                terminations=columns["terminated"],
                truncations=columns["truncated"],
                infos={},
            )
        )
    if not buffers:
        raise ConfigError("the table has no episodes to write: fill it first")
    return minari.create_dataset_from_buffers(
        name, buffer=buffers, **{"jpeg_encoding": False, **options}
    )


def _minari(what: str) -> Any:
    try:
        import minari
    except ImportError as error:
        raise MissingExtra(
            f"{what} through Minari, which is not installed: pip install "
            '"async_loader[offline]", or pip install minari'
        ) from error
    return minari


def _file_of(path: Path) -> Path | None:
    """Return the HDF5 file of a path; ``None`` for anything else, as the id of a data set."""
    for file in (path, path / _FILE, path / "data" / _FILE):
        if file.is_file():
            return file
    if path.suffix in (".hdf5", ".h5"):
        raise Place(str(path)).error(
            None, "there is no such file: correct the path, or download it first"
        )
    return None


def _metadata(file: Path) -> dict[str, Any]:
    beside = file.parent / "metadata.json"
    try:
        found = json.loads(beside.read_text()) if beside.is_file() else {}
    except ValueError as error:
        raise Place(str(beside)).error(
            None, f"it is not JSON ({error}): the data set is damaged, download it again"
        ) from None
    if not isinstance(found, dict) or not isinstance(found.get("total_episodes", 0), int):
        raise Place(str(beside)).error(
            None, "it is not the metadata of a data set: the data set is damaged, download it again"
        )
    return found


def _is_plain(file: Path) -> bool:
    """Whether h5py alone can read it: its images are not JPEG."""
    if not _metadata(file).get("jpeg_encoding", False):
        return True
    with opened(file) as opened_file:
        kinds: list[str] = []
        with reading(None, Place(str(file))):
            first = next(iter(opened_file.values()), None)
            if first is not None:
                first.visititems(
                    lambda _, node: (
                        kinds.append(node.dtype.kind) if hasattr(node, "dtype") else None
                    )
                )
    return "O" not in kinds


def _from_file(wanted: Import, file: Path, extra: Sequence[str]) -> ReplayBuffer:
    place = Place(str(file))
    with opened(file) as opened_file:
        with reading(None, place):
            names = [name for name in opened_file if name.startswith("episode_")]
            if not names and "observations" in opened_file:
                raise place.error(None, "it has D4RL's layout, not Minari's: use from_hdf5")
            numbers = sorted(int(name.removeprefix("episode_")) for name in names)
        said = _metadata(file).get("total_episodes", len(numbers))
        if len(numbers) < said:
            raise place.error(
                None,
                f"{len(numbers)} of {said} episodes are in it: the file is incomplete, download "
                "it again",
            )
        steps = 0
        for number in numbers:
            here = Place(place.file, number)
            with reading(None, here):
                steps += _steps_of(opened_file[f"episode_{number}"], here)
        return wanted.run(  # type: ignore[no-any-return]
            _read(opened_file, numbers, extra, place),
            place,
            steps=steps,
            episodes=len(numbers),
        )


def _steps_of(group: Any, place: Place) -> int:
    for name in _NEEDED:
        if name not in group:
            raise place.error(
                name, f"it is missing, there are {', '.join(group) or 'none'}: the file is "
                "incomplete, download it again"
            )  # fmt: skip
    return int(group["rewards"].shape[0])


def _read(
    file: Any, numbers: list[int], extra: Sequence[str], place: Place
) -> Iterator[tuple[Place, dict[str, Any]]]:
    for number in numbers:
        here = Place(place.file, number)
        with reading(None, here):
            made = _episode(file[f"episode_{number}"], extra, here)
        yield here, made


def _episode(group: Any, extra: Sequence[str], here: Place) -> dict[str, Any]:
    made = {name: value_of(group[name], name, here) for name in _NEEDED}
    for name in extra:
        if name not in group:
            raise here.error(name.replace("/", "."), "it is missing: leave it out of extra=")
        _put(made, name, value_of(group[name], name.replace("/", "."), here))
    return made


def _put(made: dict[str, Any], name: str, value: Any) -> None:
    """Put the info that came with each step's reward under its nested name."""
    *groups, leaf = name.split("/")
    steps = len(made["rewards"])
    into = made
    for group in groups:
        into = into.setdefault(group, {})
    into[leaf] = tree.transform(
        value, lambda one: one[1:] if np.shape(one)[:1] == (steps + 1,) else one
    )


def _load(name: Any, file: Path | None, place: Place) -> Any:
    minari = _minari(f"{os.fspath(name)!r} is read")
    try:
        if file is not None:
            return minari.MinariDataset(file.parent)
        if (folder := Path(name)).is_dir():
            inner = folder / "data"
            return minari.MinariDataset(inner if inner.is_dir() else folder)
        return minari.load_dataset(os.fspath(name))
    except (OSError, ValueError, KeyError) as error:
        raise place.error(
            None, f"Minari cannot load it ({error}): minari.list_local_datasets() names those "
            "that are here, minari.download_dataset() gets others"
        ) from None  # fmt: skip


def _read_through(
    dataset: Any, numbers: list[int], extra: Sequence[str], place: Place
) -> Iterator[tuple[Place, dict[str, Any]]]:
    episodes = iter(dataset.storage.get_episodes(numbers))
    for number in numbers:
        here = Place(place.file, number)
        try:
            one = next(episodes)
        except StopIteration:
            raise here.error(None, "it is missing: the data set is incomplete") from None
        except (OSError, KeyError, ValueError) as error:
            raise here.error(
                None, f"Minari cannot read it ({error}): the data set is damaged, download it again"
            ) from None
        made = {name: one[name] for name in _NEEDED}
        for name in extra:
            value: Any = one
            for part in name.split("/"):
                value = value.get(part) if isinstance(value, dict) else None
            if value is None:
                raise here.error(name.replace("/", "."), "it is missing: leave it out of extra=")
            _put(made, name, value)
        yield here, made
