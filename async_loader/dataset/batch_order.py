"""In which order the items of a dataset come, and how they are cut into batches. Reads no item."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError

LastBatch = Literal["keep", "drop", "roll_over"]


def shuffled(n: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """A permutation that depends on ``seed`` and ``epoch`` alone."""
    return np.random.default_rng((seed, epoch)).permutation(n)


class Batches:
    """What makes the tasks of an epoch, one a batch.

    Attributes
    ----------
    in_range : bool
        The tasks are arrays of indices that need not be checked.
    """

    in_range = False

    def __len__(self) -> int:
        raise TypeError("the number of batches is not known")

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        """The tasks of epoch ``number`` from batch ``start`` on."""
        raise NotImplementedError

    def set_epoch(self, number: int) -> None:
        """Told on to samplers that want to know."""

    def seed(self, seed: int) -> None:
        """The seed that orders of our own are made from."""

    def state(self, *, finished: bool) -> Any:
        """What `load` needs beside the number of batches that were delivered, of the epoch that
        began last.

        Parameters
        ----------
        finished : bool
            All of them were: what is next is the next epoch.
        """
        return None

    def load(self, state: Any) -> None:
        """Continue with the next `epoch` where `state` was called."""


class IndexBatches(Batches):
    """The order is ours: all items, in their order or shuffled, cut into arrays without a step of
    Python for each.

    Parameters
    ----------
    n : int
        Items.
    batch_size : int | None
        ``None``: one item, not a batch of one.
    """

    in_range = True

    def __init__(
        self, n: int, batch_size: int | None, last: LastBatch, seed: int, *, shuffle: bool
    ) -> None:
        self._n, self._size, self._last, self._seed, self._shuffle = (
            n,
            batch_size,
            last,
            seed,
            shuffle,
        )
        self._carried = self._entered = np.empty(0, np.int64)

    def __len__(self) -> int:
        if self._size is None:
            return self._n
        n = self._n + len(self._carried)
        return -(-n // self._size) if self._last == "keep" else n // self._size

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        index = shuffled(self._n, self._seed, number) if self._shuffle else np.arange(self._n)
        size = self._size
        self._entered = self._carried
        if size is None:
            return iter(index[start:].tolist())
        if self._last == "roll_over":
            index = np.concatenate((self._carried, index))
        stop = len(index) if self._last == "keep" else len(index) - len(index) % size
        if self._last == "roll_over":
            self._carried = index[stop:]
        return (index[at : min(at + size, stop)] for at in range(start * size, stop, size))

    def state(self, *, finished: bool) -> Any:
        left = self._carried if finished else self._entered
        return left.tolist() if self._last == "roll_over" else None

    def seed(self, seed: int) -> None:
        self._seed = seed

    def load(self, state: list[int] | None) -> None:
        if state is not None:
            self._carried = np.asarray(state, np.int64)


class StreamBatches(Batches):
    """An iterable dataset orders itself; what there is to know is its length, where it has one."""

    def __init__(self, dataset: Any, batch_size: int | None, *, drop: bool) -> None:
        self._dataset, self._size, self._drop = dataset, batch_size, drop

    def __len__(self) -> int:
        n = len(self._dataset)
        if self._size is None:
            return n
        return n // self._size if self._drop else -(-n // self._size)


def check_last(last: str, batch_size: int | None) -> None:
    """Raise ConfigError when nothing could be left over."""
    if batch_size is None and last != "keep":
        raise ConfigError(
            f"last_batch is {last!r} and batch_size is None: there are no batches, leave "
            "last_batch out"
        )
