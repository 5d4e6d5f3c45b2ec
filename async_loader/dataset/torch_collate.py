"""Samples into batches by torch's rules, faster, and into the batch's slot where there is one.
Holds no state.

The rules are those of ``torch.utils.data.default_collate``, and what was registered with it is
kept: only the stacking of plain arrays and tensors is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors
from async_loader.errors import SchemaError
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
    """As ``torch.utils.data.default_collate``: same structure, dtypes, values and errors.

    Parameters
    ----------
    batch : sequence of samples
    """
    from torch.utils.data._utils.collate import collate

    return collate(batch, collate_fn_map=_rules())


def collate_by_name(batch: Sequence[Any]) -> Any:
    """As `default_collate`; samples that do not fit each other raise errors that name the field.

    Raises
    ------
    SchemaError
        Samples are dicts with different keys.
    """
    _check_keys(batch)
    try:
        return default_collate(batch)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        name = _misfit(batch)
        if not name:
            raise
        kind = SchemaError if isinstance(error, KeyError) else type(error)
        raise kind(f"field {name!r}: {error}") from error


def _check_keys(batch: Sequence[Any], name: str = "") -> None:
    first = batch[0]
    if not isinstance(first, Mapping):
        return
    for i, one in enumerate(batch):
        if not isinstance(one, Mapping) or len(one) != len(first):
            what = sorted(map(str, one)) if isinstance(one, Mapping) else type(one).__name__
            raise SchemaError(
                f"{name or 'samples'}: sample {i} of the batch has {what}, and sample 0 "
                f"{sorted(map(str, first))}: give all samples the same fields"
            )
    for key, value in first.items():
        if isinstance(value, Mapping):
            _check_keys([one.get(key) for one in batch], f"{name}.{key}" if name else str(key))


def _misfit(batch: Sequence[Any], name: str = "") -> str:
    """Return the first field that cannot be collated; "" for samples without fields."""
    first = batch[0]
    keys: Iterable[Any] = ()
    if isinstance(first, Mapping):
        keys = first
    elif isinstance(first, tuple | list) and len({len(one) for one in batch}) == 1:
        keys = range(len(first))
    for key in keys:
        below = f"{name}.{key}" if name else str(key)
        try:
            column = [one[key] for one in batch]
            default_collate(column)
        except KeyError:
            return below
        except (RuntimeError, TypeError, ValueError):
            return _misfit(column, below)
    return name


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
