"""In which order the items of a dataset come, and how they are cut into batches. Reads no item."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError

LastBatch = Literal["keep", "drop", "roll_over"]


def shuffled(n: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """A permutation that depends on ``seed`` and ``epoch`` alone."""
    return np.random.default_rng((seed, epoch)).permutation(n)


class Snapshots:
    """What the states of one epoch say of its order. Epochs that are under way at once have one
    each.

    Parameters
    ----------
    entered : sequence, an attribute too
        Indices that were left of the epoch before.

    Attributes
    ----------
    kept : deque of tuple
        For each batch that was drawn and is not delivered yet, the number of the batch behind it,
        and the state in which the sampler was between the two.
    generator : Any
        The state of the sampler's generator when the epoch began.
    drawn_from : list of int | None
        The state of torch's global generator that the order is drawn from, once it is known.
    left : Any
        The state of the sampler behind the batch that was drawn last.
    """

    def __init__(self, entered: Any = ()) -> None:
        self.kept: deque[tuple[int, Any]] = deque()
        self.entered = entered
        self.generator: Any = None
        self.drawn_from: list[int] | None = None
        self.left: Any = None

    def delivered(self, upto: int) -> None:
        """The batches before this number have reached the consumer. Safe to repeat: a signal may
        have cut the call before.
        """
        kept = self.kept
        while kept and kept[0][0] < upto:
            kept.popleft()


class Batches:
    """What makes the tasks of an epoch, one a batch.

    Attributes
    ----------
    in_range : bool
        The tasks are arrays of indices that need not be checked.
    snapshots : Snapshots
        Of the epoch that began last.
    """

    in_range = False

    def __init__(self) -> None:
        self.snapshots = Snapshots()

    def __len__(self) -> int:
        raise TypeError("the number of batches is not known")

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        """The tasks of epoch ``number`` from batch ``start`` on."""
        raise NotImplementedError

    def set_epoch(self, number: int) -> None:
        """Told on to samplers that want to know."""

    def seed(self, seed: int) -> None:
        """The seed that orders of our own are made from."""

    def state(self, snapshots: Snapshots, *, finished: bool) -> Any:
        """What `load` needs beside the number of batches that were delivered.

        Parameters
        ----------
        snapshots : Snapshots
            Of the epoch.
        finished : bool
            All of them were: what is next is the next epoch.
        """
        raise NotImplementedError

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
        super().__init__()
        self._n, self._size, self._last, self._seed, self._shuffle = (
            n,
            batch_size,
            last,
            seed,
            shuffle,
        )
        self._carried = np.empty(0, np.int64)

    def __len__(self) -> int:
        if self._size is None:
            return self._n
        n = self._n + len(self._carried)
        return -(-n // self._size) if self._last == "keep" else n // self._size

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        index = shuffled(self._n, self._seed, number) if self._shuffle else np.arange(self._n)
        size = self._size
        self.snapshots = Snapshots(self._carried)
        if size is None:
            return iter(index[start:].tolist())
        if self._last == "roll_over":
            index = np.concatenate((self._carried, index))
        stop = len(index) if self._last == "keep" else len(index) - len(index) % size
        if self._last == "roll_over":
            self._carried = index[stop:]
        # Not a generator: a signal that comes while one is at work ends it.
        cuts = map(
            slice, range(start * size, stop, size), range((start + 1) * size, stop + size, size)
        )
        return map(index.__getitem__, cuts)

    def state(self, snapshots: Snapshots, *, finished: bool) -> Any:
        return (
            (self._carried if finished else snapshots.entered).tolist()
            if self._last == "roll_over"
            else None
        )

    def seed(self, seed: int) -> None:
        self._seed = seed

    def load(self, state: list[int] | None) -> None:
        if state is not None:
            self._carried = np.asarray(state, np.int64)


class StreamBatches(Batches):
    """An iterable dataset orders itself; what there is to know is its length, where it has one."""

    def __init__(self, dataset: Any, batch_size: int | None, *, drop: bool) -> None:
        super().__init__()
        self._dataset, self._size, self._drop = dataset, batch_size, drop

    def __len__(self) -> int:
        n = len(self._dataset)
        if self._size is None:
            return n
        return n // self._size if self._drop else -(-n // self._size)

    def state(self, snapshots: Snapshots, *, finished: bool) -> Any:
        return None


def check_last(last: str, batch_size: int | None) -> None:
    """Raise ConfigError when nothing could be left over."""
    if batch_size is None and last != "keep":
        raise ConfigError(
            f"last_batch is {last!r} and batch_size is None: there are no batches, leave "
            "last_batch out"
        )
