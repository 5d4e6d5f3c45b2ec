"""gluon's batchify functions: they make a batch from samples. Each is a picklable object.

Batches are torch tensors by default; `arrays.set_array_type` or ``array_type`` selects another
type. ``use_shared_mem`` puts tensors into memory that other processes can map; in a loader's
workers it has no effect, as batches use slots anyway.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors, tree
from async_loader.compat.gluon.data import arrays
from async_loader.compat.gluon.data.sampler import require
from async_loader.pipeline.batches import arena

_PACKAGE = "async_loader.compat."
_RAGGED = "pad them with Pad, or keep them apart with Append or AsList"


class _Batchify:
    """Base class: holds the array type of the results."""

    def __init__(self, use_shared_mem: bool, array_type: str | None) -> None:
        self._use_shared_mem = use_shared_mem
        self._array_type = None if array_type is None else arrays.checked(array_type)

    def _finished(self, array: npt.NDArray[Any]) -> Any:
        array_type = self._array_type or arrays.default_array_type()
        return arrays.finished(array, array_type, self._use_shared_mem)


class Stack(_Batchify):
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

    def __init__(self, use_shared_mem: bool = False, *, array_type: str | None = None) -> None:
        super().__init__(use_shared_mem, array_type)

    def __call__(self, data: Sequence[Any]) -> Any:
        if isinstance(data[0], tuple | list):
            return [self(column) for column in columns(data)]
        return self._finished(stacked(data))


class Pad(_Batchify):
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
        *,
        array_type: str | None = None,
    ) -> None:
        super().__init__(use_shared_mem, array_type)
        self._pad_val, self._dtype, self._round_to = 0 if val is None else val, dtype, round_to
        self._warned = False

    def __call__(self, data: Sequence[Any]) -> Any:
        first = data[0]
        if tensors.is_tensor(first):
            self._warn_of_speed()
        elif not isinstance(first, np.ndarray | list):
            raise NotImplementedError(
                f"Pad takes arrays and lists of numbers, not {type(first).__name__}: for several "
                "fields use Group(Pad(), ...)"
            )
        return self._finished(
            padded(
                [arrays.to_numpy(one) for one in data], self._pad_val, self._dtype, self._round_to
            )
        )

    def _warn_of_speed(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "Pad makes numpy arrays of tensors first: it is faster when samples are lists or "
                "numpy arrays",
                stacklevel=3,
            )


class Append(_Batchify):
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
        *,
        array_type: str | None = None,
    ) -> None:
        super().__init__(use_shared_mem, array_type)
        self._expand, self._batch_axis = expand, batch_axis

    def __call__(self, data: Sequence[Any]) -> list[Any]:
        apart = [arrays.to_numpy(one) for one in data]
        return [
            self._finished(np.expand_dims(one, self._batch_axis) if self._expand else one)
            for one in apart
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
    return tree.transform(stacked_by_tuples(data), Stack()._finished)


def default_mp_batchify_fn(data: Sequence[Any]) -> Any:
    """`default_batchify_fn` with tensors in shared memory."""
    return tree.transform(stacked_by_tuples(data), Stack(use_shared_mem=True)._finished)


def stacked_by_tuples(data: Sequence[Any]) -> Any:
    """Convert to numpy arrays; tuples to a list of arrays, field by field."""
    if isinstance(data[0], tuple):
        return [stacked_by_tuples(column) for column in columns(data)]
    return stacked(data)


def require_callable(
    functions: Sequence[Any], check: Callable[[object, str], None] = require
) -> None:
    for number, one in enumerate(functions):
        check(
            callable(one),
            f"function {number} is of {type(one).__name__}: batchify functions are callable",
        )


def forgets(fn: Any) -> bool:
    """Whether a batchify function and the functions it calls are this package's,
    which keep no references to batches.
    """
    if not str(getattr(fn, "__module__", "")).startswith(_PACKAGE):
        return False
    called: list[Any] = []
    tree.transform(list(getattr(fn, "__dict__", {}).values()), called.append)
    return all(forgets(one) for one in called if callable(one) and not isinstance(one, type))


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
