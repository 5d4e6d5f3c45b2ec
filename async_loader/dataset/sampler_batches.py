"""The order in which a sampler of the user's gives the items of a dataset."""

from __future__ import annotations

import copy
import operator
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Any

from async_loader import tensors
from async_loader.dataset.batch_order import Batches, LastBatch, Snapshots
from async_loader.dataset.bookmarks import Bookmark, has_state, upto
from async_loader.source import END


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
        walk = SamplerPass(self._sampler, self._size, self._last)
        if not self._track and loaded is None:
            return self._cut(walk)
        if loaded is not None and loaded.get("left") is not None:
            # to the end of an epoch, from the state that it had behind the last batch
            walk.finish(Bookmark.from_state(loaded["left"]))
        mark, passed = None, start
        if loaded is not None:
            self._restore(loaded)
            if loaded["sampler"] is not None:
                mark, passed = Bookmark.from_state(loaded["sampler"]), 0
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
            snapshots.drawn_from = global_state()
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

    def _cut(self, walk: SamplerPass, mark: Bookmark | None = None) -> Iterator[Any]:
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
        snapshots.drawn_from = global_state()
        first = next(tasks, END)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(torch.tensor(snapshots.drawn_from, dtype=torch.uint8))
            first = next(tasks, END)
    if first is not END:
        yield first
        yield from tasks


def _noting(
    tasks: Iterator[Any], first: int, walk: SamplerPass, snapshots: Snapshots
) -> Iterator[Any]:
    """The tasks from number ``first`` on, with a snapshot behind each."""
    for number, task in enumerate(tasks, first):
        if walk.stated:
            snapshots.entered = []  # its state is behind what was carried
        _note(number + 1, walk, snapshots)
        yield task


def _note(number: int, walk: SamplerPass, snapshots: Snapshots) -> None:
    mark = walk.mark()
    own = None if mark is None else copy.deepcopy(mark.to_state())
    snapshots.left = own
    kept = {"sampler": own, "generator": snapshots.generator, "carried": snapshots.entered}
    snapshots.kept.append((number, kept))


# -- states of torch's generators ------------------------------------------------------------------


def generator_state(generator: object) -> list[int] | None:
    """Of a torch generator, as JSON can hold it; ``None`` where there is no such generator."""
    return generator.get_state().tolist() if hasattr(generator, "get_state") else None


def set_generator(generator: object, state: list[int]) -> None:
    """The opposite of `generator_state`."""
    import torch

    if hasattr(generator, "set_state"):
        generator.set_state(torch.tensor(state, dtype=torch.uint8))


def global_state() -> list[int]:
    """Of torch's global generator."""
    import torch

    state: list[int] = torch.get_rng_state().tolist()
    return state


class SamplerPass:
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
