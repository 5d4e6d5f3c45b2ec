"""Batches: who gets one when the table lets one out. Has no socket; what is sent is handed to a function."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from async_loader.errors import ConfigError, Malformed
from async_loader.feeder.wire import ErrorCode, OpenReader, RowLayout
from async_loader.replay.served import Drawing, ServedTable
from async_loader.replay.views import Transitions

MOST_AHEAD = 256
"""Batches that a reader can have on their way, whatever it grants."""

Arrays = Sequence[Any]


@dataclass(slots=True, eq=False)
class Lease:
    """A batch of items that go out once, until its learner gives it back as used."""

    arrays: Arrays
    deliveries: int = 0


@dataclass(slots=True, eq=False)
class ReaderState:
    """A learner's reader.

    Attributes
    ----------
    granted, sent : int
        Batches, counted from its opening.
    hungry_since : float | None
        Since when it has had credit and got nothing.
    leases : dict
        By the number of the batch: what it has not given back.
    """

    number: int
    outlet: Outlet
    drawing: Drawing
    layout: RowLayout
    batch_size: int
    timeout_s: float | None
    granted: int = 0
    sent: int = 0
    hungry_since: float | None = None
    told: bool = False
    leases: OrderedDict[int, Lease] = field(default_factory=OrderedDict)

    @property
    def hungry(self) -> bool:
        """Whether it may be sent a batch."""
        return self.sent < self.granted

    def grant(self, total: int) -> None:
        """It takes so many batches, counted from its opening; fewer than before says nothing."""
        self.granted = max(self.granted, min(total, self.sent + MOST_AHEAD))

    def left_s(self, now: float) -> float | None:
        """Seconds until it has to be told that nothing came."""
        if self.timeout_s is None or self.hungry_since is None:
            return None
        return max(0.0, self.hungry_since + self.timeout_s - now)


class Outlet:
    """The batches of one table.

    Parameters
    ----------
    name : str
    table : ServedTable
    """

    def __init__(self, name: str, table: ServedTable) -> None:
        self.name, self.table = name, table
        self._hungry: deque[ReaderState] = deque()
        self._returned: deque[Lease] = deque()
        self.batches = self.rows = self.redelivered = 0

    def open(self, number: int, wanted: OpenReader) -> ReaderState:
        """A reader.

        Raises
        ------
        Malformed
            SCHEMA, while nobody knows what a step is; UNSUPPORTED, for what this table cannot show.
        """
        if self.table.schema is None:
            raise Malformed(f"table {self.name!r} has no schema yet: try again when a writer was there", ErrorCode.TIMEOUT)
        view = None if wanted.view is None else Transitions(n=wanted.view.n, gamma=wanted.view.gamma)
        try:
            drawing = self.table.drawing(view, wanted.rank, wanted.world_size, wanted.seed)
        except ConfigError as error:
            raise Malformed(str(error), ErrorCode.UNSUPPORTED) from None
        layout = RowLayout.of(drawing.schema, headed=False)
        layout.rows_within()
        return ReaderState(number, self, drawing, layout, wanted.batch_size, wanted.timeout_s)

    def want(self, reader: ReaderState, now: float) -> None:
        """It may have been granted more."""
        if reader.hungry and reader.hungry_since is None:
            reader.hungry_since = now
            self._hungry.append(reader)

    def close(self, reader: ReaderState) -> None:
        """It is gone: what it had not given back goes to others."""
        if reader in self._hungry:
            self._hungry.remove(reader)
        self._returned.extend(reader.leases.values())
        reader.leases.clear()
        reader.drawing.close()

    def serve(self, send: Callable[[ReaderState, Arrays, bool], bool], now: float, most: int) -> int:
        """Draw and send up to ``most`` batches, whoever has waited longest first; how many were sent.

        ``send`` is given the reader, the arrays and whether they were sent before; it says whether they are on their way.
        """
        served = passed = 0
        while served < most and passed < len(self._hungry):
            reader = self._hungry.popleft()
            lease = self._next(reader)
            if lease is None:
                self._hungry.append(reader)  # another may want fewer, or draw by another sampler
                passed += 1
                continue
            passed = 0
            number, again = reader.sent, lease.deliveries > 0
            reader.sent += 1
            lease.deliveries += 1
            if self.table.leased:
                reader.leases[number] = lease
            sent = send(reader, lease.arrays, again)
            if not sent and self.table.leased:
                self._returned.append(reader.leases.pop(number))
            self.batches += sent
            self.rows += len(lease.arrays[0]) * sent
            self.redelivered += again and sent
            served += 1
            reader.hungry_since = now if reader.hungry else None
            if reader.hungry:
                self._hungry.append(reader)
        return served

    def _next(self, reader: ReaderState) -> Lease | None:
        """What the reader gets, if there is something for it."""
        if self._returned:
            return self._returned.popleft()
        if reader.drawing.why_not(reader.batch_size) is not None:
            return None
        return Lease(reader.drawing.arrays(reader.batch_size))

    def give_back(self, reader: ReaderState, numbers: Sequence[int]) -> None:
        """The learner has used these batches."""
        for number in numbers:
            reader.leases.pop(number, None)

    def overdue(self, now: float) -> list[tuple[ReaderState, str]]:
        """Readers that have waited for too long, and for what. They wait on, and are told again after as long."""
        found = []
        for reader in self._hungry:
            if reader.left_s(now) == 0.0:
                reader.hungry_since = now
                found.append((reader, reader.drawing.why_not(reader.batch_size) or "other learners come first"))
        return found

    def left_s(self, now: float) -> float | None:
        """Seconds until a reader is overdue."""
        return min((left for one in self._hungry if (left := one.left_s(now)) is not None), default=None)

    @property
    def hungry(self) -> bool:
        """Whether anybody waits."""
        return bool(self._hungry)

    def waiting(self) -> list[str]:
        """Who waits, and for what."""
        said = [(one, one.drawing.why_not(one.batch_size)) for one in self._hungry]
        return [f"reader {one.number} to sample {one.batch_size}: {reason}" for one, reason in said if reason]
