"""HDF5 files, opened and read with errors that name the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from async_loader.errors import MissingExtra
from async_loader.offline.bad_data import BadData, Place

_OF_DAMAGE = (OSError, KeyError, RuntimeError, TypeError, ValueError, AttributeError)
"""What h5py raises for damage, as for a name that is no text, or a type that it does not know."""


def h5py_module() -> Any:
    """Return h5py. Raises MissingExtra."""
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra(
            'h5py is not installed: pip install "async_loader[offline]", or pip install h5py'
        ) from error
    return h5py


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a file to read.

    Raises
    ------
    BadData
        If it is not there, or cannot be opened. Reads of it: `reading`.
    MissingExtra
    """
    h5py, place = h5py_module(), Place(str(path))
    if path.is_dir():
        raise place.error(None, "it is a folder: name one file in it")
    if not path.is_file():
        raise place.error(None, "there is no such file: correct the path, or download it first")
    try:
        file = h5py.File(path, "r")
    except _OF_DAMAGE as error:
        raise place.error(
            None, f"it cannot be read as HDF5 ({error}): it is cut off, damaged or another "
            "format; copy or download it again"
        ) from None  # fmt: skip
    with file:
        yield file


@contextlib.contextmanager
def reading(name: str | None, place: Place) -> Iterator[None]:
    """Turn what h5py raises for a damaged file into BadData. Holds reads only: what a table raises
    has another cause.
    """
    try:
        yield
    except BadData:
        raise
    except _OF_DAMAGE as error:
        raise place.error(
            name,
            f"it cannot be read ({error}): the file is damaged, copy or download it again",
        ) from None


def value_of(node: Any, name: str, place: Place) -> Any:
    """Return a data set's array, or a group as a dict; Minari's groups of ``_index_0`` as a tuple.

    Raises
    ------
    BadData
        If it cannot be read.
    """
    with reading(name, place):
        return _value_of(node, name, place)


def _value_of(node: Any, name: str, place: Place) -> Any:
    if isinstance(node, h5py_module().Group):
        keys = list(node)
        if keys and all(key.startswith("_index_") for key in keys):
            return tuple(
                value_of(_at(node, f"_index_{i}", f"{name}.{i}", place), f"{name}.{i}", place)
                for i in range(len(keys))
            )
        return {key: value_of(node[key], f"{name}.{key}", place) for key in keys}
    return node[()]


def _at(group: Any, key: str, name: str, place: Place) -> Any:
    if key not in group:
        raise place.error(name, f"{key} is missing: the file is incomplete, download it again")
    return group[key]
