"""In which order the items of a dataset come, and how they are cut into batches. Reads no item."""

from __future__ import annotations

import copy
import operator
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from async_loader.dataset.bookmarks import has_state
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

    def length(self, state: Any) -> int:
        """The number of batches of an epoch that begins with a `state`; ``None``: the next one."""
        return len(self)

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        """The tasks of epoch ``number`` from batch ``start`` on."""
        raise NotImplementedError

    def set_epoch(self, number: int) -> None:
        """Told on to samplers that want to know."""

    def seed(self, seed: int) -> None:
        """The seed that orders of our own are made from."""

    def state(self, *, upto: int = 0, finished: bool = False) -> Any:
        """What `load` needs beside the number of batches that were delivered, of the epoch that
        began last.

        Parameters
        ----------
        upto : int
            Batches that were delivered.
        finished : bool
            All of them were: what is next is the next epoch.
        """
        return None

    def load(self, state: Any) -> None:
        """Continue with the next `epoch` where `state` was called."""

    def restore(self) -> None:
        """Bring what the order is drawn from into the loaded state, if there is one, before
        anything else is drawn from a generator of it.
        """


class IndexBatches(Batches):
    """The order is ours: all items, in their order or shuffled, cut into arrays without a step of
    Python for each.

    Parameters
    ----------
    items : sized
        Asked for its length at each epoch.
    batch_size : int | None
        ``None``: one item, not a batch of one.
    """

    in_range = True

    def __init__(
        self, items: Sized, batch_size: int | None, last: LastBatch, seed: int, *, shuffle: bool
    ) -> None:
        self._items, self._size, self._last, self._seed, self._shuffle = (
            items,
            batch_size,
            last,
            seed,
            shuffle,
        )
        self._carried = self._entered = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self.length(None)

    def length(self, state: list[int] | None) -> int:
        if self._size is None:
            return len(self._items)
        n = len(self._items) + len(self._carried if state is None else state)
        return -(-n // self._size) if self._last == "keep" else n // self._size

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        n = len(self._items)
        index = shuffled(n, self._seed, number) if self._shuffle else np.arange(n)
        size = self._size
        self._entered = self._carried
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

    def state(self, *, upto: int = 0, finished: bool = False) -> Any:
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


class SamplerBatches(Batches):
    """A sampler of the user's gives the items' indices, or a batch sampler whole batches.

    A state is that of the sampler's generator when the epoch began, or that of the sampler behind
    the first batch of it: one that counts may keep the last epoch's count until then. Going on
    passes over the other batches that were given.

    Parameters
    ----------
    sampler : iterable
    batch_size : int | None
        ``None``: what the sampler gives is a task as it is.
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int | None, last: LastBatch) -> None:
        self._sampler: Any = sampler
        self._inner: Any = getattr(sampler, "sampler", sampler)
        """The sampler within a batch sampler of torch's kind."""
        self._size, self._last = batch_size, last
        self._carried: list[Any] = []
        self._loaded: dict[str, Any] | None = None
        self._resumed: dict[str, Any] | None = None
        self._entered: dict[str, Any] | None = None
        self._record: dict[str, Any] | None = None

    def __len__(self) -> int:
        return self.length(None)

    def length(self, state: dict[str, Any] | None) -> int:
        n, carried = len(self._sampler), len(self._carried if state is None else state["carried"])
        if self._size is None:
            return n
        if state is not None and state["passed"] and self._last == "roll_over":
            carried = (carried + n) % self._size  # what `restore` passes over leaves these
        n += carried
        return -(-n // self._size) if self._last == "keep" else n // self._size

    def set_epoch(self, number: int) -> None:
        for one in {id(one): one for one in (self._sampler, self._inner)}.values():
            tell = getattr(one, "set_epoch", None)
            if tell is not None:
                tell(number)

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        self.restore()
        resumed, self._resumed = self._resumed, None
        before, stateful = self._record, self._stateful is not None
        record = self._record = resumed or self._now()
        self._entered = record
        if resumed is None and stateful and before is not None:
            self._entered = {**before, "passed": True}
        tasks = self._cut()
        if resumed is None and stateful:
            tasks = self._recorded(tasks)
        for _ in range(start - record["drawn"]):
            next(tasks, None)
        return tasks

    def _recorded(self, tasks: Iterator[Any]) -> Iterator[Any]:
        # a batch that is cut short has read the sampler to its end
        for number, task in enumerate(tasks):
            if not number and (self._size is None or len(task) == self._size):
                self._record = {**self._now(), "drawn": 1}
            yield task

    def state(self, *, upto: int = 0, finished: bool = False) -> Any:
        record = self._record if upto or finished else self._entered
        if record is None:
            record = self._now()
        passed = record["passed"] or (finished and self._record is not None)
        return {**record, "generator": _listed(record["generator"]), "passed": passed}

    def load(self, state: dict[str, Any] | None) -> None:
        self._loaded = state

    def restore(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        self._carried = list(loaded["carried"])
        if loaded["sampler"] is not None:
            self._stateful.load_state_dict(loaded["sampler"])
        set_generator(self._generator, loaded["generator"])
        self._record = loaded
        if not loaded["passed"]:
            self._resumed = loaded
        else:
            deque(self._cut(), maxlen=0)

    def _now(self) -> dict[str, Any]:
        stateful, generator = self._stateful, self._generator
        return {
            "sampler": None if stateful is None else copy.deepcopy(stateful.state_dict()),
            "generator": generator.get_state() if hasattr(generator, "get_state") else None,
            # as JSON can hold them: of numpy and torch as ints
            "carried": [_plain(index) for index in self._carried],
            "drawn": 0,
            "passed": False,
        }

    def _cut(self) -> Iterator[Any]:
        if self._size is None:
            yield from self._sampler
            return
        batch, self._carried = self._carried, []
        for index in self._sampler:
            batch.append(index)
            if len(batch) == self._size:
                yield batch
                batch = []
        if batch and self._last == "roll_over":
            self._carried = batch
        elif batch and self._last == "keep":
            yield batch

    @property
    def _stateful(self) -> Any:
        """What of them has a state; ``None``: neither."""
        return next((one for one in (self._sampler, self._inner) if has_state(one)), None)

    @property
    def _generator(self) -> Any:
        """The generator of one of torch's random samplers, which decides what comes."""
        return getattr(self._inner, "generator", None)


def _plain(index: Any) -> Any:
    try:
        return index if getattr(index, "ndim", 0) else operator.index(index)
    except TypeError:  # an index may be anything that the dataset takes, such as a name
        return index


# -- states of torch's generators ------------------------------------------------------------------


def generator_state(generator: Any) -> list[int] | None:
    """Of a torch generator, as JSON can hold it; ``None`` where there is no such generator."""
    return _listed(generator.get_state()) if hasattr(generator, "get_state") else None


def _listed(state: Any) -> Any:
    return state.tolist() if hasattr(state, "tolist") else state


def set_generator(generator: object, state: list[int] | None) -> None:
    """The opposite of `generator_state`."""
    import torch

    if state is not None and hasattr(generator, "set_state"):
        generator.set_state(torch.tensor(state, dtype=torch.uint8))
