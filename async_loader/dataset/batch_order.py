"""In which order the items of a dataset come, and how they are cut into batches. Reads no item."""

from __future__ import annotations

import copy
import operator
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from async_loader import tensors
from async_loader.dataset.bookmarks import Bookmark, has_state, upto
from async_loader.errors import ConfigError
from async_loader.source import END

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


class SamplerBatches(Batches):
    """A sampler of the user's gives the items' indices, or a batch sampler whole batches.

    Parameters
    ----------
    sampler : iterable
    batch_size : int | None
        ``None``: what the sampler gives is a task as it is.
    track : bool
        Keep the sampler's state for each batch.
    """

    def __init__(
        self, sampler: Iterable[Any], batch_size: int | None, last: LastBatch, *, track: bool = True
    ) -> None:
        super().__init__()
        self._track = track
        self._sampler, self._size, self._last = sampler, batch_size, last
        self._carried: list[Any] = []
        self._loaded: Any = None

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

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        loaded, self._loaded = self._loaded, None
        snapshots = self.snapshots = Snapshots()
        snapshots.drawn_from = None if loaded is None else loaded.get("global")
        walk = _SamplerPass(self._sampler, self._size, self._last)
        if not self._track and loaded is None:
            return self._cut(walk)
        if loaded is not None and loaded.get("left") is not None:
            # to the end of an epoch, from the state that it had behind the last batch
            walk.finish(_mark_of(loaded["left"]))
        mark, passed = None, start
        if loaded is not None:
            self._restore(loaded)
            if loaded["sampler"] is not None:
                mark, passed = _mark_of(loaded["sampler"]), 0
        snapshots.generator, snapshots.entered = self._generator_state(), self._carried_state()
        if self._track and (mark is not None or walk.stated):
            walk.begin(mark)  # at once: its state may be asked for before the first task
        tasks: Iterator[Any] = self._cut(walk, mark)
        if self._draws_globally:
            tasks = _drawn_again(tasks, snapshots)
        for _ in range(passed):
            next(tasks, None)
        _note(start, walk, snapshots)
        return _noting(tasks, start, walk, snapshots)

    def state(self, snapshots: Snapshots, *, finished: bool) -> Any:
        if finished or not snapshots.kept:
            state = {
                "sampler": None,
                "generator": self._generator_state(),
                "carried": self._carried_state(),
            }
            return state if snapshots.left is None else {**state, "left": snapshots.left}
        _, kept = snapshots.kept[0]
        if not self._draws_globally:
            return kept
        if snapshots.drawn_from is None:
            snapshots.drawn_from = _global_state()
        return {**kept, "global": snapshots.drawn_from}

    @property
    def _draws_globally(self) -> bool:
        """Whether it is one of torch's random samplers without a generator: when it begins it
        draws from the global one.
        """
        torch_data: Any = tensors.loaded("torch.utils.data")
        inner: Any = getattr(self._sampler, "sampler", self._sampler)
        return (
            torch_data is not None
            and isinstance(inner, torch_data.Sampler)
            and getattr(inner, "generator", self) is None
        )

    def _cut(self, walk: _SamplerPass, mark: Bookmark | None = None) -> Iterator[Any]:
        carried, self._carried = self._carried, []
        self._carried = yield from walk.cut(mark, carried)

    def _carried_state(self) -> list[Any]:
        """The indices that are left over, as JSON can hold them: of numpy and torch as ints."""
        return [_plain(index) for index in self._carried]

    def _generator(self) -> Any:
        """The generator of one of torch's random samplers, which decides what comes."""
        inner = getattr(self._sampler, "sampler", self._sampler)
        return getattr(inner, "generator", None)

    def _generator_state(self) -> Any:
        return generator_state(self._generator())

    def _restore(self, loaded: dict[str, Any] | None) -> None:
        if loaded is None:
            return
        self._carried = list(loaded["carried"])
        if loaded["generator"] is not None:
            set_generator(self._generator(), loaded["generator"])

    def load(self, state: dict[str, Any] | None) -> None:
        self._loaded = state

    def restore_generator(self) -> None:
        """Do so now, where it is drawn from before the order is."""
        if self._loaded is not None:
            self._restore(self._loaded)
            self._loaded = {**self._loaded, "generator": None}


def _plain(index: Any) -> Any:
    try:
        return index if getattr(index, "ndim", 0) else operator.index(index)
    except TypeError:  # an index may be anything that the dataset takes, such as a name
        return index


def _drawn_again(tasks: Iterator[Any], snapshots: Snapshots) -> Iterator[Any]:
    """The tasks, of which the first is drawn from the global generator as a state has it, where
    there is one.
    """
    import torch

    if snapshots.drawn_from is None:
        snapshots.drawn_from = _global_state()
        first = next(tasks, END)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(torch.tensor(snapshots.drawn_from, dtype=torch.uint8))
            first = next(tasks, END)
    if first is not END:
        yield first
        yield from tasks


def _noting(
    tasks: Iterator[Any], first: int, walk: _SamplerPass, snapshots: Snapshots
) -> Iterator[Any]:
    """The tasks from number ``first`` on, with a snapshot behind each."""
    for number, task in enumerate(tasks, first):
        if walk.stated:
            snapshots.entered = []  # its state is behind what was carried
        _note(number + 1, walk, snapshots)
        yield task


