"""Collation of samples by DI-engine's rules.

Supports tensors of any device and keeps their gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from async_loader import tree
from async_loader.pipeline.batches.collate import IGNORE_PREFIX


def default_collate(
    batch: Sequence[Any], cat_1dim: bool = True, ignore_prefix: Sequence[str] = (IGNORE_PREFIX,)
) -> Any:
    """Collate samples.

    =====================  ====================================================================
    samples                batch
    =====================  ====================================================================
    tensors, arrays        stacked ``[B, ...]``, dtypes kept; shape ``(1,)`` becomes ``(B,)``
    float, int, bool       float32, int64, bool ``[B]``; the widest of them if they are mixed
    numpy scalars          ``[B]``, dtypes kept
    str, bytes             unchanged
    mappings, namedtuples  the same, field by field; keys are those of the first sample
    other sequences        a list, position by position
    =====================  ====================================================================

    Parameters
    ----------
    batch : sequence
        At least one sample; or a tree tensor of a whole batch, which becomes nested dicts.
    cat_1dim : bool
        Whether shape ``(1,)`` becomes ``(B,)``; ``(B, 1)`` otherwise.
    ignore_prefix : sequence of str
        Values under keys that begin with one of these stay lists. As in the original this holds for
        the outermost mapping; deeper mappings always use "collate_ignore".

    Raises
    ------
    TypeError
        For types without a rule, such as None and arrays of strings or objects.
    ValueError
        For sequences of different lengths (the original cuts them to the shortest).
    RuntimeError
        For tensors of different shapes.
    """
    if is_tree_tensor(batch):  # of a whole batch
        parts: Any = batch
        return parts.json()
    return _collate(batch, cat_1dim, ignore_prefix, ragged=False)


def _collate(batch: Sequence[Any], cat_1dim: bool, ignored: Sequence[str], ragged: bool) -> Any:
    """Collate by the rules of `default_collate`, or with ``ragged`` of `diff_shape_collate`."""
    if not len(batch):
        raise IndexError("the batch has 0 samples: collate at least one")
    first, within = batch[0], () if ragged else (IGNORE_PREFIX,)
    if ragged and any(sample is None for sample in batch):
        return list(batch)
    if isinstance(first, str | bytes):  # before numpy's scalars: its strings are both
        return list(batch) if ragged else batch
    if is_tree_tensor(first):
        return _collate([sample.json() for sample in batch], cat_1dim, ignored, ragged)
    if isinstance(first, torch.Tensor | np.ndarray | np.generic):
        tensors = [one if isinstance(one, torch.Tensor) else as_tensor(one) for one in batch]
        if ragged and len({one.shape for one in tensors}) > 1:
            return tensors
        return torch.cat(tensors) if cat_1dim and first.shape == (1,) else torch.stack(tensors)
    if isinstance(first, bool | int | float):
        return numbers(batch)
    if isinstance(first, Mapping):
        columns = {key: [sample[key] for sample in batch] for key in first}
        return {
            key: column
            if isinstance(key, str) and key.startswith(tuple(ignored))
            else _collate(column, cat_1dim, within, ragged)
            for key, column in columns.items()
        }
    if isinstance(first, Sequence):
        parts = [_collate(column, cat_1dim, within, ragged) for column in positions(batch)]
        return type(first)(*parts) if tree.is_namedtuple(first) else parts
    raise TypeError(
        f"a batch of {type(first).__qualname__} cannot be collated: give tensors, arrays, numbers, "
        "strings, mappings or "
        f"sequences of these, or name the field {IGNORE_PREFIX}_..."
    )


def ttorch_collate(x: Sequence[Any], json: bool = False, cat_1dim: bool = True) -> Any:
    """Collate tree tensors (DI-treetensor) into one, or with ``json`` into a dict of tensors.

    Parameters
    ----------
    x : sequence of treetensor.torch.Tensor
    cat_1dim : bool
        Whether leaves of shape ``(1,)`` become ``(B,)``.
    """
    wrong = next((sample for sample in x if not is_tree_tensor(sample)), None)
    if wrong is not None:
        raise TypeError(
            f"ttorch_collate takes tree tensors, got {type(wrong).__qualname__}: use "
            "default_collate for others"
        )
    collated = default_collate(x, cat_1dim)
    return collated if json else type(x[0])(collated)


def is_tree_tensor(value: object) -> bool:
    """Whether the value is from DI-treetensor, which is not imported for this check."""
    return type(value).__module__.partition(".")[0] == "treetensor" and hasattr(value, "json")


def as_tensor(value: Any) -> torch.Tensor:
    """Convert an array or numpy scalar to a tensor of its dtype;
    raises TypeError for strings and objects.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise TypeError(
            f"arrays of dtype {array.dtype} cannot be collated: give numbers, or lists of strings"
        )
    return torch.as_tensor(array if array.flags.writeable else array.copy())


def numbers(batch: Sequence[Any]) -> torch.Tensor:
    """Convert Python numbers to the widest type among them.

    The type of the first alone would truncate fractions.
    """
    kinds = set(map(type, batch))
    whole = torch.bool if kinds == {bool} else torch.int64
    return torch.tensor(
        list(batch),
        dtype=torch.float32 if any(issubclass(kind, float) for kind in kinds) else whole,
    )


