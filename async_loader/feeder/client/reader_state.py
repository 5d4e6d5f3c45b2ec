"""Where a reader of a client stands: its phase, its opening, its credit."""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy.typing as npt

from async_loader.feeder.client.batch_copies import Unpacking
from async_loader.feeder.wire import Limits, TotalsReply
from async_loader.schema import Schema

MOST_BEHIND, EVERY_S = 16, 60.0
"""Versions that are not warned of, and the least time between two warnings."""
_SUFFIX = "_version"
_log = logging.getLogger(__name__)


class OldRows:
    """What one client knows of published weights, and says of the rows that it is given.

    Parameters
    ----------
    clock : callable
        Monotonic seconds.

    Attributes
    ----------
    newest : dict of str to int
        The newest version that this client has published or was given, by the weights' name.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.newest: dict[str, int] = {}
        self._schema: Schema | None = None
        self._places: list[tuple[int, str]] = []
        self._said_at = -math.inf

    def look(self, table: str, schema: Schema, columns: Sequence[npt.NDArray[Any]]) -> None:
        """Warn if a row of this batch is more than `MOST_BEHIND` versions behind."""
        if not self.newest:
            return
        if schema is not self._schema:
            self._places = [
                (place, field.name.removesuffix(_SUFFIX))
                for place, field in enumerate(schema.fields)
                if field.name.endswith(_SUFFIX) and not field.shape and field.dtype.kind in "iu"
            ]
            self._schema = schema
        for place, name in self._places:
            newest = self.newest.get(name)
            if newest is None:
                continue
            behind, now = newest - int(columns[place].min()), self._clock()
            if behind > MOST_BEHIND and now - self._said_at >= EVERY_S:
                self._said_at = now
                _log.warning(
                    "a batch of table %r has rows of weights %r that are %d versions behind "
                    "version %d, which is published: make the queue smaller, or leave old rows "
                    "out with source(max_lag=...)",
                    table, name, behind, newest,
                )  # fmt: skip


LATER_S, LATER_MOST_S = 0.05, 1.0
"""Wait before OPEN_READER is sent again after a temporary refusal: the table has no schema yet."""
AHEAD_BYTES, AHEAD_LEAST, AHEAD_MOST, AHEAD_WEIGHTED = 4 << 20, 4, 32, 8
"""Batches ahead by default: many small ones share a message. Fewer where batches have weights:
weights and priorities are those of the moment of the draw."""
TOTALS_AGAIN_S = 1.0
"""After this long without an answer a TOTALS is sent again."""
Transport = Literal["auto", "shm", "tcp"]


class ReaderPhase(enum.Enum):
    """Where a reader is. `MOVES` holds the legal moves."""

    WANTED = "wanted"
    """An OPEN_READER has to be sent."""
    OPENING = "opening"
    OFFERING = "offering"
    """Memory is offered, and not taken yet."""
    READY = "ready"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


OPEN = {ReaderPhase.OPENING, ReaderPhase.OFFERING, ReaderPhase.READY}
OVER = {ReaderPhase.CLOSED, ReaderPhase.FAILED}
_LEAVES = {ReaderPhase.WANTED, ReaderPhase.CLOSING, *OVER}
MOVES: dict[ReaderPhase, set[ReaderPhase]] = {
    ReaderPhase.WANTED: {ReaderPhase.OPENING, *OVER},
    ReaderPhase.OPENING: {*OPEN, *_LEAVES},
    ReaderPhase.OFFERING: {ReaderPhase.READY, *_LEAVES},
    ReaderPhase.READY: _LEAVES,
    ReaderPhase.CLOSING: OVER,
    ReaderPhase.CLOSED: set(),
    ReaderPhase.FAILED: {ReaderPhase.FAILED},
}


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """What the user wants of a reader.

    Attributes
    ----------
    prefetch : int | None
        Batches on their way or waiting here; 0: each is drawn when a thread waits for it.
        ``None``: `ahead_of` decides once the schema is known.
    transport : "auto" | "shm" | "tcp"
    planned : int
        Batches that a loader plans ahead of the learner.
    most : int
        Batches ahead at most, where `ahead_of` decides.
    """

    prefetch: int | None
    transport: Transport = "tcp"
    planned: int = 0
    most: int = AHEAD_MOST


@dataclass(slots=True)
class Opening:
    """What OPEN_READER and READER said.

    Attributes
    ----------
    number : int
        Openings so far: leases of earlier ones are void.
    server : int
        See `Connection.servers`.
    leased : bool
        Whether batches have to be returned.
    eta : float | None
        Of sequences: the share of the largest error in a priority.
    transport : "shm" | "tcp" | None
    barred : str | None
        Why this session uses tcp although memory was wanted.
    logged : str | None
        The last such reason in the log.
    later_s : float
        Wait before the next attempt.
    """

    number: int = 0
    server: int = 0
    schema: Schema | None = None
    leased: bool = False
    eta: float | None = None
    transport: Literal["shm", "tcp"] | None = None
    unpacking: Unpacking | None = None
    limits: Limits = field(default_factory=Limits)
    barred: str | None = None
    logged: str | None = None
    later_s: float = LATER_S


@dataclass(slots=True)
class Credit:
    """Batches of this opening, counted from its beginning.

    Attributes
    ----------
    ahead : int
        Batches that may be on their way or wait here.
    granted : int
        Batches that the learner may be sent.
    told : int
        As the last PULL said.
    received : int
    remind_at : float | None
        When the last PULL is sent again.
    ended_after : int | None
        Batches before END.
    """

    ahead: int = 0
    granted: int = 0
    told: int = 0
    received: int = 0
    remind_at: float | None = None
    ended_after: int | None = None


@dataclass(slots=True)
class TotalsNews:
    """What a feeder has said of how much a reader draws from.

    Attributes
    ----------
    newest : TotalsReply | None
        Of this session.
    heard_at : float
        When it came, in seconds of the monotonic clock.
    wanted : bool
        Whether a TOTALS has to be sent.
    asked_at : float | None
        When the last one was sent, until it is answered.
    every_s : float | None
        Seconds after which to ask again without being told, while a thread waits for a batch.
    """

    newest: TotalsReply | None = None
    heard_at: float = 0.0
    wanted: bool = False
    asked_at: float | None = None
    every_s: float | None = None

    def begin(self) -> None:
        """There is a new session."""
        self.newest = self.asked_at = None
        self.wanted = self.every_s is not None

    def due(self, now: float, waits: bool) -> float | None:
        """Return when to ask, at ``now`` or later; ``None``: not by itself."""
        if self.every_s is None:
            return None
        if self.asked_at is not None:
            return self.asked_at + TOTALS_AGAIN_S
        return now if self.wanted else self.heard_at + self.every_s if waits else None


def ahead_of(schema: Schema, batch_bytes: int, planned: int) -> int:
    """Return how many batches may be ahead by default."""
    weighted = any(one.name == "weight" for one in schema.fields)
    most = AHEAD_WEIGHTED if weighted else AHEAD_MOST
    return max(AHEAD_LEAST, min(most, AHEAD_BYTES // max(1, batch_bytes)), planned)
