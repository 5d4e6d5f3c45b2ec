"""Folders of npz files, one episode each."""

from __future__ import annotations

import glob
import lzma
import os
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError
from async_loader.names import stacklevel
from async_loader.offline.bad_data import Place
from async_loader.offline.episode import Episode
from async_loader.offline.fill import Import
from async_loader.offline.table_episodes import episodes_of, read_episodes
from async_loader.replay.array_types import Array
from async_loader.replay.buffer import ReplayBuffer
from async_loader.validation import path_of

_TUPLE = "_index_"
_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,  # zipfile's, for a method or a version that it does not know
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


def from_npz(path: str | os.PathLike[str], **options: Any) -> ReplayBuffer:
    """Fill a table from npz files, one episode a file, in the order of their names.

    A file holds the arrays that `from_episodes` takes. Nested fields have names with slashes, as
    ``obs/pixels``; a tuple's are ``obs/_index_0`` and so on. `to_npz` writes such files.

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
    wanted = Import.of(options)
    path = path_of("path", path)
    where, source = Path(path), Place(path)
    if where.is_dir():
        files = sorted(where.glob("*.npz"))
        if not files:
            raise source.error(
                None, "there are no npz files in this folder: correct the path, or give a pattern"
            )
    else:
        files = sorted(Path(one) for one in glob.glob(path))
        if not files:
            raise source.error(
                None, "there is no such folder or file: correct the path or the pattern"
            )
    given = ((Place(str(file), i), _read(file, i)) for i, file in enumerate(files))
    return wanted.run(given, source, episodes=len(files))  # type: ignore[no-any-return]


def to_npz(table: ReplayBuffer, folder: str | os.PathLike[str]) -> list[Path]:
    """Write each episode of a table into a file of its own, ``episode-00000000.npz`` and so on.

    An episode that goes on, or whose later steps are gone, is written as one that was truncated
    after the last step that the table can show. ``from_npz(folder, schema=table.schema)`` makes an
    equal table. The schema may be left out if it is the one that `from_episodes` takes from data:
    without stacks, with ``terminated`` and ``truncated``, and with ``next="next_obs"``. Without any
    ``next=`` it is needed, since the files of truncated episodes lack the observation after them.
    Files hold the steps that can be drawn: where a stack shows others, which were deleted or
    overwritten, it is padded when the file is read, and a UserWarning says so (`save` keeps them).

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
        If the folder has npz files, the table is one of another process, or a nested field has a
        key that would come back as another one.
    """
    schema = table.schema if isinstance(table, ReplayBuffer) else None
    if schema is not None:
        _check_keys(schema.structure)
    where = Path(path_of("folder", folder))
    if where.is_dir() and any(where.glob("*.npz")):
        raise ConfigError(f"{where} has npz files already: name an empty folder, or a new one")
    if schema is not None and (cut := episodes_of(table).cut):
        warnings.warn(
            f"the stacks of {cut} episodes show steps that were deleted or overwritten, which no "
            "file holds: a table that reads the files pads these stacks; save() keeps them",
            UserWarning,
            stacklevel=stacklevel(),
        )
    where.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    try:
        for number, episode in enumerate(read_episodes(table)):
            file = where / f"episode-{number:08d}.npz"
            written.append(file)
            _save(file, _flat(columns_of(episode)))
    except BaseException:
        for file in written:
            file.unlink(missing_ok=True)
        raise
    return written


def _check_keys(structure: tree.Structure, field: str = "") -> None:
    """Raise ConfigError for the first key that `_nested` would not make again."""
    if structure is None:
        return
    keys, wrong = structure.keys, None
    if not keys:
        wrong = "nothing in it"
    elif structure.kind is dict:
        others = [key for key in keys if not isinstance(key, str) or "/" in key]
        if field and not others and all(key.startswith(_TUPLE) for key in keys):
            others = list(keys)
        if others:
            wrong = f"the key {others[0]!r}"
    if wrong is not None:
        raise ConfigError(
            f"{f'field {field!r}' if field else 'the table'} has {wrong}, which an npz file cannot "
            f"keep: keys are strings without '/', and not all like '{_TUPLE}0'. Name it otherwise"
        )
    for key, child in zip(keys, structure.children, strict=True):
        _check_keys(child, f"{field}.{key}" if field else str(key))


def _save(file: Path, arrays: Mapping[str, Array]) -> None:
    """As ``np.savez``, which has parameters of its own among the names: ``file``."""
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as into:
                np.lib.format.write_array(into, np.asarray(array), allow_pickle=False)


def columns_of(episode: Episode) -> dict[str, Any]:
    """Return an episode as `from_episodes` takes it."""
    columns = {
        **episode.steps,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
    }
    if episode.following is not None:
        structure = tree.structure_of(columns["obs"])
        pairs = zip(
            tree.leaves(columns["obs"], structure),
            tree.leaves(episode.following, structure),
            strict=True,
        )
        columns["obs"] = tree.rebuild(
            structure, [np.concatenate([obs, after[-1:]]) for obs, after in pairs]
        )
    return columns


def _flat(value: Any, prefix: str = "") -> dict[str, Array]:
    if isinstance(value, Mapping):
        items = [(str(key), one) for key, one in value.items()]
    elif isinstance(value, tuple):
        items = [(f"{_TUPLE}{i}", one) for i, one in enumerate(value)]
    else:
        return {prefix: value}
    found: dict[str, Array] = {}
    for key, one in items:
        found |= _flat(one, f"{prefix}/{key}" if prefix else key)
    return found


def _nested(flat: Mapping[str, Array], place: Place) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, array in flat.items():
        *groups, leaf = name.split("/")
        into = made
        for depth, group in enumerate(groups):
            into = into.setdefault(group, {})
            if not isinstance(into, dict):
                raise _both("/".join(groups[: depth + 1]), name, place)
        if leaf in into:
            raise _both(name, f"{name}/{next(iter(into[leaf]))}", place)
        into[leaf] = array
    return {key: _tuples(value, key, place) for key, value in made.items()}


def _both(name: str, inner: str, place: Place) -> Exception:
    return place.error(
        name.replace("/", "."),
        f"it is an array, and there is {inner} within it: leave one of them out",
    )


def _tuples(value: Any, name: str, place: Place) -> Any:
    if not isinstance(value, dict):
        return value
    if not all(key.startswith(_TUPLE) for key in value):
        return {key: _tuples(one, f"{name}.{key}", place) for key, one in value.items()}
    keys = [f"{_TUPLE}{i}" for i in range(len(value))]
    if missing := [key for key in keys if key not in value]:
        raise place.error(
            f"{name}.{missing[0].removeprefix(_TUPLE)}",
            f"{missing[0]} is missing, there are {', '.join(value)}: number the arrays of a tuple "
            "from 0",
        )
    return tuple(_tuples(value[key], f"{name}.{i}", place) for i, key in enumerate(keys))


def _read(file: Path, number: int) -> dict[str, Any]:
    place = Place(str(file), number)
    try:
        with file.open("rb") as handle, np.load(handle, allow_pickle=False) as loaded:
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise place.error(None, "it is one array and not an npz file: use np.savez")
            flat = {name: _array(loaded, name, place) for name in loaded.files}
            return _nested(flat, place)
    except _UNREADABLE as error:
        from async_loader.offline.bad_data import BadData

        if isinstance(error, BadData):
            raise
        raise place.error(
            None, f"it cannot be read as npz ({error}): it is cut off, damaged or another format; "
            "copy or write it again"
        ) from None  # fmt: skip


def _array(loaded: Any, name: str, place: Place) -> Array:
    try:
        array: Array = loaded[name]
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        raise place.error(
            name.replace("/", "."),
            "it has dtype object, which a table cannot hold: convert it to bool, an integer, float "
            "or complex dtype, or leave it out",
        ) from None
    return array
