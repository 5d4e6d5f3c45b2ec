"""What callbacks raise to pass over an item, or to end a stream of items. And index streams that may be endless."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn


class SkipItemException(Exception):
    """Raised in create_item or after_item: this item is left out, and the batch is filled from the following ones."""


def stop(error: type[BaseException] = StopIteration) -> NoReturn:
    """End the items of this worker: raises StopIteration, as an expression."""
    raise error


@dataclass(frozen=True, slots=True)
class Endless:
    """0, 1, 2, ... or None, None, ... for ever: what there is to sample when nobody knows how much that is. Picklable.

    Parameters
    ----------
    counted : bool
        Whether items are numbered.
    """

    counted: bool

    def __iter__(self) -> Iterator[int | None]:
        return itertools.count() if self.counted else itertools.repeat(None)
