"""gluonnlp's batchify functions: they make a batch from samples. Each is a picklable object.

Difference: `Pad` keeps numpy's dtype for lists of numbers; the original converts all to float32
after truncating fractions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors
from async_loader.compat.gluon.data.batchify import (
    AsList,
    Group,
    padable,
    padded,
    require_callable,
    stacked,
)
from async_loader.compat.gluon.data.sampler import require


class Stack:
    """Stack samples of one shape, ``[batch, ...]``.

    Parameters
    ----------
    dtype : dtype, optional
        Dtype of the batch; by default the samples'.
    """

    def __init__(self, dtype: npt.DTypeLike | None = None) -> None:
        self._dtype = dtype

    def __call__(self, data: Sequence[Any]) -> Any:
        array = stacked(data)
        if self._dtype is not None:
            array = tensors.to_array(array).astype(self._dtype, copy=False)
        return tensors.as_tensor(array)


class Pad:
    """Pad samples along one axis to the longest, ``[batch, ...]``;
    with ``ret_length`` also return their lengths.

    Parameters
    ----------
    axis : int
    pad_val : number, optional
        0, with a warning, if not given.
    ret_length : bool
        Return ``(batch, lengths)``; lengths are int32 ``[batch]``.
    dtype : dtype, optional
    round_to : int, optional
        The padded axis is rounded up to a multiple of it.

    Raises
    ------
    NotImplementedError
        For samples that are neither arrays nor lists of numbers.
    """

    def __init__(
        self,
        axis: int = 0,
        pad_val: float | None = None,
        ret_length: bool = False,
        dtype: npt.DTypeLike | None = None,
        round_to: int | None = None,
    ) -> None:
        require(isinstance(axis, int), f"axis is {axis!r}: it is an int")
        if pad_val is None:
            warnings.warn(
                "pad_val is not given: Pad takes 0, which is a token of its own in most "
                "vocabularies",
                stacklevel=2,
            )
        self._axis = axis
        self._pad_val = 0 if pad_val is None else pad_val
        self._ret_length = ret_length
        self._dtype, self._round_to = dtype, round_to

    def __call__(self, data: Sequence[Any]) -> Any:
        known = padable(data, "Tuple")
        axis = self._axis % known[0].ndim
        batch = tensors.as_tensor(padded(known, self._pad_val, self._dtype, self._round_to, [axis]))
        if not self._ret_length:
            return batch
        return batch, tensors.as_tensor(np.asarray([one.shape[axis] for one in known], np.int32))


class Tuple(Group):
    """Apply one batchify function per field of tuples or lists; returns a tuple.

    Parameters
    ----------
    fn : callable, or list or tuple of them
    *args : callable
        ``Tuple(a, b)`` is ``Tuple([a, b])``.
    """


class NamedTuple:
    """Apply one batchify function per field of named tuples; returns a named tuple.

    Parameters
    ----------
    container : named tuple class
    fn_info : dict, or sequence of pairs (or of callables, in the order of the fields)
        Field names and functions.
    """

    def __init__(self, container: Any, fn_info: Any) -> None:
        names = container._fields
        pairs = list(fn_info.items()) if isinstance(fn_info, Mapping) else list(fn_info)
        if all(map(callable, pairs)):
            pairs = list(zip(names, pairs, strict=False))
        require(
            all(isinstance(one, tuple | list) and len(one) == 2 for one in pairs),
            "fn_info is a dict of functions, or a sequence of them or of pairs",
            ValueError,
        )
        known = dict(pairs)
        require(
            set(known) == set(names),
            f"functions for {sorted(known)}, fields are {names}: one for each",
            ValueError,
        )
        self._container, self._fn = container, [known[name] for name in names]
        require_callable(self._fn, ValueError)

    def __call__(self, data: Sequence[Any]) -> Any:
        require(
            isinstance(data[0], self._container),
            f"samples are of {type(data[0]).__name__}, not {self._container.__name__}",
            ValueError,
        )
        return self._container(
            *(fn([sample[i] for sample in data]) for i, fn in enumerate(self._fn))
        )


class Dict:
    """Apply one batchify function per key of dicts; returns a dict of those keys.

    Parameters
    ----------
    fn_dict : dict of callables
    """

    def __init__(self, fn_dict: Mapping[Any, Callable[[list[Any]], Any]]) -> None:
        require(
            isinstance(fn_dict, Mapping),
            f"fn_dict is of {type(fn_dict).__name__}: it is a dict of functions",
            ValueError,
        )
        require_callable(list(fn_dict.values()), ValueError)
        self._fn_dict = dict(fn_dict)

    def __call__(self, data: Sequence[Any]) -> dict[Any, Any]:
        return {key: fn([sample[key] for sample in data]) for key, fn in self._fn_dict.items()}


class List(AsList):
    """Return the samples as a list, for texts."""
