"""Samples into batches by torch's rules, faster, and into the batch's slot where there is one.
Holds no state.

The rules are those of ``torch.utils.data.default_collate``, and what was registered with it is
kept: only the stacking of plain arrays and tensors is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from async_loader import tensors
from async_loader.pipeline.batches import arena

if TYPE_CHECKING:
    import torch

_PLAIN = frozenset(
    map(np.dtype, ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "f2", "f4", "f8", "c8", "c16"])
)
"""Dtypes that mean the same for torch, item by item and as an array. Not uint64, of which torch
takes arrays alone.
"""


def plain(dtype: np.dtype[Any], ndim: int) -> bool:
    """Whether torch takes arrays of this dtype and number of dimensions (0: numbers of it) as
    they are.
    """
    return dtype.isnative and (dtype in _PLAIN or (ndim > 0 and dtype == np.uint64))


def default_collate(batch: Sequence[Any]) -> Any:
    """As ``torch.utils.data.default_collate``: same structure, dtypes, values and types of errors.

    An error also names the field, and the samples that do not fit each other.

    Parameters
    ----------
    batch : sequence of samples
    """
    try:
        return collate(batch)
    except Exception as error:
        said = misfit(batch, "") if isinstance(batch, list | tuple) and batch else None
        if said is None:
            raise
        _raise_with(said, error)


def collate(batch: Sequence[Any]) -> Any:
    """Collate by torch's rules, without an explanation of errors."""
    from torch.utils.data._utils.collate import collate

    return collate(batch, collate_fn_map=_rules())


# -- samples that do not fit each other ------------------------------------------------------------

_CONTAINERS = (Mapping, list, tuple)


def _raise_with(said: str, error: Exception) -> NoReturn:
    try:
        named = type(error)(f"{said}: {error.args[0] if error.args else error}")
    except Exception:  # its arguments are others
        error.add_note(said)
        raise error from None
    raise named from error


def misfit(samples: Sequence[Any], name: str) -> str | None:
    """The innermost field that cannot be collated, and why; ``None`` if all can be."""
    first = samples[0]
    if isinstance(first, Mapping) and all(isinstance(sample, Mapping) for sample in samples):
        for key in first:
            path = f"{name}.{key}" if name else str(key)
            for i, sample in enumerate(samples):
                if key not in sample:
                    return f"field {path!r} is in sample 0 of the batch, and not in sample {i}"
            if said := misfit([sample[key] for sample in samples], path):
                return said
        return None
    if isinstance(first, list | tuple) and all(
        isinstance(sample, list | tuple) and len(sample) == len(first) for sample in samples
    ):
        for i, column in enumerate(zip(*samples, strict=True)):
            if said := misfit(column, f"{name}.{i}" if name else str(i)):
                return said
        return None
    try:
        collate(samples)
    except Exception:
        return f"{f'field {name!r}' if name else 'a sample'} is {_kinds(samples)}"
    return None


def _kinds(samples: Sequence[Any]) -> str:
    kinds = list(map(_kind, samples))
    other = next((i for i, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is None:
        return f"{kinds[0]} in each sample of the batch"
    return f"{kinds[0]} in sample 0 of the batch and {kinds[other]} in sample {other}"


def _kind(value: object) -> str:
    kind = type(value).__name__
    if isinstance(value, _CONTAINERS):
        return f"{kind} of {len(value)}"
    try:
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"  # type: ignore[attr-defined]
    except Exception:  # it has none, or torch refuses to tell
        return kind


# -- torch's rules, with our stacking --------------------------------------------------------------


_known: tuple[Any, dict[Any, Callable[..., Any]]] | None = None


def _rules() -> dict[Any, Callable[..., Any]]:
    """Torch's table with our stacking in it; made again after a registration."""
    global _known
    import torch
    from torch.utils.data._utils import collate as theirs

    table: dict[Any, Any] = theirs.default_collate_fn_map
    seen = tuple(table.items())
    if _known is None or _known[0] != seen:
        mine = dict(table)
        scalars = next((key for key in table if isinstance(key, tuple) and np.number in key), None)
        for key, was, ours in (
            (torch.Tensor, theirs.collate_tensor_fn, _stack_tensors),
            (np.ndarray, theirs.collate_numpy_array_fn, _stack_arrays),
            (scalars, theirs.collate_numpy_scalar_fn, _stack_numbers),
        ):
            if table.get(key) is was:
                mine[key] = ours
        _known = (seen, mine)
    return _known[1]


def _stack_tensors(
    batch: Sequence[torch.Tensor], *, collate_fn_map: dict[Any, Any] | None = None
) -> Any:
    import torch
    from torch.utils.data._utils.collate import collate_tensor_fn

    first = batch[0]
    strided = type(first) is torch.Tensor and first.layout is torch.strided and not first.is_nested
    if strided and tensors.numpy_dtype(first.dtype) is not None:
        return arena.stack_tensors(batch)
    return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


def _stack_arrays(
    batch: Sequence[npt.NDArray[Any]], *, collate_fn_map: dict[Any, Any] | None = None
) -> Any:
    from torch.utils.data._utils.collate import collate_numpy_array_fn

    first = batch[0]
    if type(first) is np.ndarray and plain(first.dtype, first.ndim) and _alike(batch, first):
        return tensors.to_tensor(arena.stack(batch))
    return collate_numpy_array_fn(batch, collate_fn_map=collate_fn_map)


def _alike(batch: Sequence[object], first: npt.NDArray[Any]) -> bool:
    shape, dtype = first.shape, first.dtype
    return all(
        type(item) is np.ndarray and item.shape == shape and item.dtype == dtype for item in batch
    )


def _stack_numbers(
    batch: Sequence[np.generic], *, collate_fn_map: dict[Any, Any] | None = None
) -> Any:
    from torch.utils.data._utils.collate import collate_numpy_scalar_fn

    kind = type(batch[0])
    if set(map(type, batch)) != {kind} or not plain(np.dtype(kind), 0):
        return collate_numpy_scalar_fn(batch, collate_fn_map=collate_fn_map)
    out = arena.empty((len(batch),), kind)
    out[...] = batch
    return tensors.to_tensor(out)
