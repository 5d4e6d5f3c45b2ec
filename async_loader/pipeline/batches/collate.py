"""Samples into batches: column by column straight into slot rows where that is possible, by general
rules where not.

The rules are those of DI-engine's ``default_collate``: Python floats become float32, ints int64,
bools bool; numpy keeps its dtypes; strings stay lists; dicts and namedtuples keep their kind, other
sequences become lists; keys that begin with ``collate_ignore`` are left as lists. Three of its
rules are not kept: tensors and arrays of shape ``(1,)`` become ``(B, 1)``, as in every other batch,
samples of unequal length are refused instead of cut to the shortest, and a column of several dtypes
takes the one that holds them (float32 for ints and floats) instead of cutting fractions off. Holds
no state.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors, tree
from async_loader.errors import SchemaError
from async_loader.schema import Field, Schema, kind_of, samples_of, supported

IGNORE_PREFIX = "collate_ignore"
_SMALL_BYTES = 64 << 10
"""A column of tensors up to here is stacked into memory of its own and then copied, which takes
less time than a look at each dtype does."""
_AT_ONCE_BYTES = 256 << 10
"""Samples of up to here are made before they are written. They stay in a core's cache; and what is
freed of more than that, glibc may give back to the system, and the next ones fault it in anew."""
_SMALL_DTYPES = frozenset(map(np.dtype, ("?", "u1", "i1", "i2", "i4", "i8", "f4", "f8")))
"""Dtypes of such columns. Not float16: torch keeps it beside ints, `_common_dtype` does not."""


def is_ignored(key: object) -> bool:
    return isinstance(key, str) and key.startswith(IGNORE_PREFIX)


def schema_of(sample: object) -> Schema | None:
    """The schema of one row of the collated batch; ``None`` when a leaf is not of fixed numeric
    shape.
    """
    structure = tree.structure_of(sample, collated=True)
    if _has_ignored(structure):
        return None
    fields = []
    for name, value in zip(tree.names(structure), tree.leaves(sample, structure), strict=True):
        known = kind_of(value)
        if known is None or not supported(known[1]):
            return None
        shape, dtype = known
        fields.append(Field(shape, dtype, name=name))
    return Schema(structure, tuple(fields)) if fields else None


def fill(schema: Schema, samples: Sequence[Any], fields: Sequence[npt.NDArray[Any]]) -> None:
    """Write ``samples`` into rows, after checking type, dtype and shape of every value.

    Parameters
    ----------
    fields : sequence of arrays [len(samples), *shape]
        One per field of the schema; may be strided.

    Raises
    ------
    Misfit
        When a sample is not what the schema says. Rows may have been written by then.
    """
    columns = zip(schema.fields, tree.columns(schema.structure, samples), fields, strict=True)
    torch = tensors.loaded_torch()
    plain = None if torch is None else torch.Tensor
    with contextlib.nullcontext() if torch is None else torch.no_grad():
        for field, column, out in columns:
            if (
                type(column[0]) is plain
                and out.nbytes <= _SMALL_BYTES
                and field.dtype in _SMALL_DTYPES
            ):
                _write_small_tensors(field, column, out)
            else:
                _write_column(field, column, out)


def fill_as_made(
    schema: Schema,
    make: Callable[..., Any],
    arguments: Iterator[tuple[Any, ...]],
    fields: Sequence[npt.NDArray[Any]],
) -> list[Any] | None:
    """As `fill`, of samples that are made by one call for each tuple of arguments: a few are
    written before the next ones are made, which take their memory while it is in the caches.

    Returns
    -------
    list | None
        All samples, when one is not what the schema says; what was written as it is there.
    """
    few = max(1, _AT_ONCE_BYTES // max(1, schema.nbytes))
    for start in range(0, len(fields[0]), few):
        # lists, and no generators, which would change a StopIteration
        samples = [make(*each) for each in itertools.islice(arguments, few)]
        try:
            fill(schema, samples, [out[start : start + few] for out in fields])
        except tree.Misfit:
            before = samples_of(schema, [out[:start].copy() for out in fields])
            return [*before, *samples, *[make(*each) for each in arguments]]
        del samples
    return None


def _write_column(field: Field, column: list[Any], out: npt.NDArray[Any]) -> None:
    kinds = set(map(type, column))
    if len(kinds) != 1:
        raise tree.Misfit(
            f"{field.name} is {' and '.join(sorted(k.__name__ for k in kinds))} in one batch"
        )
    first = column[0]
    if isinstance(first, np.ndarray):
        _write_arrays(field, column, out)
    elif tensors.is_tensor(first):
        _write_tensors(field, column, out)
    else:
        _write_numbers(field, column, out)


def _write_arrays(field: Field, column: list[npt.NDArray[Any]], out: npt.NDArray[Any]) -> None:
    shape, dtype = column[0].shape, field.dtype
    _check_shape(field, shape)
    for value in column:
        # numpy would cast, broadcast and cut without a word.
        if value.shape != shape or value.dtype != dtype:
            raise tree.Misfit(
                f"{field.name} is {value.dtype}{list(value.shape)}, expected {dtype}{list(shape)}"
            )
    if shape and out.flags.c_contiguous:
        np.concatenate(column, out=out.reshape(len(column) * shape[0], *shape[1:]), casting="no")
        return
    for i, value in enumerate(column):
        out[i] = value


def _write_tensors(field: Field, column: list[Any], out: npt.NDArray[Any]) -> None:
    import torch

    shape = tuple(column[0].shape)
    _check_shape(field, shape)
    dtypes = {value.dtype for value in column}
    if len(dtypes) != 1 or tensors.numpy_dtype(dtypes.pop()) != field.dtype:
        raise tree.Misfit(f"{field.name} has dtypes other than {field.dtype}")
    into = torch.from_numpy(out)
    try:
        torch.stack(column, out=into)
    except (RuntimeError, TypeError) as error:  # unequal shapes, another device
        raise tree.Misfit(f"{field.name}: {error}") from error


def _write_small_tensors(field: Field, column: list[Any], out: npt.NDArray[Any]) -> None:
    """As `_write_tensors`, where the first is a plain tensor. torch looks at the others, and
    promotes unequal dtypes as `_common_dtype` does.
    """
    import torch

    _check_shape(field, column[0].shape)
    try:
        stacked = torch.stack(column)
    except (RuntimeError, TypeError) as error:  # unequal shapes, several devices, no tensors
        raise tree.Misfit(f"{field.name}: {error}") from error
    if type(stacked) is not torch.Tensor:
        raise tree.Misfit(f"{field.name} is {type(stacked).__name__} when it is stacked")
    if stacked.layout is not torch.strided or stacked.device.type != "cpu":
        raise tree.Misfit(f"{field.name} is {stacked.layout} on {stacked.device}")
    if tensors.numpy_dtype(stacked.dtype) != field.dtype:
        raise tree.Misfit(f"{field.name} has dtypes other than {field.dtype}")
    out[...] = stacked.numpy().reshape(out.shape)


def _write_numbers(field: Field, column: list[Any], out: npt.NDArray[Any]) -> None:
    known = kind_of(column[0])
    if known != (field.shape, field.dtype):
        raise tree.Misfit(f"{field.name} is {type(column[0]).__name__}, expected {field}")
    try:
        out[...] = np.array(column, dtype=field.dtype)
    except (OverflowError, ValueError, TypeError) as error:
        raise tree.Misfit(f"{field.name}: {error}") from error


def _check_shape(field: Field, shape: Sequence[int]) -> None:
    if tuple(shape) != field.shape:
        raise tree.Misfit(f"{field.name} has shape {list(shape)}, expected {list(field.shape)}")


def collate(samples: Sequence[Any], name: str = "") -> Any:
    """A batch of samples of any kind by the rules above: arrays for numbers, lists for strings.

    Parameters
    ----------
    samples : non-empty sequence
    name : str
        Path of these samples within the whole, for messages.

    Raises
    ------
    SchemaError
        For objects no rule covers, and for arrays of different shapes. Names the field and the
        remedy.
    """
    first = samples[0]
    if isinstance(first, Mapping | list | tuple):
        return _collate_containers(samples, name)
    if isinstance(first, str | bytes):
        return list(samples)
    return _collate_leaves(samples, name)


def _collate_containers(samples: Sequence[Any], name: str) -> Any:
    first = samples[0]
    keys = list(first) if isinstance(first, Mapping) else list(range(len(first)))
    structure = tree.structure_of(first, collated=True)
    assert structure is not None
    flat = tree.Node(structure.kind, structure.keys, (None,) * len(keys))
    try:
        columns = list(tree.columns(flat, samples, f"{name}." if name else ""))
    except tree.Misfit as error:
        raise SchemaError(f"the samples of one batch are built differently: {error}") from None
    values = [
        column if is_ignored(key) else collate(column, f"{name}.{key}" if name else str(key))
        for key, column in zip(structure.keys, columns, strict=True)
    ]
    return tree.rebuild(flat, values)


def _collate_leaves(samples: Sequence[Any], name: str) -> Any:
    if any(tensors.is_tensor(one) and tensors.numpy_dtype(one.dtype) is None for one in samples):
        return _stack_exotic(samples, name)
    arrays = [_leaf(sample, i, name) for i, sample in enumerate(samples)]
    shapes = {array.shape for array in arrays}
    if len(shapes) != 1:
        raise SchemaError(
            f"field {name or 'value'!r} has shapes {sorted(shapes)} in one batch: pad them, name "
            "the field "
            f"{IGNORE_PREFIX}_..., or pass a collate_fn"
        )
    return np.stack(arrays, dtype=_common_dtype({a.dtype for a in arrays}, name), casting="unsafe")


def _leaf(value: object, i: int, name: str) -> npt.NDArray[Any]:
    """A number, array or tensor as an array."""
    array = tensors.as_array(value)
    if array is None and isinstance(value, bool | int | float):
        try:
            array = np.asarray(
                value,
                np.bool_
                if isinstance(value, bool)
                else np.int64
                if isinstance(value, int)
                else np.float32,
            )
        except OverflowError:
            raise SchemaError(
                f"sample {i} of the batch has {value} in field {name or 'value'!r}: int64 cannot "
                "hold it"
            ) from None
    if array is None or not supported(array.dtype.newbyteorder("=")):
        kind = value.dtype if hasattr(value, "dtype") else type(value).__name__
        if tensors.is_masked(value):
            raise SchemaError(
                f"sample {i} of the batch has in field {name or 'value'!r} {tensors.unheld(value)}"
            )
        raise SchemaError(
            f"sample {i} of the batch has {kind} in field {name or 'value'!r}, which cannot be "
            "collated: return numbers, "
            f"arrays, tensors or strings, name the field {IGNORE_PREFIX}_..., or pass a collate_fn"
        )
    return array


def _common_dtype(dtypes: set[np.dtype[Any]], name: str) -> np.dtype[Any]:
    """One dtype for a column, as torch promotes: ints give way to floats, but never to less than
    float32.

    Numpy would make float64 of int64 and float32, and then the dtype would depend on where a batch
    was cut.
    """
    inexact = [d for d in dtypes if d.kind in "fc"]
    whole = [d for d in dtypes if d.kind in "iu"]
    if inexact:
        return np.result_type(*inexact, *([np.float32] if whole else []))
    common: np.dtype[Any] = np.result_type(*(whole or dtypes))
    if common.kind == "f":
        raise SchemaError(
            f"field {name or 'value'!r} has dtypes {sorted(map(str, whole))} in one batch: no "
            "integer holds both"
        )
    return common


def _stack_exotic(samples: Sequence[Any], name: str) -> Any:
    """Tensors of dtypes that numpy lacks: bfloat16 and the like."""
    import torch

    try:
        with torch.no_grad():
            return torch.stack([s.detach() for s in samples])
    except (RuntimeError, AttributeError, TypeError) as error:
        raise SchemaError(f"field {name or 'value'!r} cannot be stacked: {error}") from error


def _has_ignored(structure: tree.Structure) -> bool:
    if structure is None:
        return False
    return any(map(is_ignored, structure.keys)) or any(map(_has_ignored, structure.children))
