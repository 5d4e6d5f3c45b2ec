"""One epoch as the consumer sees it: counts what was given, and knows where it is. Makes no
batch.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from async_loader import tensors, tree
from async_loader.dataset.batch_order import Batches, StreamBatches
from async_loader.dataset.dataset_work import StreamResult
from async_loader.dataset.epoch_progress import EpochProgress
from async_loader.dataset.share_check import ShareCheck
from async_loader.errors import Closed
from async_loader.names import stacklevel
from async_loader.pipeline.batch import Failure
from async_loader.pipeline.iterator import BatchIterator
from async_loader.source import END
from async_loader.stats import Meter, StageStats

if TYPE_CHECKING:
    import torch

B = TypeVar("B")


class Epoch(Iterator[B]):
    """Made by ``iter(DataLoader)``. One consumer at a time.

    Attributes
    ----------
    number : int
    yielded : int
        Batches given, those before the state that it began with included.
    finished : bool
        All batches were given.

    Parameters
    ----------
    iteration : BatchIterator
        Of tasks, or of streams; with openings where the workers' datasets are to be known.
    batches : Batches
    epoch_progress : EpochProgress
        What was over before.
    finish : callable | None
        Done to each batch in the consumer's thread.
    meter : Meter | None
        Of the consumer, for all epochs of a loader.
    check : ShareCheck | None
        Sees the batches of an iterable dataset.
    """

    def __init__(
        self,
        iteration: BatchIterator,
        batches: Batches,
        number: int,
        epoch_progress: EpochProgress,
        finish: Callable[[Any], Any] | None,
        meter: Meter | None = None,
        check: ShareCheck | None = None,
    ) -> None:
        self.number = number
        self.yielded = epoch_progress.over
        self.finished = False
        self._iteration = iteration
        self._batches = batches
        self._snapshots = batches.snapshots
        self._epoch_progress = epoch_progress
        self._finish = finish
        self._meter = meter
        self._check = check
        self._opened = False
        self._unfit: deque[BaseException] = deque()

    def __repr__(self) -> str:
        return (
            f"<Epoch {self.number} of a DataLoader, {self.yielded} batches "
            f"given{', finished' if self.finished else ''}>"
        )

    def __iter__(self) -> Epoch[B]:
        return self

    def __next__(self) -> B:
        """The next batch. See `async_loader.pipeline.iterator.BatchIterator.__next__` for what
        is raised.
        """
        begun = perf_counter()
        self._catch_up()
        try:
            if not self._opened:
                self.open()
            self.raise_unfit()
            batch: B = self._find()
        finally:
            if self._meter is not None:
                self._meter.waited(begun)
        if self._meter is not None:
            self._meter.batches += 1
        self.yielded += 1
        return batch

    def _find(self) -> Any:
        for batch in self._iteration:
            if type(batch) is StreamResult:
                batch, where = batch
                self._epoch_progress.note(where)
                if batch is END:  # the dataset of this worker has ended
                    continue
                self._epoch_progress.turn = where.worker + 1
            if self._finish is not None:
                batch = self._finish(batch)
            if self._check is not None:
                self._check.see(self.yielded + 1, batch)
            return batch
        self.finished = self._iteration.exhausted
        raise StopIteration

    def open(self) -> None:
        """Wait until every worker has begun and has said where its dataset is; idempotent. The
        errors of those that could not begin are kept: `__next__` raises them one by one.

        Raises
        ------
        Timeout, Broken
        """
        if self._opened:
            return
        try:
            answers = self._iteration.openings()
        except Closed:
            answers = []
        self._opened = True
        for answer in answers:
            if isinstance(answer, Failure):
                self._unfit.append(answer.error)
            elif answer is not END:
                self._epoch_progress.note(answer.where)

    def raise_unfit(self) -> None:
        """The error of the next worker that could not begin, if there is one."""
        if self._unfit:
            raise self._unfit.popleft()

    def copying(self) -> StageStats | None:
        """Counters of the copy to a device; ``None`` for batches that stay on the CPU."""
        return self._iteration.stage()

    def _catch_up(self) -> None:
        """Count what was handed out, or failed in its turn and is not to be done again."""
        progress = self._epoch_progress
        if isinstance(self._batches, StreamBatches):  # where they are is known by their bookmarks
            progress.upto = self.yielded
            return
        progress.passed(self._iteration.passed, self._iteration.beyond)
        self._snapshots.delivered(progress.upto)

    def close(self) -> None:
        """Cancel what is under way. The loader and its workers go on."""
        self._iteration.close()

    def state(self) -> dict[str, Any]:
        """Of a loader in the middle of this epoch, or at its end. Waits until all workers have
        begun.
        """
        self.open()
        self._catch_up()
        found = {
            "epoch": self.number,
            **self._epoch_progress.state(),
            "batches": self._batches.state(self._snapshots, finished=self.finished),
        }
        if self.finished:
            found["finished"] = True
        return found


def can_pin() -> bool:
    """Whether there is anything to pin memory for; warns where there is not."""
    import torch

    if torch.accelerator.is_available():
        return True
    warnings.warn(
        "pin_memory is set and torch has no accelerator here: nothing is pinned",
        stacklevel=stacklevel(),
    )
    return False


def pinned(batch: object) -> Any:
    """The batch in page-locked memory, which torch alone owns."""
    from torch.utils.data._utils import pin_memory as theirs

    pin: Any = theirs.pin_memory
    return pin(batch)


def moved(batch: object, device: str | torch.device) -> Any:
    """The batch with its tensors on a device, copied in this thread."""
    import torch

    def move(value: object) -> Any:
        value = tensors.as_tensor(value)
        return value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value

    return tree.transform(batch, move)
