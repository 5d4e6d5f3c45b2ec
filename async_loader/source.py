"""What the loader asks of anything that has data. Five implementers were kept in mind: a callable, a dict of
columns, a replay table, a dataset, and a table in a feeder process. Holds no data and starts nothing.

A source *plans* in the producer thread (cheap: which rows, which callables) and its *reader* does the work wherever
the loader puts it: in the same thread, or in worker processes. A plan is one of

=============  =========================================================  ==================================
plan           what the loader does with it                               who makes it
=============  =========================================================  ==================================
``Rows``       cuts the index into chunks; readers read them into slots   columns, replay table, dataset
``Jobs``       cuts the list into chunks; workers call them and collate   callable
``Samples``    collates them in the producer thread                       callable
``Ready``      hands the batch on                                         callable, feeder table
``END``        delivers what is under way, then StopIteration             any
=============  =========================================================  ==================================
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from async_loader.lifecycle import Patience
from async_loader.schema import Schema

__all__ = [
    "END",
    "Applied",
    "Explaining",
    "Foresighted",
    "Jobs",
    "Leasing",
    "Plan",
    "Reader",
    "Ready",
    "Rows",
    "Samples",
    "Seed",
    "Source",
    "Updating",
    "Window",
]

Seed = tuple[int, ...]


class _End(enum.Enum):
    END = "END"

    def __repr__(self) -> str:
        return "END"


END: Literal[_End.END] = _End.END


@dataclass(frozen=True, slots=True)
class Rows:
    """Read these rows.

    Attributes
    ----------
    index : int64 array [rows] or [rows, words]
        What the reader understands: positions, or 64-bit ids, or more than one word for each row.
    """

    index: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, slots=True)
class Jobs:
    """Call these, each returns one sample, and collate what they return, in this order."""

    calls: Sequence[Callable[[], Any]]

    def __len__(self) -> int:
        return len(self.calls)


@dataclass(frozen=True, slots=True)
class Samples:
    """Collate these, in this order."""

    samples: Sequence[Any]

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True, slots=True)
class Ready:
    """A batch as it stands.

    Attributes
    ----------
    batch : mapping
        Of arrays or tensors, nested as it likes.
    lent : bool
        The arrays' memory stays valid and unchanged for as long as they are referenced, so it need not be copied.
    lease : object, optional
        What a `Leasing` source is told about this batch by.
    samples : callable, optional
        Returns the rows as samples, for a collate_fn; without one the batch is not collated.
    """

    batch: Mapping[str, Any]
    lent: bool = False
    lease: object = None
    samples: Callable[[], Sequence[Any]] | None = None


Plan = Rows | Jobs | Samples | Ready | Literal[_End.END]


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of an update by id.

    Attributes
    ----------
    applied : int
        Rows that were still there.
    stale : int
        Rows that had been overwritten or deleted; nothing was done to their successors.
    """

    applied: int
    stale: int


@dataclass(frozen=True, slots=True)
class Window:
    """The rows of one batch that a reader fills.

    Attributes
    ----------
    fields : list of arrays [rows, ...]
        One per field of the reader's schema, in its order; may be strided.
    packed : uint8 array [rows, stride] | None
        The same memory as packed rows, when the batch is laid out so.
    """

    fields: list[npt.NDArray[Any]]
    packed: npt.NDArray[np.uint8] | None = None


class Reader(Protocol):
    """Does the work of a part of a ``Rows`` plan. Travels to workers: picklable while a process is being spawned.

    Threads: one thread at a time per reader. Cost: all the reading.
    """

    @property
    def schema(self) -> Schema | None:
        """What `read` fills. ``None``: not known before the first row; then `fetch` is called instead."""

    def read(self, index: npt.NDArray[np.int64], into: Window, seed: Seed) -> None:
        """Fill ``into`` with the rows of ``index``. ``seed`` is unique to this part of this batch."""

    def fetch(self, index: npt.NDArray[np.int64], seed: Seed) -> Sequence[Any]:
        """The rows as samples, for collation."""


@runtime_checkable
class Source(Protocol):
    """Anything that has data. These three methods are required; see `Explaining`, `Foresighted`, `Updating`, `Leasing`.

    Threads: `plan` is called by one, the producer's; `update_priorities` by any.
    """

    def plan(self, batch_size: int, patience: Patience) -> Plan:
        """What makes the next batch. Called by the producer thread only, one call at a time, ahead of the consumer.

        May wait, but only through ``patience``, which raises Closed and Timeout.
        """

    def reader(self) -> Reader | None:
        """What does the work of ``Rows`` plans; ``None`` for sources that never plan rows."""

    def update_priorities(self, index: npt.NDArray[np.int64], priority: npt.NDArray[np.float64]) -> Applied:
        """New priorities for rows of earlier batches. Any thread. Raises Unsupported where it makes no sense."""


@runtime_checkable
class Explaining(Protocol):
    """A source that says why it waits. Optional: without it a deadlock is not found, and messages say less."""

    def waiting_for(self) -> str | None:
        """Why `plan` is waiting, in numbers, when only adding data from this process ends it; ``None`` otherwise."""


def waiting_for(source: Source) -> str | None:
    """Why `plan` of this source is waiting; ``None`` where it does not wait, or does not say it."""
    return source.waiting_for() if isinstance(source, Explaining) else None


@runtime_checkable
class Updating(Protocol):
    """A source whose rows can be changed. Optional."""

    def update(self, index: Any, /, **fields: Any) -> Applied:
        """New values of some fields, for rows of earlier batches. Any thread."""


@runtime_checkable
class Foresighted(Protocol):
    """A source that wants to know how far ahead of the learner it will be asked. Optional."""

    def note_ahead(self, batch_size: int, batches: int) -> None:
        """A loader will plan this many batches before the first of them is used. Called once, before `plan`; may warn."""


@runtime_checkable
class Leasing(Protocol):
    """A source that delivers a batch again, elsewhere perhaps, unless it was used. Its `Ready` plans carry a lease.

    ::

        plan ──▶ planned ──hand_out──▶ handed out ──settle──▶ used
                    │                       │
                    └──────── release ──────┴──▶ the source's again

    Threads: `hand_out` and `settle` are called by the consumer's thread, within ``next``, and wait for nothing;
    `release` by the thread that closes the loader, after the last `plan`.
    """

    def hand_out(self, lease: object) -> bool:
        """The consumer gets this batch now. False: it is delivered elsewhere by now, and must be dropped.

        Twice does no harm: a ``next`` that a signal interrupted asks again.
        """

    def settle(self, lease: object) -> None:
        """The consumer has used this batch: it asked for another one, or closed the loader, after it. Twice does no harm."""

    def release(self, timeout_s: float) -> None:
        """The loader is closed: what is not settled goes back at once. Waits for ``timeout_s`` at most, and raises nothing.

        The source may be planned from again, by another loader.
        """
