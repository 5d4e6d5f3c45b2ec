"""Batches of arrays that are gathered at once, without a look at single items: what gluon calls the nopython loader.

Finds out by itself whether a dataset is nothing but arrays; says why not, part by part. Holds views, never copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors
from async_loader.compat.gluon.data import batchify
from async_loader.compat.gluon.data.dataset import ArrayDataset, SimpleDataset, _SampledDataset
from async_loader.pipeline import arena

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Verdict:
    """Whether one part of a loader can do without Python for each item, and if not, why."""

    part: str
    reason: str = ""

    @property
    def passed(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        return f"[{self.part}: {'pass' if self.passed else 'fail, ' + self.reason}]"


class Field:
    """An array, and which of its rows are the items."""

    def __init__(self, array: npt.NDArray[Any], rows: Indices | None = None) -> None:
        self.array, self.rows = array, rows
        self._length = len(array) if rows is None else len(rows)
        self._flat = array.flags.c_contiguous

    def of(self, rows: Sequence[int]) -> Field:
        """Items of the items."""
        chosen = np.asarray(rows, np.int64).reshape(-1)
        return Field(self.array, chosen if self.rows is None else self.rows[chosen])

    def gather(self, index: Indices) -> npt.NDArray[Any] | None:
        """The items ``[len(index), ...]``; None when one of them is not there: the general way says which."""
        if not -self._length <= index.min() or not index.max() < self._length:
            return None
        rows = index if self.rows is None else self.rows[index]
        array = self.array
        if not self._flat:  # np.take would copy the whole array first
            return array[rows]
        out = arena.empty((len(rows), *array.shape[1:]), array.dtype)
        return np.take(array, rows, axis=0, out=out, mode="wrap")  # with mode="raise" it would go through another buffer


class Gather:
    """What makes a batch of a whole list of indices."""

    def __init__(self, fields: Sequence[Field], single: bool) -> None:
        self._fields, self._single = fields, single

    def __call__(self, indices: Any) -> Any:
        """The collated batch as numpy arrays; None when the indices are not plain numbers of items that there are."""
        index = np.asarray(indices)
        if index.ndim != 1 or not len(index) or index.dtype.kind not in "iu":
            return None
        found: list[npt.NDArray[Any]] = []
        for field in self._fields:
            one = field.gather(index)
            if one is None:
                return None
            found.append(one)
        return found[0] if self._single else found


class _Unfit(Exception):
    """This dataset has to be asked item by item, and why."""


def gather_of(dataset: Any) -> tuple[Gather | None, Verdict]:
    """How to make batches of a dataset in bulk, or why that cannot be done."""
    try:
        fields, single = _resolved(dataset)
    except _Unfit as reason:
        return None, Verdict("dataset", str(reason))
    return Gather(fields, single), Verdict("dataset")


def of_batchify(fn: Any) -> Verdict:
    """Whether a batchify function does no more than put arrays on top of each other."""
    if fn in (None, batchify.default_batchify_fn, batchify.default_mp_batchify_fn) or type(fn) is batchify.Stack:
        return Verdict("batchify_fn")
    return Verdict("batchify_fn", f"{_name(fn)} is Python: only Stack and the default are done in bulk")


def of_sampler(sampler: Any) -> Verdict:
    """Any sampler will do: what it yields is looked at."""
    return Verdict("batch_sampler")


def _resolved(dataset: Any) -> tuple[list[Field], bool]:
    """Its fields, and whether an item is one array rather than a tuple of them."""
    if type(dataset) is ArrayDataset:
        parts = [_resolved(part) for part in dataset._data]
        if len(parts) == 1:
            return parts[0]
        if not all(single for _, single in parts):
            raise _Unfit("its items are tuples within tuples")
        return [fields[0] for fields, _ in parts], False
    if type(dataset) is _SampledDataset:
        fields, single = _resolved(dataset._dataset)
        return [field.of(dataset._indices) for field in fields], single
    if type(dataset) is SimpleDataset:
        return _resolved(dataset._data)
    return [Field(_array(dataset))], True


def _array(data: Any) -> npt.NDArray[Any]:
    if type(data) not in (np.ndarray, np.memmap, *tensors.tensor_types()):
        raise _Unfit(f"{_name(data)} is neither a numpy array nor a tensor")
    if tensors.is_tensor(data):
        if data.device.type != "cpu" or data.requires_grad or data.is_sparse or tensors.numpy_dtype(data.dtype) is None:
            raise _Unfit(f"a tensor of {data.dtype} on {data.device}{' that requires a gradient' if data.requires_grad else ''}")
        data = tensors.to_numpy(data)
    if not data.ndim or data.dtype.kind not in "biufc":
        raise _Unfit(f"an array of dtype {data.dtype} with {data.ndim} axes")
    array: npt.NDArray[Any] = data
    return array


def _name(value: Any) -> str:
    return getattr(value, "__name__", None) or type(value).__name__
