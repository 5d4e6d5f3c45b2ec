"""Types that survive collation: a batch gets the type of its samples."""

from __future__ import annotations

from typing import Any

import torch

from async_loader import tree


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
