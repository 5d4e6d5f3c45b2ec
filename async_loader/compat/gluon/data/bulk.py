"""Batches gathered from arrays in bulk, without Python code for each item:
gluon calls it the nopython loader.

Detects whether a dataset consists of arrays. The gathering itself is the package's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from async_loader.compat.gluon.data.dataset import ArrayDataset, SimpleDataset, _SampledDataset
from async_loader.dataset.array_dataset import Columns, NoColumns, as_index, columns_of


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


def gather_of(dataset: Any) -> Gather:
    """Return what makes batches of a dataset in bulk. Raises NoColumns if that is impossible."""
    return Gather(*_resolved(dataset))


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
        raise NoColumns(f"{type(dataset).__name__} is neither a numpy array nor a tensor")
    return [columns_of(dataset)], True