def _note(number: int, walk: _SamplerPass, snapshots: Snapshots) -> None:
    mark = walk.mark()
    own = None if mark is None else copy.deepcopy(mark.to_state())
    snapshots.left = own
    kept = {"sampler": own, "generator": snapshots.generator, "carried": snapshots.entered}
    snapshots.kept.append((number, kept))


class _SamplerPass:
    """One pass over a sampler, cut into batches, and a bookmark of where it is.

    A batch sampler of torch's own kind is cut here instead of there: so the iterator of the sampler
    within it is known, and with it a state that only the iterator has.

    Attributes
    ----------
    items : iterator | None
        Of the pass that is under way.
    """

    def __init__(self, sampler: Any, size: int | None, last: LastBatch) -> None:
        self.items: Any = None
        self._sampler, self._size, self._last = sampler, size, last
        self._within: Any = None
        self._given = 0
        self._begun = False
        self._ended = False
        self._over: Bookmark | None = None

    def begin(self, mark: Bookmark | None) -> None:
        """A pass, from the bookmark on."""
        self._within, _, _ = self._plan()
        self._given, self._begun = 0 if mark is None else mark.given, True
        self._over, self._ended = None, False
        if mark is None:
            self.items = iter(self._within)
        elif not mark.ended:
            self.items = self._resumed(mark)
        else:
            self.finish(mark)
            self._over, self.items = mark, iter(())

    def finish(self, mark: Bookmark) -> None:
        """Let the sampler end the epoch of this bookmark: what it does behind its last index is
        part of the state with which the next one begins. Some have done so in the state already,
        and others do it when the next epoch begins: the latter give no index more, and the former
        are set back.
        """
        items = self._resumed(mark)
        first = next(items, END)
        if first is not END and mark.ended:
            self._resumed(mark)
        elif first is not END:
            deque(upto(items, None), maxlen=0)

    def _resumed(self, mark: Bookmark) -> Iterator[Any]:
        sampler, _, _ = self._plan()
        inner: Any = getattr(sampler, "sampler", None)
        if has_state(sampler) or not has_state(inner):
            return mark.resume(sampler)
        inner.load_state_dict(mark.whole if mark.items is None else mark.items)
        return iter(sampler)

    def cut(self, mark: Bookmark | None, carried: list[Any]) -> Generator[Any, None, list[Any]]:
        """The tasks of a pass, from the bookmark on if it was not begun. Returns the indices that
        are left for the next one.
        """
        if not self._begun:
            self.begin(mark)
        self._begun, items = False, self.items
        _, size, last = self._plan()
        if size is None:
            yield from upto(items, None)
            return []
        batch = carried
        for index in upto(items, None):
            batch.append(index)
            self._given += 1
            if len(batch) == size:
                yield batch
                batch = []
        self._ended = True
        if batch and last == "roll_over":
            return batch
        if batch and last == "keep":
            yield batch
        return []

    def _plan(self) -> tuple[Any, int | None, LastBatch]:
        torch_data: Any = tensors.loaded("torch.utils.data")
        one = self._sampler
        if self._size is None and torch_data is not None and type(one) is torch_data.BatchSampler:
            return one.sampler, one.batch_size, "drop" if one.drop_last else "keep"
        return one, self._size, self._last

    @property
    def stated(self) -> bool:
        """Whether the sampler, its iterator, or the sampler within a batch sampler has a state."""
        return any(map(has_state, self._candidates()))

    def _candidates(self) -> tuple[Any, ...]:
        sampler = self._plan()[0] if self._within is None else self._within
        return self.items, sampler, getattr(sampler, "sampler", None)

    def mark(self) -> Bookmark | None:
        """Of this moment; ``None``: there is no state to keep."""
        if self._over is not None:
            return self._over
        items, sampler, inner = self._candidates()
        if has_state(items) or has_state(sampler):
            return Bookmark.of(sampler, items, self._given, ended=self._ended)
        if has_state(inner):
            return Bookmark(self._given, self._ended, whole=inner.state_dict())
        return None


def _mark_of(state: object) -> Bookmark:
    """Version 1 of the loaders' states has the state of the sampler, or of its iterator, alone."""
    if isinstance(state, dict) and state.keys() == _MARK_KEYS:
        return Bookmark.from_state(state)
    return Bookmark(items=state)


_MARK_KEYS = Bookmark().to_state().keys()


def generator_state(generator: object) -> list[int] | None:
    """Of a torch generator, as JSON can hold it; ``None`` where there is no such generator."""
    return generator.get_state().tolist() if hasattr(generator, "get_state") else None


def set_generator(generator: object, state: list[int]) -> None:
    """The opposite of `generator_state`."""
    import torch

    if hasattr(generator, "set_state"):
        generator.set_state(torch.tensor(state, dtype=torch.uint8))


def _global_state() -> list[int]:
    import torch

    state: list[int] = torch.get_rng_state().tolist()
    return state


def check_last(last: str, batch_size: int | None) -> None:
    """Raise ConfigError when nothing could be left over."""
    if batch_size is None and last != "keep":
        raise ConfigError(
            f"last_batch is {last!r} and batch_size is None: there are no batches, leave "
            "last_batch out"
        )
