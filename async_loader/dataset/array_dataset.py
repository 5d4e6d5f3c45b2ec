"""Datasets that are arrays, read a batch at a time: no Python per item. What comes out is what item
by item would give.

`columns_of` finds out whether a dataset is such, and says why not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from async_loader import tensors, tree
from async_loader.dataset.torch_collate import plain
from async_loader.errors import ConfigError
from async_loader.shm.array_pool import ArrayPool

if TYPE_CHECKING:
    import torch

Index = npt.NDArray[np.int64]
_BIG = 512 << 10
"""Bytes above which fresh memory costs more than the gather. See `async_loader.shm.array_pool`."""


class NoColumns(Exception):
    """Why this part of a dataset cannot be read in bulk. Never leaves the package."""


class Columns:
    """Arrays of one length, and how an item is made of them.

    Parameters
    ----------
    arrays : sequence of arrays or CPU tensors [n, ...]
    build : callable
        Makes the batch of the list of gathered tensors.
    index : int64 array | None
        Which rows there are, in which order; ``None``: all.
    """

    def __init__(
        self, arrays: Sequence[Any], build: Callable[[list[Any]], Any], index: Index | None = None
    ) -> None:
        self._takers = [_taker(array) for array in arrays]
        self._build = build
        self._index = index
        self._rows = len(arrays[0])
        self.item_bytes = sum(_nbytes(array) for array in arrays) // max(1, self._rows)

    def __len__(self) -> int:
        return self._rows if self._index is None else len(self._index)

    def subset(self, indices: object) -> Columns:
        """Of these items, in this order. Raises NoColumns, IndexError."""
        index = as_index(indices)
        if index is None:
            raise NoColumns("the indices of its Subset are no integers")
        index = self._in_range(index)
        self._index = index.copy() if self._index is None else self._index[index]
        return self

    def gather(self, index: Index) -> Any:
        """The batch of these items.

        Parameters
        ----------
        index : int64 array [batch]
            Negative ones count from the end.

        Raises
        ------
        IndexError
        """
        return self.gather_checked(self._in_range(index))

    def gather_checked(self, index: Index) -> Any:
        """As `gather`, of indices that are known to be in range and not negative."""
        if self._index is not None:
            index = self._index[index]
        return self._build([take(index) for take in self._takers])

    def _in_range(self, index: Index) -> Index:
        n = len(self)
        if len(index) and (index.min() < 0 or index.max() >= n):
            if index.min() < -n or index.max() >= n:
                worst = int(index.max()) if index.max() >= n else int(index.min())
                raise IndexError(f"index {worst} is out of bounds for a dataset of {n} items")
            index = np.where(index < 0, index + n, index)
        return index


def columns_of(dataset: Any) -> Columns:
    """The dataset's columns.

    Parameters
    ----------
    dataset : array | CPU tensor | dict or tuple of them | TensorDataset | Subset of one of these,
        but of a dict or tuple

    Raises
    ------
    NoColumns
        With the reason.
    """
    torch_data: Any = tree.loaded("torch.utils.data")
    if torch_data is not None and type(dataset) is torch_data.Subset:
        if isinstance(dataset.dataset, dict | tuple):  # torch takes its items by their places
            raise NoColumns("its Subset is of a dict or tuple")
        return columns_of(dataset.dataset).subset(dataset.indices)
    if torch_data is not None and type(dataset) is torch_data.TensorDataset:
        return Columns(_checked(enumerate(dataset.tensors)), list)
    if isinstance(dataset, np.ndarray) or tensors.is_tensor(dataset):
        return Columns(_checked([("", dataset)]), operator.itemgetter(0))
    if type(dataset) is tuple:
        return Columns(_checked(enumerate(dataset)), list)
    if isinstance(dataset, dict):
        keys = list(dataset)
        return Columns(
            _checked(dataset.items()), lambda values: dict(zip(keys, values, strict=True))
        )
    raise NoColumns(
        f"{type(dataset).__name__} is no array, tensor, TensorDataset, nor a dict or tuple of "
        "arrays"
    )


def as_index(indices: object) -> Index | None:
    """A batch of integers as an array; ``None`` when it is something else."""
    if isinstance(indices, list | tuple | range):
        if len(indices) and type(indices[0]) not in (int, np.int64):
            return None
        try:
            indices = np.array(indices, None if len(indices) else np.int64)
        except (ValueError, OverflowError):
            return None
    if not isinstance(indices, np.ndarray) or indices.ndim != 1 or indices.dtype.kind not in "iu":
        return None
    return indices.astype(np.int64, copy=False)


def _checked(parts: Iterable[tuple[object, Any]]) -> list[Any]:
    columns = []
    for name, column in parts:
        _check(f"column {name!r}" if name != "" else "it", column)
        columns.append(column)
    if not columns:
        raise NoColumns("it has no columns")
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise ConfigError(f"columns are of unequal length: they have {sorted(lengths)} rows")
    return columns


def _check(name: str, column: Any) -> None:
    if tensors.is_tensor(column):
        import torch

        if type(column) is not torch.Tensor:
            raise NoColumns(f"{name} is a {type(column).__name__}, whose class an item keeps")
        if (
            column.device.type != "cpu"
            or column.layout is not torch.strided
            or column.requires_grad
            or column.is_quantized
        ):
            raise NoColumns(f"{name} is no plain tensor on the CPU without a gradient")
        if tensors.numpy_dtype(column.dtype) is None and column.dtype is not torch.bfloat16:
            raise NoColumns(f"{name} has dtype {column.dtype}")
    elif type(column) in (np.ndarray, np.memmap):
        if not plain(column.dtype, column.ndim - 1):
            raise NoColumns(f"{name} has dtype {column.dtype}")
    else:
        raise NoColumns(f"{name} is {type(column).__name__}, not an array or a tensor")
    if not column.ndim:
        raise NoColumns(f"{name} is a single number")


def _nbytes(array: npt.NDArray[Any] | torch.Tensor) -> int:
    return int(array.nbytes)


def _taker(array: npt.NDArray[Any] | torch.Tensor) -> Callable[[Index], Any]:
    """Gathers rows of one column as a tensor of their own."""
    if tensors.is_tensor(array):
        if tensors.numpy_dtype(array.dtype) is None or array.is_conj() or array.is_neg():
            return _TensorRows(array)
        array = tensors.to_numpy(array)
    if isinstance(array, np.memmap):
        array = array.view(np.ndarray)
    return _Rows(array)


class _TensorRows:
    """What numpy cannot: bfloat16, and complex tensors that are conjugated when they are read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __call__(self, index: Index) -> Any:
        import torch

        return torch.index_select(self._tensor, 0, torch.from_numpy(index))


