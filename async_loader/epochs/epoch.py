"""One epoch as the consumer sees it: counts what was given, and knows where it is. Makes no batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from async_loader.epochs.ferry import Ferry
from async_loader.epochs.order import Batches
from async_loader.epochs.works import Streamed
from async_loader.pipeline.iteration import Iteration


class Epoch(Iterator[Any]):
    """Made by ``iter(DataLoader)``. One consumer at a time.

    Attributes
    ----------
    number : int
    yielded : int
        Batches given, those before the state that it began with included.
    finished : bool
        All batches were given.
    """

    def __init__(
        self,
        iteration: Iteration | Ferry,
        batches: Batches,
        number: int,
        yielded: int,
        finish: Callable[[Any], Any] | None,
        start: dict[str, Any],
    ) -> None:
        self.number = number
        self.yielded = yielded
        self.finished = False
        self._iteration = iteration
        self._batches = batches
        self._finish = finish
        self._first = yielded
        self._passed = 0
        self._streams: dict[int, tuple[int, Any]] = dict(start.get("streams") or {})
        self._turn: int = start.get("turn", 0)

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        """The next batch. See `async_loader.pipeline.iteration.Iteration.__next__` for what is raised."""
        try:
            batch = next(self._iteration)
        except StopIteration:
            self.finished = self._iteration.exhausted
            raise
        except BaseException:
            self._pass()  # what failed in its turn is not to be done again
            raise
        if type(batch) is Streamed:
            batch, where = batch
            self._streams[where.worker] = (where.given, where.state)
            self._turn = where.worker + 1
        self.yielded += 1
        self._pass()
        return batch if self._finish is None else self._finish(batch)

    def _pass(self) -> None:
        while self._passed < self._iteration.passed:
            self._passed += 1
            self._batches.delivered()

    def close(self) -> None:
        """Cancel what is under way. The loader and its workers go on."""
        self._iteration.close()

    def state(self) -> dict[str, Any]:
        """Of a loader in the middle of this epoch."""
        found = {"epoch": self.number, "yielded": self._first + self._passed, "batches": self._batches.state(finished=False)}
        if self._streams:
            found["streams"] = {str(worker): list(where) for worker, where in self._streams.items()}
            found["turn"] = self._turn
        return found


def can_pin() -> bool:
    """Whether there is anything to pin memory for; warns where there is not."""
    import torch

    if torch.accelerator.is_available():
        return True
    warnings.warn("pin_memory is set and torch has no accelerator here: nothing is pinned", stacklevel=4)
    return False


def pinned(batch: Any) -> Any:
    """The batch in page-locked memory, which torch alone owns."""
    from torch.utils.data._utils import pin_memory as theirs

    pin: Any = theirs.pin_memory
    return pin(batch)
