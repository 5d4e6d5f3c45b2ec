"""Explanations of failed collation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from async_loader import tree


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
