"""gluon's batchify functions: they make a batch from samples. Each is a picklable object.

Batches are torch tensors. ``use_shared_mem`` has no effect: what a loader's workers make lies in
shared memory anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors
from async_loader.compat.gluon.data.sampler import require
from async_loader.pipeline.batches import arena

_RAGGED = "pad them with Pad, or keep them apart with Append or AsList"


class Stack:
    """Stack samples of one shape, ``[batch, ...]``; tuples and lists field by field, as a list.

    Numbers keep the dtypes that numpy gives them (Python floats float64, ints int64).

    Raises
    ------
    ValueError
        If shapes, or numbers of fields, differ within a batch. (The original cuts all samples to
        the fewest fields.)
    TypeError
        For strings and other non-numbers.
    """

    def __init__(self, use_shared_mem: bool = False) -> None: ...

    def __call__(self, data: Sequence[Any]) -> Any:
        if isinstance(data[0], tuple | list):
            return [self(column) for column in columns(data)]
        return tensors.as_tensor(stacked(data))


class Pad:
    """Pad samples of different shapes on each axis to the longest, ``[batch, longest, ...]``.

    Parameters
    ----------
    val : number, optional
        Padding value; 0 by default.
    dtype : dtype, optional
        Dtype of the batch; by default one that holds all samples.
    round_to : int, optional
        Padded axes are rounded up to a multiple of it.
    use_shared_mem : bool

    Raises
    ------
    NotImplementedError
        For samples of several fields: ``Group(Pad(), ...)`` pads those.
    ValueError
        If samples have different numbers of axes.
    """

    def __init__(
        self,
        val: float | None = None,
        dtype: npt.DTypeLike | None = None,
        round_to: int | None = None,
        use_shared_mem: bool = False,
    ) -> None:
        self._pad_val, self._dtype, self._round_to = 0 if val is None else val, dtype, round_to

    def __call__(self, data: Sequence[Any]) -> Any:
        return tensors.as_tensor(
            padded(padable(data, "Group"), self._pad_val, self._dtype, self._round_to)
        )


class Append:
    """Return a list of one array per sample, of any shapes.

    Parameters
    ----------
    expand : bool
        Add an axis of length 1 to each, like a batch of one.
    batch_axis : int
        Position of that axis.
    use_shared_mem : bool
    """

    def __init__(
        self,
        expand: bool = True,
        batch_axis: int = 0,
        use_shared_mem: bool = False,
    ) -> None:
        self._expand, self._batch_axis = expand, batch_axis

    def __call__(self, data: Sequence[Any]) -> list[Any]:
        return [
            tensors.as_tensor(
                np.array(np.expand_dims(one, self._batch_axis) if self._expand else one)
            )
            for one in map(tensors.to_array, data)
        ]


class Group:
    """Apply one batchify function per field; returns a tuple.

    Parameters
    ----------
    fn : callable, or list or tuple of them
    *args : callable
        ``Group(a, b)`` is ``Group([a, b])``.

    Raises
    ------
    AssertionError
        If one of them is not callable, or a sample has a different number of fields.
    """

    def __init__(self, fn: Any, *args: Callable[[list[Any]], Any]) -> None:
        many = isinstance(fn, list | tuple)
        name = type(self).__name__
        require(
            not (many and args),
            f"{name} takes functions, or one list of them: {name}(a, b) or {name}([a, b])",
        )
        self._fn = tuple(fn) if many else (fn, *args)
        require_callable(self._fn)

    def __call__(self, data: Sequence[Any]) -> tuple[Any, ...]:
        for sample in data:
            require(
                len(sample) == len(self._fn),
                f"a sample has {len(sample)} fields, {type(self).__name__} has {len(self._fn)} "
                "functions: one for each",
            )
        return tuple(fn([sample[i] for sample in data]) for i, fn in enumerate(self._fn))


class AsList:
    """Return the samples as a list, for texts."""

    def __call__(self, data: Sequence[Any]) -> list[Any]:
        return list(data)


def default_batchify_fn(data: Sequence[Any]) -> Any:
    """Like `Stack`, but a list is one array, not several fields: the rule of mxnet 1."""
    if isinstance(data[0], tuple):
        return [default_batchify_fn(column) for column in columns(data)]
    return tensors.as_tensor(stacked(data))


default_mp_batchify_fn = default_batchify_fn


def require_callable(functions: Sequence[Any], error: type[Exception] = AssertionError) -> None:
    for number, one in enumerate(functions):
        text = f"function {number} is of {type(one).__name__}: batchify functions are callable"
        require(callable(one), text, error)


def columns(data: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Transpose samples into fields."""
    counts = {len(sample) for sample in data}
    if len(counts) != 1:
        raise ValueError(
            f"samples of {' and '.join(map(str, sorted(counts)))} fields in one batch: {_RAGGED}"
        )
    return list(zip(*data, strict=True))


def stacked(data: Sequence[Any]) -> Any:
    """Stack samples of one shape to one numpy array ``[len(data), ...]``; tensors to a tensor."""
    try:
        if tensors.is_tensor(data[0]):
            return arena.stack_tensors(data)
        plain = all(type(one) is np.ndarray for one in data)
        array = arena.stack(data) if plain else np.asarray(data)
    except (ValueError, RuntimeError) as error:
        shapes = sorted({str(tuple(one.shape)) for one in data if hasattr(one, "shape")})
        what = f"shapes {', '.join(shapes)}" if shapes else "different lengths"
        raise ValueError(f"samples of {what} in one batch: {_RAGGED}") from error
    if array.dtype.kind not in "biufc":
        raise TypeError(
            f"samples of dtype {array.dtype} make no array of numbers: use batchify.AsList for "
            "this field"
        )
    return array


def padable(data: Sequence[Any], several: str) -> list[npt.NDArray[Any]]:
    """Return samples as arrays. NotImplementedError for other than arrays and lists."""
    known = isinstance(data[0], np.ndarray | list) or tensors.is_tensor(data[0])
    arrays = list(map(tensors.to_array, data)) if known else []
    if not arrays or not arrays[0].ndim:
        raise NotImplementedError(
            f"Pad takes arrays and lists of numbers, with an axis, not {type(data[0]).__name__}: "
            f"for several fields use {several}(Pad(), ...)"
        )
    return arrays


def padded(
    data: Sequence[npt.NDArray[Any]],
    val: float,
    dtype: npt.DTypeLike | None,
    round_to: int | None,
    axes: Sequence[int] | None = None,
) -> npt.NDArray[Any]:
    """Pad arrays into one, ``[len(data), longest, ...]``; ``axes`` may differ in length,
    all by default.
    """
    ranks = {one.ndim for one in data}
    if len(ranks) != 1:
        raise ValueError(
            f"samples of {' and '.join(map(str, sorted(ranks)))} axes in one batch: Pad takes one "
            "number of axes"
        )
    longest = list(data[0].shape)
    for axis in range(len(longest)) if axes is None else axes:
        longest[axis] = max(one.shape[axis] for one in data)
        if round_to is not None:
            longest[axis] = -(-longest[axis] // round_to) * round_to
    out = arena.empty(
        (len(data), *longest),
        np.result_type(*{one.dtype for one in data}) if dtype is None else dtype,
    )
    out[...] = val
    for row, one in zip(out, data, strict=True):
        if axes is not None and any(
            one.shape[axis] != longest[axis] for axis in range(one.ndim) if axis not in axes
        ):
            raise ValueError(
                f"samples of shapes {one.shape} and {data[0].shape}: only axis {axes[0]} is padded"
            )
        row[tuple(map(slice, one.shape))] = one
    return out
