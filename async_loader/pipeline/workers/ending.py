"""Work that ends between two jobs, or two items of a dataset, once its loader closes.

The rest of a batch that cannot be taken any more is not made. The job at hand comes to its end: it
may be in the middle of writing a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from async_loader.errors import Closed

T = TypeVar("T")


class Ending(Protocol):
    """Says, without a system call, whether the loader closes."""

    def is_set(self) -> bool: ...


class EndSeen:
    """The end flag of the loader's process as a thread of a worker process has seen it."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen = False

    def set(self) -> None:
        self._seen = True

    def is_set(self) -> bool:
        return self._seen


NEVER: Ending = EndSeen()
"""Where the consumer does the work itself: its own call ends it."""


def while_open(jobs: Iterable[T], ending: Ending) -> Iterator[T]:
    """The jobs one by one.

    Raises
    ------
    Closed
        In place of a job: the loader closes.
    """
    for job in jobs:
        if ending.is_set():
            raise Closed("the loader was closed between two jobs of a batch")
        yield job
