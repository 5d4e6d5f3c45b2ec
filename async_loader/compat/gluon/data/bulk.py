"""Batches gathered from arrays in bulk, without Python code for each item:
gluon calls it the nopython loader.

Detects whether a dataset consists of arrays, and reports why not, part by part. The gathering
itself is the package's own.
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
    """Whether one part of a loader needs no Python code for each item,
    and the reason if it does.
    """

    part: str
    reason: str = ""

    @property
    def passed(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        return f"[{self.part}: {'pass' if self.passed else 'fail, ' + self.reason}]"


class Gather:
    """Gathers a batch for a whole list of indices.

    Parameters
    ----------
    fields : sequence of Columns
        Of one array each, possibly with a selection of rows.
    single : bool
        An item is one array rather than a tuple.
    """

    def __init__(self, fields: Sequence[Columns], single: bool) -> None:
        self._fields, self._single = fields, single
        self.item_bytes = sum(field.item_bytes for field in fields)

    def __call__(self, indices: Any, *, checked: bool = False) -> Any:
        """Return the collated batch of tensors; ``None`` if the indices are not plain numbers.

        Raises
        ------
        IndexError
            If an index is out of range; not checked with ``checked``.
        """
        index = as_index(indices)
        if index is None or not len(index):
            return None
        found = [field.gather(index, checked=checked) for field in self._fields]
        return found[0] if self._single else found


def gather_of(dataset: Any) -> tuple[Gather | None, Verdict]:
    """Return how to make batches of a dataset in bulk, or the reason why that is impossible."""
    try:
        fields, single = _resolved(dataset)
    except NoColumns as reason:
        return None, Verdict("dataset", str(reason))
    return Gather(fields, single), Verdict("dataset")


def of_batchify(fn: Any) -> Verdict:
    """Check whether a batchify function only stacks arrays."""
    if (
        fn in (None, batchify.default_batchify_fn, batchify.default_mp_batchify_fn)
        or type(fn) is batchify.Stack
    ):
        return Verdict("batchify_fn")
    return Verdict(
        "batchify_fn", f"{_name(fn)} is Python: only Stack and the default are done in bulk"
    )


def of_sampler(sampler: Any) -> Verdict:
    """Accept any sampler: only its output matters."""
    return Verdict("batch_sampler")


def _resolved(dataset: Any) -> tuple[list[Columns], bool]:
    """Return the fields, and whether an item is one array rather than a tuple of them.

    Raises NoColumns.
    """
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
