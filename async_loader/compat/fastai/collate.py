"""Collation by fastai's rules: those of torch, but sequences keep their type, and a batch has the
type of its samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from async_loader import tree
from async_loader.pipeline.batches import arena

Empty = Callable[[Sequence[int], Any], Any]
"""Maps ``(shape, dtype)`` to an uninitialised array."""


def fa_collate(batch: Sequence[Any]) -> Any:
    """Collate samples.

    ==========================  ==========================================================
    samples                     batch
    ==========================  ==========================================================
    tensors, arrays             stacked ``[B, ...]``, dtypes kept
    int, bool, float            int64, bool, float64 ``[B]``
    str, bytes                  a list
    mappings                    field by field; tuples within them become lists, as in torch
    tuples, namedtuples, lists  the same type, position by position
    ==========================  ==========================================================

    Raises
    ------
    TypeError
        For types without a rule.
    RuntimeError
        For different shapes, and for sequences of different lengths, which the original cuts to the
        shortest.
    """
    return _collate(batch, np.empty)


def collate_in_slot(batch: Sequence[Any]) -> Any:
    """`fa_collate` into memory that later batches reuse, for batches that are delivered at once."""
    return _collate(batch, arena.empty)


def _collate(batch: Sequence[Any], empty: Empty) -> Any:
    first = batch[0]
    if _is_sequence(first):
        return _like(first, [_collate(column, empty) for column in _positions(batch)])
    return _torch_collate(batch, empty)


def _torch_collate(batch: Sequence[Any], empty: Empty) -> Any:
    """Apply the rules for values within mappings, and for non-sequences."""
    first = batch[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(list(batch)) if empty is np.empty else arena.stack_tensors(batch)
    if isinstance(first, np.ndarray | np.generic) and not isinstance(first, str | bytes):
        return _stack_arrays(batch, empty)
    if isinstance(first, float):
        return torch.tensor(batch, dtype=torch.float64)
    if isinstance(first, int):
        return torch.tensor(batch)
    if isinstance(first, str | bytes):
        return batch
    if isinstance(first, Mapping):
        return _mapping(
            first, {key: _torch_collate([sample[key] for sample in batch], empty) for key in first}
        )
    if _is_sequence(first):
        columns = [_torch_collate(column, empty) for column in _positions(batch)]
        return columns if type(first) is tuple else _like(first, columns)
    raise TypeError(
        f"a batch of {type(first).__qualname__} cannot be collated: give tensors, arrays, numbers, "
        "strings, mappings or "
        "sequences of these, or a create_batch of your own"
    )


def fa_convert(value: Any) -> Any:
    """Convert one ready batch: arrays and numpy scalars become tensors,
    containers keep their type, the rest stays.
    """
    if _is_sequence(value):
        return _like(value, [fa_convert(item) for item in value])
    return torch_convert(value)


def torch_convert(value: Any) -> Any:
    """Apply the rules for values within mappings, and for non-sequences."""
    if isinstance(value, np.ndarray | np.generic):
        return torch.as_tensor(value) if value.dtype.kind in "biufc" else value
    if isinstance(value, Mapping):
        return _mapping(value, {key: torch_convert(item) for key, item in value.items()})
    if _is_sequence(value):
        items = [torch_convert(item) for item in value]
        return items if type(value) is tuple else _like(value, items)
    return value


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list | tuple) or (
        isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)
    )


def _like(first: Any, items: list[Any]) -> Any:
    """Put items into the container type of ``first``; a list if that cannot be built from items,
    such as a range.
    """
    kind = type(first)
    if kind is list:
        return items
    if tree.is_namedtuple(first):
        return kind(*items)
    try:
        return kind(items)
    except TypeError:
        return items


def _mapping(first: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(first) is dict:
        return items
    try:
        return type(first)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def _positions(batch: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return one tuple per position of the samples."""
    try:
        return list(zip(*batch, strict=True))
    except ValueError:
        lengths = sorted(set(map(len, batch)))
        raise RuntimeError(
            f"the samples of one batch have lengths {lengths}: give all of them the same fields"
        ) from None


def _stack_arrays(batch: Sequence[Any], empty: Empty) -> Any:
    first = batch[0]
    shape, dtype = first.shape, first.dtype
    if dtype.kind not in "biufc":
        raise TypeError(
            f"arrays of dtype {dtype} cannot be collated: give numbers, or lists of strings"
        )
    if (
        len(set(map(type, batch))) > 1
        or len({a.shape for a in batch}) > 1
        or len({a.dtype for a in batch}) > 1
    ):
        # promotes dtypes, or names the shapes that differ
        return torch.stack([torch.as_tensor(value) for value in batch])
    out = empty((len(batch), *shape), dtype)
    if shape:
        # Along the first axes: np.stack makes a view of every item, which costs more than the copy.
        np.concatenate(batch, out=out.reshape(len(batch) * shape[0], *shape[1:]), casting="no")
    else:
        out[...] = batch
    return torch.from_numpy(out)


def collate_error(e: BaseException, batch: Sequence[Any]) -> NoReturn:
    """Raise ``e`` again; if shapes differ within the batch, its text names the field,
    both samples and their shapes.
    """
    found = _mismatch(batch, "")
    if found is not None:
        e.args = (
            f"{e}\n{found}: make them equal in after_item, for example by resizing or padding them "
            "there",
        )
    raise e


def _mismatch(samples: Sequence[Any], path: str) -> str | None:
    """Describe the first field whose shapes differ."""
    first = samples[0]
    shape = getattr(first, "shape", None)
    if shape is not None:
        for number, other in enumerate(samples):
            if getattr(other, "shape", shape) != shape:
                what = (
                    f"field {path} ({type(first).__name__})"
                    if path
                    else f"the items ({type(first).__name__})"
                )
                return (
                    f"in one batch {what}: item 0 has shape {list(shape)}, item {number} has "
                    f"shape {list(other.shape)}"
                )
        return None
    for key in _keys(first):
        try:
            column = [sample[key] for sample in samples]
        except (KeyError, IndexError, TypeError):
            continue
        name = first._fields[key] if tree.is_namedtuple(first) else key
        found = _mismatch(column, f"{path}.{name}" if path else str(name))
        if found is not None:
            return found
    return None


def _keys(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value)
    return list(range(len(value))) if isinstance(value, list | tuple) else []


def retain_types(new: Any, like: Any) -> Any:
    """Convert ``new`` to the type of ``like`` if that is a subclass of its own type; lists and
    tuples also item by item.

    A batch with more parts than a sample repeats the sample's types.
    """
    if new is None or like is None:
        return new
    if type(new) in (list, tuple) and isinstance(like, list | tuple) and len(like):
        new = type(new)(
            retain_types(item, like[number % len(like)]) for number, item in enumerate(new)
        )
    elif isinstance(new, list | tuple) and isinstance(like, list | tuple) and len(like):
        items = [retain_types(item, like[number % len(like)]) for number, item in enumerate(new)]
        new = type(new)(*items) if tree.is_namedtuple(new) else type(new)(items)
    return _cast(new, like)


def _cast(new: Any, like: Any) -> Any:
    kind = type(like)
    if isinstance(new, kind) or not issubclass(kind, type(new)):
        return new
    if isinstance(new, torch.Tensor):
        result = new.as_subclass(kind)
    else:
        try:
            result = kind(*new) if tree.is_namedtuple(like) else kind(new)
        except TypeError:
            return new
    set_meta = getattr(result, "set_meta", None)
    if callable(set_meta):
        set_meta(like)
    return result
