"""Collation by fastai's rules: those of torch, but sequences keep their type, and a batch has the
type of its samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch.utils.data import default_convert

from async_loader import tree
from async_loader.dataset import torch_collate
from async_loader.pipeline.batches import arena


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
    with arena.within(None):
        return collate_in_slot(batch)


def collate_in_slot(batch: Sequence[Any]) -> Any:
    """`fa_collate` into memory that later batches reuse, for batches that are delivered at once."""
    first = batch[0]
    if not _is_sequence(first):
        return torch_collate.collate(batch)
    lengths = sorted(set(map(len, batch)))
    if len(lengths) > 1:
        raise RuntimeError(
            f"the samples of one batch have lengths {lengths}: give all of them the same fields"
        )
    return _like(first, [collate_in_slot(column) for column in zip(*batch, strict=True)])


def fa_convert(value: Any) -> Any:
    """Convert one ready batch: arrays and numpy scalars become tensors,
    containers keep their type, the rest stays.
    """
    if _is_sequence(value):
        return _like(value, [fa_convert(item) for item in value])
    return default_convert(value)  # type: ignore[no-untyped-call]


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(
        value, str | bytes | bytearray | memoryview
    )


def _like(first: Any, items: list[Any]) -> Any:
    """Put items into the container type of ``first``; a list if that cannot be built from items,
    such as a range.
    """
    kind = type(first)
    try:
        return kind(*items) if tree.is_namedtuple(first) else kind(items)
    except TypeError:
        return items


def collate_error(e: BaseException, batch: Sequence[Any]) -> NoReturn:
    """Raise ``e`` again; its text names the field that cannot be collated, and both samples."""
    found = torch_collate.misfit(batch, "")
    if found is not None:
        e.args = (
            f"{e}\n{found}: make them equal in after_item, for example by resizing or padding them "
            "there",
        )
    raise e


def retain_types(new: Any, like: Any) -> Any:
    """Convert ``new`` to the type of ``like`` if that is a subclass of its own type; lists and
    tuples also item by item.

    A batch with more parts than a sample repeats the sample's types.
    """
    if new is None or like is None:
        return new
    if isinstance(new, list | tuple) and isinstance(like, list | tuple) and len(like):
        items = [retain_types(item, like[number % len(like)]) for number, item in enumerate(new)]
        new = _like(new, items)
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
