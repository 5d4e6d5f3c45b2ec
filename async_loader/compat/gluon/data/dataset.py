"""gluon's datasets, those derived by their methods, and what gathers arrays in bulk."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

from async_loader.compat.gluon.data.sampler import (
    FilterSampler,
    Sampler,
    SequentialSampler,
    require,
)
from async_loader.dataset.array_dataset import Columns, NoColumns, columns_of
from async_loader.errors import ConfigError


def gather_of(dataset: Any) -> Columns:
    """Return what makes batches of a dataset in bulk. Raises NoColumns if that is impossible."""
    if type(dataset) is _SampledDataset:
        return gather_of(dataset._dataset).subset(dataset._indices)
    if type(dataset) is SimpleDataset:
        return gather_of(dataset._data)
    if type(dataset) is ArrayDataset:
        parts = dataset._data
        return gather_of(parts[0]) if len(parts) == 1 else columns_of(tuple(parts))
    if isinstance(dataset, tuple | list | dict):
        raise NoColumns(f"{type(dataset).__name__} is neither a numpy array nor a tensor")
    return columns_of(dataset)


class Dataset:
    """Base class: ``dataset[i]`` is the i-th item, ``len(dataset)`` the number of items."""

    def __getitem__(self, idx: Any) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__} has no __getitem__: a dataset gives its items by index"
        )

    def __len__(self) -> int:
        raise NotImplementedError(
            f"{type(self).__name__} has no __len__: a dataset knows how many items it has"
        )

    def filter(self, fn: Callable[[Any], object]) -> Dataset:
        """Return the items for which ``fn`` is true.

        All are read now; a lazy transform computes them again on access.
        """
        return _SampledDataset(self, FilterSampler(fn, self))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Return part ``index`` of ``num_shards`` consecutive parts;
        the first parts take the remainder.

        Raises
        ------
        AssertionError
            Unless ``0 <= index < num_shards``.
        """
        require(num_shards > 0, f"num_shards is {num_shards}: it is at least 1")
        require(
            0 <= index < num_shards,
            f"index is {index}: with {num_shards} shards it is 0 to {num_shards - 1}",
        )
        size, rest = divmod(len(self), num_shards)
        start = size * index + min(index, rest)
        return _SampledDataset(self, SequentialSampler(size + (index < rest), start))

    def take(self, count: int | None) -> Dataset:
        """Return the first ``count`` items; all of them for None or a larger number."""
        if count is not None and count < 0:
            raise ConfigError(f"count is {count}: it is at least 0, or None for all items")
        return _SampledDataset(
            self, SequentialSampler(len(self) if count is None else min(count, len(self)))
        )

    def sample(self, sampler: Sampler) -> Dataset:
        """Return the items that ``sampler`` lists; it is iterated once, now.

        Raises
        ------
        TypeError
            If it is not a `Sampler`.
        """
        if not isinstance(sampler, Sampler):
            raise TypeError(
                f"sampler is of {type(sampler).__name__}: it has to be of a class made of "
                "gluon.data.Sampler"
            )
        return _SampledDataset(self, sampler)

    def transform(self, fn: Callable[..., Any], lazy: bool = True) -> Dataset:
        """Return the items after ``fn``, which gets the fields of a tuple as separate arguments.

        Parameters
        ----------
        fn : callable
        lazy : bool
            Apply on each access; otherwise to all items once, now.
        """
        lazily = _LazyTransformDataset(self, fn)
        return lazily if lazy else SimpleDataset([lazily[i] for i in range(len(lazily))])

    def transform_first(self, fn: Callable[[Any], Any], lazy: bool = True) -> Dataset:
        """Like `transform`, for the first field only: the image, not its label."""
        return self.transform(_First(fn), lazy)


