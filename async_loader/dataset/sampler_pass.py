"""One pass over a sampler, which can be left at a bookmark and resumed there."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

from async_loader import tensors
from async_loader.dataset.batch_order import LastBatch
from async_loader.dataset.bookmarks import Bookmark, has_state, upto
from async_loader.source import END


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
