"""Exceptions of callbacks that skip an item or end the items; and lazy sequences of indices."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn


class SkipItemException(Exception):
    """Raised in create_item or after_item: the item is skipped,
    and the batch is filled from the following ones.
    """


def stop(error: type[BaseException] = StopIteration) -> NoReturn:
    """End the items of this worker: raises StopIteration, as an expression."""
    raise error


@dataclass(frozen=True, slots=True)
class Endless:
    """An endless sample of unknown length: 0, 1, 2, ... or None, None, .... Picklable.

    Parameters
    ----------
    counted : bool
        Whether items are numbered.
    """

    counted: bool

    def __iter__(self) -> Iterator[int | None]:
        return itertools.count() if self.counted else itertools.repeat(None)


@dataclass(frozen=True, slots=True)
class Permutation:
    """The result of ``rng.sample(range(n), n)``, drawn one by one,
    so that the first need not wait for all. Picklable.

    Parameters
    ----------
    rng : random.Random
        In the state before the draw; not changed.
    """

    rng: random.Random
    n: int

    def __iter__(self) -> Iterator[int]:
        below = copy.copy(self.rng)._randbelow  # type: ignore[attr-defined]
        pool = list(range(self.n))
        for left in range(self.n, 0, -1):
            j = below(left)
            yield pool[j]
            pool[j] = pool[left - 1]
