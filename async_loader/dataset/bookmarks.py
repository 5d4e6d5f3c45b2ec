"""Bookmarks: where an iteration over a dataset or a sampler is, and how another process goes on
from there.

# NOTE [whose state] An iterable may have a state (``state_dict`` and ``load_state_dict``), its
iterator may have one, or both. They are kept apart and restored in the order in which they were
made: the state of the iterable, then ``iter``, then the state of the iterator. An iterable that is
its own iterator has one state only, that of the iterator: what it sets up in ``__iter__`` is
overwritten, not the reverse. Where neither has a state, the items before the place are passed over.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Where one iteration is.

    Attributes
    ----------
    given : int
        Batches, or indices, that it gave.
    ended : bool
        Its iterator has raised StopIteration.
    over : bool
        It is that of the end of an epoch, and what begins is the next one.
    whole : Any
        ``state_dict()`` of the iterable; ``None`` where it has none, or is its own iterator.
    items : Any
        ``state_dict()`` of the iterator, where it has one.
    """

    given: int = 0
    ended: bool = False
    whole: Any = None
    items: Any = None
    over: bool = False

    @classmethod
    def of(cls, iterable: object, items: object, given: int, *, ended: bool) -> Bookmark:
        """Of an iteration that is under way. What it holds may still change with the iteration: see
        `copy.deepcopy`.
        """
        return cls(
            given, ended, None if items is iterable else _state_of(iterable), _state_of(items)
        )

    def resume(self, iterable: Any, per_given: int = 1) -> Iterator[Any]:
        """An iterator over the rest; over anything if `ended`. See NOTE [whose state].

        Parameters
        ----------
        iterable : iterable
        per_given : int
            Items of ``iterable`` for each that `given` counts: how many to pass over where there is
            no state.
        """
        self._restore(iterable)
        items: Any = iter(iterable)
        if has_state(items):
            if self.items is not None:
                items.load_state_dict(self.items)
        elif not has_state(iterable):
            deque(upto(items, self.given * per_given), maxlen=0)
        resumed: Iterator[Any] = items
        return resumed

    def begin_anew(self, iterable: Any) -> Iterator[Any]:
        """An iterator over the next epoch: all of it, from the states in which this one left the
        iterable and its iterator. What the iterator's state does to anything that the next one
        shares with it is done too.
        """
        self._restore(iterable)
        items: Any = iter(iterable)
        if self.items is not None and has_state(items):
            items.load_state_dict(self.items)
            items = iter(iterable)
        begun: Iterator[Any] = items
        return begun

    def _restore(self, iterable: Any) -> None:
        if self.whole is not None and has_state(iterable):
            iterable.load_state_dict(self.whole)


def has_state(one: object) -> bool:
    """Whether it can be asked for its state, and given one."""
    return hasattr(one, "state_dict") and hasattr(one, "load_state_dict")


def _state_of(one: Any) -> Any:
    return one.state_dict() if has_state(one) else None


def upto(items: Iterator[Any], count: int | None) -> Iterator[Any]:
    """The next ``count`` items, ``None``: all of them. As `itertools.islice`, but that it does not
    call ``iter`` again, with which an iterable that is its own iterator may begin again.
    """
    return map(next, itertools.repeat(items) if count is None else itertools.repeat(items, count))
