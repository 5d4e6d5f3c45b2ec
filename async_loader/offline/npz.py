"""Folders of npz files, one episode each."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError
from async_loader.offline.bad_data import Place
from async_loader.offline.episode import read_episodes
from async_loader.offline.fill import import_episodes, nested
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
    folder = Path(path)
    files = sorted(folder.glob("*.npz") if folder.is_dir() else map(Path, glob.glob(path)))
    if not files:
        raise Place(path).error(
            None, "there are no npz files: correct the path of the folder, or the pattern"
        )
    given = ((Place(str(file), i), _read(file, i)) for i, file in enumerate(files))
    return import_episodes(  # type: ignore[no-any-return]
        given, Place(path), episodes=len(files), **options
    )


def to_npz(table: ReplayBuffer, folder: str | os.PathLike[str]) -> list[Path]:
    """Write each episode of a table into a file of its own, ``episode-00000000.npz`` and so on.

    An episode that goes on, or whose later steps are gone, is written as one that was truncated
    after the last step that the table can show. ``from_npz(folder, schema=table.schema)`` makes an
    equal table. The schema may be left out if it is the one that `from_episodes` takes from data:
    without stacks, with ``terminated`` and ``truncated``, and with ``next="next_obs"``. Without any
    ``next=`` it is needed, since the files of truncated episodes lack the observation after them.
    Files hold the steps that can be drawn: where a stack shows others, which were deleted or
    overwritten, it is padded when the file is read (`save` keeps them). If a write fails, the files
    before it stay.

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
        tuple or has a key that would come back as another one; and for a field ``file`` or
        ``allow_pickle``.
    """
    where = Path(path_of("folder", folder))
    if where.is_dir() and any(where.glob("*.npz")):
        raise ConfigError(f"{where} has npz files already: name an empty folder, or a new one")
    written: list[Path] = []
    for number, columns in enumerate(read_episodes(table)):
        structure = tree.structure_of(columns)
        names = ("/".join(map(str, path)) for path in tree.paths(structure))
        flat = dict(zip(names, tree.leaves(columns, structure), strict=True))
        if flat.keys() & {"file", "allow_pickle"} or tree.structure_of(nested(flat)) != structure:
            raise ConfigError(
                f"an npz file cannot keep the names of this table's fields ({table.schema}): "
                "fields are dicts, not tuples, keys are strings without '/', and none is 'file' or "
                "'allow_pickle'"
            )
        where.mkdir(parents=True, exist_ok=True)
        written.append(where / f"episode-{number:08d}.npz")
        np.savez(written[-1], **flat)
    return written


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
        return nested(flat)
