"""In which order the items of a dataset come, and how they are cut into batches. Reads no item."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from async_loader import tensors
from async_loader.errors import ConfigError
from async_loader.source import END

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
    snapshots : deque
        For each batch that was drawn and is not delivered yet, the state in which the sampler was behind it.
    """

    in_range = False

    def __init__(self) -> None:
        self.snapshots: deque[Any] = deque()

    def __len__(self) -> int:
        raise TypeError("the number of batches is not known")

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        """The tasks of epoch ``number`` from batch ``start`` on."""
        raise NotImplementedError

    def set_epoch(self, number: int) -> None:
        """Told on to samplers that want to know."""

    def delivered(self) -> None:
        """One batch more has reached the consumer."""
        if self.snapshots:
            self.snapshots.popleft()

    def seed(self, seed: int) -> None:
        """The seed that orders of our own are made from."""

    def state(self, *, finished: bool) -> Any:
        """What `load` needs beside the number of batches that were delivered.

        Parameters
        ----------
        finished : bool
            All of them were: what is next is the next epoch.
        """
        raise NotImplementedError

    def load(self, state: Any) -> None:
        """Go on from there at the next `epoch`. See `state`."""


class Own(Batches):
    """The order is ours: all items, in their order or shuffled, cut into arrays without a step of Python for each.

    Parameters
    ----------
    n : int
        Items.
    batch_size : int | None
        ``None``: one item, not a batch of one.
    """

    in_range = True

    def __init__(self, n: int, batch_size: int | None, last: LastBatch, seed: int, *, shuffle: bool) -> None:
        super().__init__()
        self._n, self._size, self._last, self._seed, self._shuffle = n, batch_size, last, seed, shuffle
        self._entered = self._carried = np.empty(0, np.int64)

    def __len__(self) -> int:
        if self._size is None:
            return self._n
        n = self._n + len(self._carried)
        return -(-n // self._size) if self._last == "keep" else n // self._size

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        index = shuffled(self._n, self._seed, number) if self._shuffle else np.arange(self._n)
        size = self._size
        if size is None:
            return iter(index[start:].tolist())
        if self._last == "roll_over":
            index = np.concatenate((self._carried, index))
        stop = len(index) if self._last == "keep" else len(index) - len(index) % size
        if self._last == "roll_over":
            self._entered, self._carried = self._carried, index[stop:]
        return (index[at : at + size] for at in range(start * size, stop, size))

    def state(self, *, finished: bool) -> Any:
        return (self._carried if finished else self._entered).tolist() if self._last == "roll_over" else None

    def seed(self, seed: int) -> None:
        self._seed = seed

    def load(self, state: Any) -> None:
        if state is not None:
            self._carried = np.asarray(state, np.int64)


class Streams(Batches):
    """An iterable dataset orders itself; what there is to know is its length, where it has one."""

    def __init__(self, dataset: Any, batch_size: int | None, *, drop: bool) -> None:
        super().__init__()
        self._dataset, self._size, self._drop = dataset, batch_size, drop

    def __len__(self) -> int:
        n = len(self._dataset)
        if self._size is None:
            return n
        return n // self._size if self._drop else -(-n // self._size)

    def state(self, *, finished: bool) -> Any:
        return None


class Sampled(Batches):
    """A sampler of the user's gives the items' indices, or a batch sampler whole batches.

    Parameters
    ----------
    sampler : iterable
    batch_size : int | None
        ``None``: what the sampler gives is a task as it is.
    track : bool
        Keep the sampler's state for each batch.
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int | None, last: LastBatch, *, track: bool = True) -> None:
        super().__init__()
        self._track = track
        self._iterator: Any = None
        self._sampler, self._size, self._last = sampler, batch_size, last
        self._carried: list[Any] = []
        self._entered: list[Any] = []
        self._before: Any = None
        self._loaded: Any = None
        self._global: list[int] | None = None

    def __len__(self) -> int:
        n = len(self._sampler)  # type: ignore[arg-type]
        if self._size is None:
            return n
        n += len(self._carried)
        return -(-n // self._size) if self._last == "keep" else n // self._size

    def set_epoch(self, number: int) -> None:
        for one in (self._sampler, getattr(self._sampler, "sampler", None)):
            tell = getattr(one, "set_epoch", None)
            if tell is not None:
                tell(number)

    @property
    def _stated(self) -> Any:
        """What has a state: the sampler's iterator, the sampler, the sampler within a batch sampler; ``None``: none of them."""
        for one in (self._iterator, self._sampler, getattr(self._sampler, "sampler", None)):
            if hasattr(one, "state_dict") and hasattr(one, "load_state_dict"):
                return one
        return None

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        self.snapshots.clear()
        self._iterator = None
        loaded, self._loaded = self._loaded, None
        self._global = None if loaded is None else loaded.get("global")
        if not self._track and loaded is None:
            return self._tasks()
        if loaded is not None and loaded["sampler"] is not None:
            start = self._load_sampler(loaded["sampler"], start)
        elif loaded is not None:
            self._restore(loaded)
        self._before, self._entered = self._generator_state(), list(self._carried)
        tasks = self._tasks()
        if self._draws_globally:
            tasks = self._drawn_again(tasks)
        for _ in range(start):
            next(tasks, None)
        self._note()
        return self._noting(tasks)

    def _load_sampler(self, state: Any, start: int) -> int:
        """How many batches are still to be passed over."""
        if self._size is None:
            self._iterator = iter(self._sampler)
        stated = self._stated
        if stated is not self._iterator:
            self._iterator = None  # made anew, from the state that is loaded now
        if stated is None:
            return start
        stated.load_state_dict(state)
        return 0

    def _noting(self, tasks: Iterator[Any]) -> Iterator[Any]:
        for task in tasks:
            if self._stated is not None:
                self._entered = []  # its state is behind what was carried
            self._note()
            yield task

    def _note(self) -> None:
        stated = self._stated
        own = None if stated is None else copy.deepcopy(stated.state_dict())
        self.snapshots.append({"sampler": own, "generator": self._before, "carried": self._entered})

    def state(self, *, finished: bool) -> Any:
        if finished or not self.snapshots:
            return {"sampler": None, "generator": self._generator_state(), "carried": list(self._carried)}
        if not self._draws_globally:
            return self.snapshots[0]
        if self._global is None:
            self._global = _global_state()
        return {**self.snapshots[0], "global": self._global}

    @property
    def _draws_globally(self) -> bool:
        """Whether it is one of torch's random samplers without a generator: when it begins it draws from the global one."""
        torch_data: Any = tensors.loaded("torch.utils.data")
        inner: Any = getattr(self._sampler, "sampler", self._sampler)
        return torch_data is not None and isinstance(inner, torch_data.Sampler) and getattr(inner, "generator", self) is None

    def _drawn_again(self, tasks: Iterator[Any]) -> Iterator[Any]:
        """The tasks, of which the first is drawn from the global generator as a state has it, where there is one."""
        import torch

        if self._global is None:
            self._global = _global_state()
            first = next(tasks, END)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(torch.tensor(self._global, dtype=torch.uint8))
                first = next(tasks, END)
        if first is not END:
            yield first
            yield from tasks

    def _tasks(self) -> Iterator[Any]:
        if self._size is None:
            if self._iterator is None:
                self._iterator = iter(self._sampler)
            yield from self._iterator
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

    def _generator(self) -> Any:
        """The generator of one of torch's random samplers, which decides what comes."""
        inner = getattr(self._sampler, "sampler", self._sampler)
        return getattr(inner, "generator", None)

    def _generator_state(self) -> Any:
        generator = self._generator()
        return generator.get_state().tolist() if hasattr(generator, "get_state") else None

    def _restore(self, loaded: Any) -> None:
        if loaded is None:
            return
        self._carried = list(loaded["carried"])
        generator = self._generator()
        if loaded["generator"] is not None and hasattr(generator, "set_state"):
            import torch

            generator.set_state(torch.tensor(loaded["generator"], dtype=torch.uint8))

    def load(self, state: Any) -> None:
        self._loaded = state

    def restore_generator(self) -> None:
        """Do so now, where it is drawn from before the order is."""
        if self._loaded is not None:
            self._restore(self._loaded)
            self._loaded = {**self._loaded, "generator": None}


def _global_state() -> list[int]:
    import torch

    state: list[int] = torch.get_rng_state().tolist()
    return state


def check_last(last: str, batch_size: int | None) -> None:
    """Raise ConfigError when nothing could be left over."""
    if batch_size is None and last != "keep":
        raise ConfigError(f"last_batch is {last!r} and batch_size is None: there are no batches, leave last_batch out")
