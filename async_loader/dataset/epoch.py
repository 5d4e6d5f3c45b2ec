"""One epoch as the consumer sees it: counts what was given, and knows where it is. Makes no
batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from async_loader.dataset.batch_order import Batches, StreamBatches
from async_loader.dataset.bookmarks import Bookmark
from async_loader.dataset.dataset_work import StreamResult
from async_loader.name_hints import stacklevel
from async_loader.pipeline.iterator import BatchIterator
from async_loader.source import END
from async_loader.stats import LearnerMeter

if TYPE_CHECKING:
    pass


def most_batches(batches: Batches | None, batch_size: int | None, streams: int) -> int | None:
    """Return how many batches of an iterable dataset its length allows; ``None``: any number.

    Each of the workers but one may have an incomplete batch more.
    """
    try:
        length = None if batches is None else len(batches)
    except (TypeError, NotImplementedError):
        return None
    return None if length is None else length + (streams - 1) * (batch_size not in (None, 1))


B = TypeVar("B")


class EpochProgress:
    """What a state of a loader says of one epoch.

    Parameters
    ----------
    start : mapping
        What a state says of the epoch that goes on here, or has ended; empty: one begins.
    before : EpochProgress | None
        Of the epoch before, where its datasets go on in the next one.

    Attributes
    ----------
    first : int
        The task with which it begins here.
    upto : int
        Tasks, from the first on, that are over. Where batches come as they are ready, later ones
        may be over too: a loader that goes on gives them again.
    marks : dict
        Worker to where its dataset is.
    untold : dict
        Those of another process, of workers that have not said anything here.
    turn : int
        The worker whose stream gives the next batch.
    """

    def __init__(
        self, start: Mapping[str, Any] = MappingProxyType({}), before: EpochProgress | None = None
    ) -> None:
        over = bool(start.get("finished")) or before is not None
        self.first: int = 0 if over else start.get("yielded", 0)
        self.upto = self.first
        self.turn: int = 0 if over else start.get("turn", 0)
        streams = (start.get("streams") or {}).items()
        marks = {int(worker): Bookmark(**mark) for worker, mark in streams}
        if before is not None:
            marks = before.marks
        self.marks: dict[int, Bookmark]
        self.marks = {n: replace(mark, over=True) if over else mark for n, mark in marks.items()}
        known = marks if before is None else before.untold
        self.untold: dict[int, Bookmark]
        self.untold = {n: mark for n, mark in self.marks.items() if n in known}

    def note(self, worker: int, mark: Bookmark) -> None:
        """A worker said where it is."""
        self.marks[worker] = mark
        self.untold.pop(worker, None)

    def state(self) -> dict[str, Any]:
        """What `EpochProgress` goes on from; nothing in it changes any more."""
        found: dict[str, Any] = {"yielded": self.upto}
        if self.marks:
            found["streams"] = {str(n): asdict(mark) for n, mark in sorted(self.marks.items())}
            found["turn"] = self.turn
        return found


@dataclass(eq=False, repr=False)
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
        Of tasks, or of streams.
    batches : Batches
    progress : EpochProgress
        What was over before.
    finish : callable | None
        Done to each batch in the consumer's thread.
    meter : LearnerMeter | None
        Of the consumer, for all epochs of a loader.
    most : int | None
        More batches than these are warned of, once.
    """

    iteration: BatchIterator
    batches: Batches
    number: int
    progress: EpochProgress
    finish: Callable[[Any], Any] | None
    meter: LearnerMeter | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        self.yielded = self.progress.first
        self.finished = False

    def __iter__(self) -> Epoch[B]:
        return self

    def __next__(self) -> B:
        """The next batch. See `async_loader.pipeline.iterator.BatchIterator.__next__` for what
        is raised.
        """
        begun = perf_counter()
        self._catch_up()
        try:
            batch: B = self._find()
        finally:
            if self.meter is not None:
                self.meter.waited(begun)
        if self.meter is not None:
            self.meter.batches += 1
        self.yielded += 1
        return batch

    def _find(self) -> Any:
        for batch in self.iteration:
            if type(batch) is StreamResult:
                batch, worker, mark = batch
                self.progress.note(worker, mark)
                if batch is END:  # the dataset of this worker has ended
                    continue
                self.progress.turn = worker + 1
            if self.finish is not None:
                batch = self.finish(batch)
            if self.most is not None and self.yielded >= self.most:
                warnings.warn(
                    f"more than {self.most} batches have come, and len(loader) says less: if each "
                    "worker iterates over all of the dataset, give each a share by "
                    "torch.utils.data.get_worker_info(), or use num_workers=1; else its __len__ "
                    "says too little",
                    stacklevel=stacklevel(),
                )
                self.most = None
            return batch
        self.finished = self.iteration.exhausted
        raise StopIteration

    def _catch_up(self) -> None:
        """Count what was handed out, or failed in its turn and is not to be done again."""
        progress = self.progress
        if isinstance(self.batches, StreamBatches):  # where they are is known by their bookmarks
            progress.upto = self.yielded
            return
        progress.upto = progress.first + self.iteration.passed

    def close(self) -> None:
        """Cancel what is under way. The loader and its workers go on."""
        self.iteration.close()

    def state(self) -> dict[str, Any]:
        """Of a loader in the middle of this epoch, or at its end."""
        self._catch_up()
        found = {
            "epoch": self.number,
            **self.progress.state(),
            "batches": self.batches.state(upto=self.progress.upto, finished=self.finished),
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
