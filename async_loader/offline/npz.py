"""Folders of npz files, one episode each."""

from __future__ import annotations

import glob
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError
from async_loader.offline.bad_data import Place
from async_loader.offline.episode import read_episodes
from async_loader.offline.fill import import_episodes, put
from async_loader.replay.array_types import Array
from async_loader.replay.buffer import ReplayBuffer
from async_loader.validation import path_of


def from_npz(path: str | os.PathLike[str], **options: Any) -> ReplayBuffer:
    """Fill a table from npz files, one episode a file, in the order of their names.

    A file holds the arrays that `from_episodes` takes. Nested fields have names with slashes, as
    ``obs/pixels``. `to_npz` writes such files.

    Parameters
    ----------
    path : str or path
        A folder, all of whose files ``*.npz`` are read, or a pattern such as ``"data/*.npz"``.
    **options
        As in `from_episodes`.

    Returns
    -------
    ReplayBuffer
        Or the table that was given as ``into``.

    Raises
    ------
    BadData
        As `from_episodes`, with the file's name; and for files that cannot be read, or none.
    """
    path = path_of("path", path)
    folder = Path(path).is_dir()
    files = sorted(Path(path).glob("*.npz") if folder else map(Path, glob.glob(path)))
    if not files:
        there = (
            "there are no npz files in this folder" if folder else "there is no such folder or file"
        )
        raise Place(path).error(None, f"{there}: correct the path or the pattern")
    given = ((Place(str(file), i), _read(file, i)) for i, file in enumerate(files))
    count = len(files)
    return import_episodes(  # type: ignore[no-any-return]
        "from_npz", given, Place(path), episodes=count, **options
    )


def to_npz(table: ReplayBuffer, folder: str | os.PathLike[str]) -> list[Path]:
    """Write each episode of a table into a file of its own, ``episode-00000000.npz`` and so on.

    An episode that goes on, or whose later steps are gone, is written as one that was truncated
    after the last step that the table can show. ``from_npz(folder, schema=table.schema)`` makes an
    equal table. The schema may be left out if it is the one that `from_episodes` takes from data:
    without stacks, with ``terminated`` and ``truncated``, and with ``next="next_obs"``. Without any
    ``next=`` it is needed, since the files of truncated episodes lack the observation after them.
    Files hold the steps that can be drawn: where a stack shows others, which were deleted or
    overwritten, it is padded when the file is read (`save` keeps them).

    Parameters
    ----------
    table : ReplayBuffer
        Of this process.
    folder : str or path
        Made if it is not there.

    Returns
    -------
    list of Path

    Raises
    ------
    ConfigError
        If the folder has npz files, the table is one of another process, or a nested field is a
        tuple or has a key that would come back as another one.
    """
    where = Path(path_of("folder", folder))
    if where.is_dir() and any(where.glob("*.npz")):
        raise ConfigError(f"{where} has npz files already: name an empty folder, or a new one")
    written: list[Path] = []
    try:
        for number, episode in enumerate(read_episodes(table)):
            columns = episode.columns()
            flat = _flat(columns)
            if tree.structure_of(_nested(flat)) != tree.structure_of(columns):
                raise ConfigError(
                    f"an npz file cannot keep the names of this table's fields ({table.schema}): "
                    "fields are dicts, not tuples, and keys are strings without '/'"
                )
            where.mkdir(parents=True, exist_ok=True)
            file = where / f"episode-{number:08d}.npz"
            written.append(file)
            with zipfile.ZipFile(file, "w") as archive:  # np.savez has a parameter "file"
                for name, array in flat.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as into:
                        np.lib.format.write_array(into, np.asarray(array), allow_pickle=False)
    except BaseException:
        for file in written:
            file.unlink(missing_ok=True)
        raise
    return written


def _flat(columns: dict[str, Any]) -> dict[str, Array]:
    structure = tree.structure_of(columns)
    names = ("/".join(map(str, path)) for path in tree.paths(structure))
    return dict(zip(names, tree.leaves(columns, structure), strict=True))


def _nested(flat: dict[str, Array]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, array in flat.items():
        put(made, name, array)
    return made


def _read(file: Path, number: int) -> Any:
    flat: dict[str, Array] = {}
    with Place(str(file), number).reading("npz"), file.open("rb") as handle:
        with np.load(handle, allow_pickle=False) as loaded:
            for name in loaded.files:
                try:
                    flat[name] = loaded[name]
                except ValueError as error:
                    if "pickle" not in str(error):
                        raise
                    flat[name] = np.empty(0, object)  # refused unless a schema leaves it out
        return _nested(flat)
