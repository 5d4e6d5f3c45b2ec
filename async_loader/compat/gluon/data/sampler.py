"""gluon's samplers: the order of indices.

Random ones draw from numpy's global generator, as gluon's do.

Differences from the original: `IntervalSampler` without rollover has the length of its output,
`FilterSampler` reads ``len(dataset)`` items rather than until one is missing, and invalid arguments
are refused by the constructor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Protocol

import numpy as np

from async_loader.errors import ConfigError

LAST_BATCH = ("keep", "discard", "rollover")


class _Sampled(Sized, Iterable[Any], Protocol):
    """Any iterable with a length that can be iterated repeatedly."""


class Sampler:
    """Base class: yields indices (or lists of them) and has a length."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(
            f"{type(self).__name__} has no __iter__: a sampler yields indices"
        )

    def __len__(self) -> int:
        raise NotImplementedError(
            f"{type(self).__name__} has no __len__: a sampler knows how many indices it yields"
        )


class SequentialSampler(Sampler):
    """``start, start + 1, ...``: ``length`` indices in order.

    Parameters
    ----------
    length : int
    start : int
    """

    def __init__(self, length: int, start: int = 0) -> None:
        self._length = _natural(length)
        self._start = start

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices())

    def indices(self) -> range:
        """Return one pass."""
        return range(self._start, self._start + self._length)

    def __len__(self) -> int:
        return self._length


class RandomSampler(Sampler):
    """All of ``range(length)``, shuffled in each pass by numpy's global generator:
    ``numpy.random.seed`` reproduces it.

    Parameters
    ----------
    length : int
    """

    def __init__(self, length: int) -> None:
        self._length = _natural(length)

    def __iter__(self) -> Iterator[np.int64]:
        return iter(self.indices())

    def indices(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return one pass; int64 ``[length]``."""
        drawn = np.arange(self._length)
        np.random.shuffle(drawn)
        return drawn

    def __len__(self) -> int:
        return self._length


class FilterSampler(Sampler):
    """The indices of the items for which ``fn`` is true.

    Every item is read once, when the sampler is made.

    Parameters
    ----------
    fn : callable
        Called with one item.
    dataset : object with ``__len__`` and ``__getitem__``
    """

    def __init__(self, fn: Callable[[Any], object], dataset: Any) -> None:
        self._indices = [i for i in range(len(dataset)) if fn(dataset[i])]

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)


class IntervalSampler(Sampler):
    """Every ``interval``-th index; with ``rollover`` then the skipped ones, until all are yielded.

    Parameters
    ----------
    length, interval : int
    rollover : bool

    Raises
    ------
    AssertionError
        If ``interval`` is larger than ``length``.
    """

    def __init__(self, length: int, interval: int, rollover: bool = True) -> None:
        require(
            interval <= length,
            f"interval is {interval}, length only {length}: an interval fits into the length",
        )
        if interval < 1:
            raise ConfigError(f"interval is {interval}: it is at least 1")
        self._length, self._interval, self._rollover = length, interval, rollover

    def __iter__(self) -> Iterator[int]:
        for start in range(self._interval if self._rollover else 1):
            yield from range(start, self._length, self._interval)

    def __len__(self) -> int:
        return self._length if self._rollover else len(range(0, self._length, self._interval))


class BatchSampler(Sampler):
    """Lists of ``batch_size`` indices of another sampler.

    Parameters
    ----------
    sampler : sampler
    batch_size : int
    last_batch : {'keep', 'discard', 'rollover'}
        Handling of an incomplete last batch. Rolled over, its indices start the next pass, so that
        the length depends on the pass: 10 indices in batches of 3 give 3, 3, 4, 3 ... batches.

    Raises
    ------
    ConfigError
        A ValueError.
    """

    def __init__(self, sampler: _Sampled, batch_size: int, last_batch: str = "keep") -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}: it is at least 1")
        if last_batch not in LAST_BATCH:
            raise ConfigError(
                f"last_batch is {last_batch!r}: it is 'keep', 'discard' or 'rollover'"
            )
        self._sampler, self._batch_size, self._last_batch = sampler, batch_size, last_batch
        self._prev: list[Any] = []

    def __iter__(self) -> Iterator[list[Any]]:
        batch, self._prev = self._prev, []
        for index in self._sampler:
            batch.append(index)
            if len(batch) == self._batch_size:
                yield batch
                batch = []
        if batch and self._last_batch == "keep":
            yield batch
        elif self._last_batch == "rollover":
            self._prev = batch

    @property
    def in_bulk(self) -> bool:
        """Whether `blocks` may be used: the sampler is one of gluon's that draw in bulk."""
        return type(self._sampler) in (RandomSampler, SequentialSampler)

    def blocks(self) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
        """Yield the same batches, as arrays of indices."""
        left, self._prev = self._prev, []
        drawn = np.asarray(self._sampler.indices(), np.int64)  # type: ignore[attr-defined]
        drawn = np.concatenate([np.asarray(left, np.int64), drawn]) if left else drawn
        size, whole = self._batch_size, len(drawn) // self._batch_size * self._batch_size
        for start in range(0, whole, size):
            yield drawn[start : start + size]
        if whole < len(drawn) and self._last_batch == "keep":
            yield drawn[whole:]
        elif self._last_batch == "rollover":
            self._prev = [*drawn[whole:]]

    def __len__(self) -> int:
        count, size = len(self._sampler), self._batch_size
        if self._last_batch == "keep":
            return -(-count // size)
        return (count + len(self._prev)) // size


def _natural(length: int) -> int:
    if length < 0:
        raise ConfigError(f"length is {length}: it is at least 0")
    return length


def require(condition: object, message: str, error: type[Exception] = AssertionError) -> None:
    """Raise the error that scripts written for the original expect,
    unless ``condition`` is true.
    """
    if not condition:
        raise error(message)