def positions(batch: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return one list per position of the samples."""
    lengths = sorted(set(map(len, batch)))
    if len(lengths) > 1:
        raise ValueError(
            f"the samples of one batch have lengths {lengths}: pad them, or name the field "
            f"{IGNORE_PREFIX}_..."
        )
    return [list(column) for column in zip(*batch, strict=True)]


STATES = ("prev_state", "prev_actor_state", "prev_critic_state")


def default_decollate(batch: Any, ignore: Sequence[str] = STATES) -> list[Any]:
    """Split a batch along its first axis.

    Parameters
    ----------
    batch : tensor, mapping, sequence or distribution
        Tensors ``[B, ...]`` become B tensors ``[...]`` (of shape ``(1,)`` for ``[B]``), views of
        the batch; mappings become B dicts; sequences B tuples; a
        ``torch.distributions.Distribution`` becomes B times None.
    ignore : sequence of str
        Keys whose values are lists of B entries already.

    Raises
    ------
    TypeError
        For types without a rule.
    ValueError
        For parts of different B (the original cuts them to the smallest).
    """
    if isinstance(batch, torch.Tensor):
        parts = torch.split(batch, 1, dim=0)
        return [part.squeeze(0) for part in parts] if batch.dim() > 1 else list(parts)
    if isinstance(batch, Mapping):
        names = list(batch)
        columns = [
            batch[key] if key in ignore else default_decollate(batch[key], ignore) for key in names
        ]
        return [dict(zip(names, row, strict=True)) for row in _rows(columns, names)]
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return _rows([default_decollate(part, ignore) for part in batch], list(range(len(batch))))
    if isinstance(batch, torch.distributions.Distribution):
        return [None] * (batch.batch_shape[0] if batch.batch_shape else 1)
    raise TypeError(
        f"a batch of {type(batch).__qualname__} cannot be taken apart: give tensors, mappings and "
        "sequences of tensors, or "
        "name the key in ignore"
    )


def _rows(columns: Sequence[Sequence[Any]], names: Sequence[Any]) -> list[Any]:
    lengths = {name: len(column) for name, column in zip(names, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"the parts of the batch differ in size, {lengths}: give all of them the same first "
            "axis"
        )
    return list(zip(*columns, strict=True))


def diff_shape_collate(batch: Sequence[Any]) -> Any:
    """Collate like `default_collate`,
    but leave a field as a list if it is ``None`` in a sample or differs in shape.

    Tensors and arrays of shape ``(1,)`` become ``(B, 1)`` here, and strings stay lists.

    Raises
    ------
    TypeError
        For types without a rule.
    ValueError
        For sequences of different lengths.
    """
    return _collate(batch, False, (), ragged=True)


STATE = "prev_state"


def timestep_collate(batch: Sequence[Mapping[str, Any]] | Sequence[Sequence[Any]]) -> Any:
    """Collate B trajectories of T steps into one batch ``[T, B, ...]``.

    The trajectories are not changed.

    Parameters
    ----------
    batch : sequence of mappings, or of lists of T tree tensors
        Each value of a mapping is a list of T entries, or a tensor, which becomes ``[B, ...]``, or
        a mapping of these.

    Returns
    -------
    dict, or a tree tensor for trajectories of these
        Lists of tensors or numbers as tensors ``[T, B, ...]``, other lists as lists of T collated
        steps. ``prev_state``, if present, as a list of T tuples (of tree tensors: lists) of B
        states, which are not collated.

    Raises
    ------
    ValueError
        For trajectories of different T (the original cuts them to the shortest).
    """
    if not len(batch):
        raise IndexError("the batch has 0 trajectories: collate at least one")
    samples: Any = batch
    first = samples[0]
    if isinstance(first, list) and first and is_tree_tensor(first[0]):
        return _of_trees(positions(samples))
    rest = [{key: value for key, value in sample.items() if key != STATE} for sample in samples]
    collated: dict[str, Any] = _steps(default_collate(rest))
    if STATE in first:
        collated[STATE] = [
            tuple(states) for states in positions([sample[STATE] for sample in samples])
        ]
    return collated


def _steps(value: Any) -> Any:
    """Stack T collated steps to one tensor if they are tensors, also within mappings."""
    if isinstance(value, Mapping):
        return {key: _steps(part) for key, part in value.items()}
    if isinstance(value, list) and value and all(map(torch.is_tensor, value)):
        return torch.stack(value)
    return value


def _of_trees(steps: list[list[Any]]) -> Any:
    """Collate T steps of B tree tensors to one."""
    kind, parts = type(steps[0][0]), [[sample.json() for sample in step] for step in steps]
    rest = [
        default_collate([{k: v for k, v in one.items() if k != STATE} for one in step])
        for step in parts
    ]
    made = kind(default_collate(rest, cat_1dim=False))
    if STATE in parts[0][0]:
        made.prev_state = [[sample.get(STATE) for sample in step] for step in steps]
    return made
