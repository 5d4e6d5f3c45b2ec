"""Batches of arrays that are gathered at once, without a look at single items: what gluon calls the nopython loader.

Finds out by itself whether a dataset is nothing but arrays; says why not, part by part. The gathering is the library's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from async_loader.compat.gluon.data import batchify
from async_loader.compat.gluon.data.dataset import ArrayDataset, SimpleDataset, _SampledDataset
from async_loader.dataset.array_dataset import Columns, NoColumns, as_index, columns_of


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


class Gather:
    """What makes a batch of a whole list of indices.

    Parameters
    ----------
    fields : sequence of Columns
        Of one array each, which may have chosen rows of their own.
    single : bool
        An item is one array rather than a tuple.
    """

    def __init__(self, fields: Sequence[Columns], single: bool) -> None:
        self._fields, self._single = fields, single
        self.item_bytes = sum(field.item_bytes for field in fields)

    def __call__(self, indices: Any, *, checked: bool = False) -> Any:
        """The collated batch, of tensors; None when the indices are not plain numbers.

        Raises
        ------
        IndexError
            When there is no such item; with ``checked`` nobody looks.
        """
        index = as_index(indices)
        if index is None or not len(index):
            return None
        found = [field.gather(index, checked=checked) for field in self._fields]
        return found[0] if self._single else found


def gather_of(dataset: Any) -> tuple[Gather | None, Verdict]:
    """How to make batches of a dataset in bulk, or why that cannot be done."""
    try:
        fields, single = _resolved(dataset)
    except NoColumns as reason:
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


def _resolved(dataset: Any) -> tuple[list[Columns], bool]:
    """Its fields, and whether an item is one array rather than a tuple of them. Raises NoColumns."""
    if type(dataset) is ArrayDataset:
        parts = [_resolved(part) for part in dataset._data]
        if len(parts) == 1:
            return parts[0]
        if not all(single for _, single in parts):
            raise NoColumns("its items are tuples within tuples")
        return [fields[0] for fields, _ in parts], False
    if type(dataset) is _SampledDataset:
        fields, single = _resolved(dataset._dataset)
        return [field.subset(dataset._indices) for field in fields], single
    if type(dataset) is SimpleDataset:
        return _resolved(dataset._data)
    if isinstance(dataset, tuple | list | dict):
        raise NoColumns(f"{_name(dataset)} is neither a numpy array nor a tensor")
    return [columns_of(dataset)], True


def _name(value: Any) -> str:
    return getattr(value, "__name__", None) or type(value).__name__
