"""The protocols between the loader and its data. Implementers: a callable, a dict of columns, a
replay table, a dataset, and a table in a feeder process.

A source *plans* in the producer thread (cheap: which rows, which callables) and its *reader* does
the work where the loader runs it: in the same thread, or in worker processes. A plan is one of

=========== ===================================================== ==========================
plan        what the loader does with it                          made by
=========== ===================================================== ==========================
``Rows``    cuts the index into chunks; readers read into slots   columns, replay, dataset
``Jobs``    cuts the list into chunks; workers call and collate   callable
``Samples`` collates them in the producer thread                  callable
``Ready``   delivers the batch                                    callable, feeder table
``END``     delivers the batches in progress, then StopIteration  any
=========== ===================================================== ==========================
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from async_loader.lifecycle import Patience
from async_loader.public_names import set_public_names
from async_loader.schema import Schema

__all__ = [
    "END",
    "AnyThread",
    "Applied",
    "Explaining",
    "Finishing",
    "Foresighted",
    "Jobs",
    "Leasing",
    "Plan",
    "Reader",
    "Ready",
    "Resumable",
    "Rows",
    "Samples",
    "Seed",
    "Source",
    "Updating",
    "Window",
]
set_public_names(globals())

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
        Meaning is up to the reader: positions, or 64-bit ids, or several words per row.
    """

    index: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, slots=True)
class Jobs:
    """Call these functions, each of which returns one sample,
    and collate the samples in this order.
    """

    calls: Sequence[Callable[[], Any]]

    def __len__(self) -> int:
        return len(self.calls)


@dataclass(frozen=True, slots=True)
class Samples:
    """Collate these samples in this order."""

    samples: Sequence[Any]

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True, slots=True)
class Ready:
    """A complete batch.

    Attributes
    ----------
    batch : mapping
        Arrays or tensors, nested at will.
    lent : bool
        The arrays' memory stays valid and unchanged while they are referenced, so it need not be
        copied.
    lease : object, optional
        Identifies this batch in calls to a `Leasing` source.
    samples : callable, optional
        Returns the rows as samples for a collate_fn; by default those of ``batch``.
    """

    batch: Mapping[str, Any]
    lent: bool = False
    lease: object = None
    samples: Callable[[], Sequence[Any]] | None = None


