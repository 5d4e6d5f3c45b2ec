"""Columns of parquet files as arrays, with errors that name the file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from async_loader.errors import MissingExtra
from async_loader.offline.bad_data import Place

_AGAIN = "copy or download it again"


def read(path: Path, names: Sequence[str] | None = None, beside: Sequence[str] = ()) -> Any:
    """Read columns of a file; by default all. Return a table of pyarrow.

    ``beside``: columns that may be missing.

    Raises
    ------
    BadData
        If it is not there, cannot be read, or lacks a column.
    MissingExtra
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra(
            'pyarrow is not installed: pip install "async_loader[lerobot]", or pip install pyarrow'
        ) from error
    place = Place(str(path))
    if not path.is_file():
        raise place.error(None, f"there is no such file: {_AGAIN}")
    try:
        there = parquet.read_schema(path).names
        missing = [name for name in names or () if name not in there]
        if missing:
            raise place.error(
                missing[0], f"there is no such column, it has {', '.join(there[:20])}"
            )
        wanted = None if names is None else [*names, *(one for one in beside if one in there)]
        return parquet.read_table(path, columns=wanted)
    except (OSError, pyarrow.ArrowException) as error:
        raise place.error(
            None, f"it cannot be read as parquet ({error}): it is cut off or damaged, {_AGAIN}"
        ) from None


def array_of(table: Any, name: str, shape: tuple[int, ...], path: Path) -> npt.NDArray[Any]:
    """Return a column of numbers as ``[rows, *shape]``.

    Raises
    ------
    BadData
        For values that are missing, or of another shape.
    """
    column, place = table.column(name), Place(str(path))
    if column.null_count:
        raise place.error(name, f"{column.null_count} of {len(column)} values are missing")
    values = column.combine_chunks()
    while hasattr(values, "flatten") and hasattr(values.type, "value_type"):
        values = values.flatten()
    array: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    if len(array) != len(column) * math.prod(shape) or array.dtype.kind not in "biuf":
        raise place.error(
            name,
            f"{len(column)} rows hold {len(array)} values of {array.dtype}, and meta/info.json "
            f"says {list(shape)} for each: correct the shape there, or {_AGAIN}",
        )
    return array.reshape(len(column), *shape)