class SimpleDataset(Dataset):
    """A list, an array or any other sequence, with the methods of a `Dataset`."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, idx: Any) -> Any:
        return self._data[idx]


class ArrayDataset(Dataset):
    """Arrays, lists or datasets side by side: item i is ``(x1[i], x2[i], ...)``,
    or ``x1[i]`` for a single one.

    Raises
    ------
    AssertionError
        If there are no arrays, or their lengths differ.
    """

    def __init__(self, *args: Any) -> None:
        require(args, "ArrayDataset of nothing: it needs one array or more")
        lengths = [len(data) for data in args]
        require(
            len(set(lengths)) == 1,
            f"arrays of {', '.join(map(str, lengths))} items: all need the same length",
        )
        self._length = lengths[0]
        self._data = list(args)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, idx: Any) -> Any:
        if len(self._data) == 1:
            return self._data[0][idx]
        return tuple(data[idx] for data in self._data)


class _SampledDataset(Dataset):
    """Selected items of another dataset."""

    def __init__(self, dataset: Any, sampler: Sampler) -> None:
        self._dataset, self._sampler = dataset, sampler
        self._indices = list(sampler)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, idx: Any) -> Any:
        return self._dataset[self._indices[idx]]


class _LazyTransformDataset(Dataset):
    """Another dataset's items after a function."""

    def __init__(self, data: Any, fn: Callable[..., Any]) -> None:
        self._data, self._fn = data, fn

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, idx: Any) -> Any:
        item = self._data[idx]
        return self._fn(*item) if isinstance(item, tuple) else self._fn(item)


class _First:
    """A function of the first field; a class, so that it can be pickled if its function can."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self._fn = fn

    def __call__(self, first: Any, *rest: Any) -> Any:
        return (self._fn(first), *rest) if rest else self._fn(first)


_MAGIC = struct.pack("<I", 0xCED7230A)
_HEAD = struct.Struct("<4sI")
_WHOLE, _LAST = 0, 3
_LENGTH_BITS = 29


class RecordFileDataset(Dataset):
    """The records of ``name.rec`` as bytes, in the order of ``name.idx``.

    Any number of processes and threads may read at the same time: each read opens the file.

    Parameters
    ----------
    filename : str
        The ``.rec`` file; the ``.idx`` file is beside it.

    Raises
    ------
    FileNotFoundError
    ConfigError
        If the index is invalid, or a record is not at its position.
    """

    def __init__(self, filename: str | os.PathLike[str]) -> None:
        self.filename = os.fspath(filename)
        self.idx_file = os.path.splitext(self.filename)[0] + ".idx"
        self._starts = _starts(self.idx_file)
        os.stat(self.filename)  # here, not at the first item

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, idx: Any) -> bytes:
        parts = []
        with open(self.filename, "rb") as file:
            file.seek(self._starts[idx])
            while True:
                kind, part = self._record(file)
                parts.append(part)
                if kind in (_WHOLE, _LAST):
                    return _MAGIC.join(parts)

    def _record(self, file: BinaryIO) -> tuple[int, bytes]:
        """Return kind and data of the record at the file's position, and go to the next."""
        at, head = file.tell(), file.read(_HEAD.size)
        magic, word = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0)
        if magic != _MAGIC:
            raise ConfigError(
                f"{self.filename} has no record at byte {at}: {self.idx_file} belongs to another "
                "file, or it was cut"
            )
        length = word & ((1 << _LENGTH_BITS) - 1)
        data = file.read(length)
        if len(data) < length:
            raise ConfigError(
                f"{self.filename} ends within the record at byte {at}: {len(data)} of {length} "
                "bytes are there"
            )
        file.seek(-length % 4, os.SEEK_CUR)
        return word >> _LENGTH_BITS, data


def _starts(path: str) -> list[int]:
    """Return the positions of the records: the second word of each line."""
    with open(path) as lines:
        words = [line.split() for line in lines if line.strip()]
    try:
        return [int(start) for _, start in words]
    except ValueError as error:
        raise ConfigError(
            f"{path} is not an index of records: a line is a key, a tab and a file position"
        ) from error