Plan = Rows | Jobs | Samples | Ready | Literal[_End.END]


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of an update by id.

    Attributes
    ----------
    applied : int
        Rows that were updated.
    stale : int
        Rows that had been overwritten or deleted; the rows now in their place are unchanged.
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
    """

    fields: list[npt.NDArray[Any]]


class Reader(Protocol):
    """Reads chunks of a ``Rows`` plan.

    Sent to workers: must be picklable while a process is being spawned.

    Threads: one thread at a time per reader. Cost: all the reading.
    """

    @property
    def schema(self) -> Schema | None:
        """Schema of the rows that `read` fills.

        ``None`` if unknown before the first row; then `fetch` is called instead.
        """

    def read(self, index: npt.NDArray[np.int64], into: Window, seed: Seed) -> None:
        """Fill ``into`` with the rows of ``index``.

        ``seed`` is unique to this chunk of this batch.
        """

    def fetch(self, index: npt.NDArray[np.int64], seed: Seed) -> Sequence[Any]:
        """Return the rows as samples for collation."""


@runtime_checkable
class Source(Protocol):
    """Any supplier of data.

    These three methods are required; see `Explaining`, `Foresighted`, `Updating`, `Resumable`,
    `AnyThread`, `Leasing`.

    Threads: `plan` is called by the producer thread only, unless the source is `AnyThread`;
    `update_priorities` by any.
    """

    def plan(self, batch_size: int, patience: Patience) -> Plan:
        """Return the plan of the next batch.

        Called by the producer thread, one call at a time, ahead of the consumer.

        May wait, but only through ``patience``, which raises Closed and Timeout.
        """

    def reader(self) -> Reader | None:
        """Return the reader of ``Rows`` plans; ``None`` for sources that never plan rows.

        Worker threads ask for one each: another one, or one that they may use at the same time.
        """

    def update_priorities(
        self, index: npt.NDArray[np.int64], priority: npt.NDArray[np.float64]
    ) -> Applied:
        """Set the priorities of rows in earlier batches.

        Any thread. Raises Unsupported if the source has none.
        """


@runtime_checkable
class Explaining(Protocol):
    """A source that reports why it waits.

    Optional: without it a deadlock is not detected, and messages say less.
    """

    def waiting_for(self) -> str | None:
        """Return why `plan` waits, with numbers,
        if only adding data in this process ends the wait; else ``None``.
        """


def waiting_for(source: Source) -> str | None:
    """Return why `plan` of this source waits;
    ``None`` if it does not wait or does not report it.
    """
    # As `Explaining` says; isinstance() of a protocol takes 30 us, before each wait for a batch.
    ask = getattr(source, "waiting_for", None)
    return None if ask is None else ask()


@runtime_checkable
class Updating(Protocol):
    """A source whose rows can be changed. Optional."""

    def update(self, index: Any, /, **fields: Any) -> Applied:
        """Set some fields of rows in earlier batches. Any thread."""


@runtime_checkable
class Finishing(Protocol):
    """A source whose batches get their last form when all of their rows are there. Optional."""

    @property
    def finishes(self) -> Callable[[Any], Any] | None:
        """What a loader calls with the arrays of each whole batch, before its ``transform``.

        Its result may have other shapes for each batch. ``None``: nothing.
        """


def finishes(source: object) -> Callable[[Any], Any] | None:
    """Return what gives the batches of this source their last form; ``None``: nothing."""
    return source.finishes if isinstance(source, Finishing) else None


@runtime_checkable
class Foresighted(Protocol):
    """A source that uses the number of batches planned ahead of the learner. Optional."""

    def note_ahead(self, batch_size: int, batches: int) -> None:
        """Announce that a loader plans this many batches before the first is used.

        Called once, before `plan`; may warn.
        """


@runtime_checkable
class Resumable(Protocol):
    """A source whose batches go on elsewhere, from a state of the loader. Optional."""

    def state_dict(self) -> dict[str, Any] | None:
        """Return where the next plan is, as JSON values if that can be; ``None``: there is nothing
        that `load_state_dict` could bring back.

        Called by the thread that plans, after each plan. Cost: a microsecond or two.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the plan that was next when the state was taken. No thread plans meanwhile."""


def state_of(source: object) -> dict[str, Any] | None:
    """Return the state of a source, if it has any."""
    ask = getattr(source, "state_dict", None)  # isinstance() of a protocol takes 30 us
    return None if ask is None else ask()


@runtime_checkable
class AnyThread(Protocol):
    """A source whose `plan` may be called by any thread, one at a time. Optional.

    A loader without workers draws its batches in the thread that calls ``next``, while that costs
    less than having another thread do it.
    """

    def draw_now(self, batch_size: int) -> Plan | None:
        """Return what `plan` would, and rows as a ``Ready`` batch if it can.

        ``None``: that needs a wait, so call `plan`.
        """


@runtime_checkable
class Leasing(Protocol):
    """A source that redelivers a batch, possibly to another reader, unless it was used.

    Its `Ready` plans carry a lease.

    ::

        plan ──▶ planned ──hand_out──▶ handed out ──settle──▶ used
                    │                       │
                    └──────── release ──────┴──▶ returned to the source

    Threads: `hand_out` and `settle` are called by the consumer's thread, within ``next``, and wait
    for nothing; `release` by the thread that closes the loader, after the last `plan`.
    """

    def hand_out(self, lease: object) -> bool:
        """Start the consumer's use of this batch.

        False if it was redelivered elsewhere and must be dropped.
        """

    def settle(self, lease: object) -> None:
        """Mark the batch as used: the consumer asked for another one, or closed the loader.

        Idempotent.
        """

    def release(self, timeout_s: float) -> None:
        """Return all unsettled batches at once because the loader is closed.

        Waits at most ``timeout_s``; never raises.

        Another loader may use the source afterwards.
        """