class _Rows:
    """Rows of an array, into memory that an earlier batch has left when they are many bytes."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array
        self._shape = array.shape[1:]
        self._row_bytes = array.nbytes // max(1, len(array))
        self._blocks = ArrayPool()
        # Of any other array numpy's take would first make a copy, of the whole of it.
        self._takes = array.flags.c_contiguous and array.flags.aligned
        self._take = array.take
        self._few = (_BIG - 1) // max(1, self._row_bytes) if self._takes else -1

    def __call__(self, index: Index) -> Any:
        # For small rows what stands here takes as long as the copy, so the usual case comes first.
        if len(index) <= self._few:
            return tensors.to_tensor(self._take(index, 0, None, "clip"))
        array = self._array
        if self._row_bytes * len(index) < _BIG:
            out = np.empty((len(index), *self._shape), array.dtype)
        else:
            out = self._blocks.array((len(index), *self._shape), array.dtype)
        if self._takes:
            # mode="clip" spares numpy's own bounds check, for which it would buffer the output.
            array.take(index, axis=0, out=out, mode="clip")
        else:
            out[...] = array[index]
        return tensors.to_tensor(out)


class Items:
    """A dict or a tuple of columns as a dataset of items. A column is anything that can be
    indexed.
    """

    def __init__(self, columns: Mapping[str, Any] | tuple[Any, ...]) -> None:
        self.columns = columns
        named = columns.items() if isinstance(columns, Mapping) else enumerate(columns)
        rows = {name: len(column) for name, column in named}
        if len(set(rows.values())) != 1:
            said = ", ".join(f"{name!r} has {n}" for name, n in rows.items())
            raise ConfigError(f"columns are of unequal length: {said} rows")

    def __len__(self) -> int:
        return len(
            next(iter(self.columns.values() if isinstance(self.columns, Mapping) else self.columns))
        )

    def __getitem__(self, i: int) -> Any:
        if isinstance(self.columns, Mapping):
            return {key: column[i] for key, column in self.columns.items()}
        return tuple(column[i] for column in self.columns)


def is_columns(dataset: Any) -> TypeGuard[Any]:
    """Whether a dict or a tuple is meant as columns: its values are arrays, tensors or lists; of a
    tuple not all are lists, and a dict of lists has names as keys.
    """
    named = isinstance(dataset, dict)
    if not (named or type(dataset) is tuple) or not dataset:
        return False
    values = list(dataset.values() if named else dataset)
    arrays = [isinstance(v, np.ndarray) or tensors.is_tensor(v) for v in values]
    if not all(a or isinstance(v, list) for a, v in zip(arrays, values, strict=True)):
        return False
    return any(arrays) or (named and all(isinstance(key, str) for key in dataset))
