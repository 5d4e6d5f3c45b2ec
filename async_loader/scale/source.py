"""A table of a cluster as a loader's source: batches out of the rows of all shards."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from async_loader.errors import (
    AsyncLoaderError,
    CannotSend,
    Closed,
    ConfigError,
    NotEnoughData,
    Timeout,
)
from async_loader.feeder.client.source import RemoteSource
from async_loader.feeder.wire import TotalsReply
from async_loader.lifecycle import Deadline, EventFd, Patience
from async_loader.scale.by_id import RowsById
from async_loader.scale.connections import Connections, ShardConnection
from async_loader.scale.draws import AGE, WEIGHTED_AGE, BatchMaker, Counts, Draws, chunks_of
from async_loader.scale.shard_rows import ShardRows
from async_loader.source import END, Applied, Plan, Ready

_PARTING_S = 1.0
_LOOK_S = 0.2
"""How often a plan that waits looks at which shards there are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """Settings of a `ClusterSource`.

    Attributes
    ----------
    words : tuple of int
        The seed.
    learners : int
        ``world_size``.
    min_size : int
        Items of all shards together that each batch waits for.
    timeout_s : float | None
        For a batch; ``None``: as long as the loader waits.
    weighted, queue : bool
        What is known of the sampler before a shard is asked for rows.
    """

    words: tuple[int, ...]
    learners: int = 1
    min_size: int = 1
    timeout_s: float | None = None
    weighted: bool = False
    queue: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ShardLease:
    """A lease of one shard's source."""

    source: RemoteSource
    lease: object


class ClusterSource:
    """Draws batches from all shards of a cluster that answer. Made by `ClusterTable.source`.

    Each batch is what one table with the items of all shards would give: by a uniform sampler each
    shard gives in proportion to what it holds at that moment, by a prioritized one in proportion to
    the sum of its masses, with weights over the whole. The rows of a batch lie shard after shard.
    Of queues each batch is of one shard, in turn.

    A shard that is lost is left out at once, with what it drew ahead, and comes back by itself. A
    shard that stops answering is left out after three heartbeats.

    Threads: as a `Source`, `draw_now` included.

    Parameters
    ----------
    connections : Connections
    open_source : callable
        Makes a source of the table of one shard, given how many chunks it may draw ahead, and
        whether it is a queue.
    rows : RowsById
    options : SourceOptions
    """

    def __init__(
        self,
        connections: Connections,
        open_source: Callable[[ShardConnection, int, bool], RemoteSource],
        rows: RowsById,
        options: SourceOptions,
    ) -> None:
        self._connections, self._open_source = connections, open_source
        self._rows, self._options = rows, options
        self._shards: dict[int, ShardRows] = {}
        self._lock = threading.RLock()
        self._queue = options.queue
        self._batch_size = self._batches = 0
        self._bell: EventFd | None = None
        self._closed = self._fresh = self._immediate = False
        self._at: list[ShardRows] = []
        self._begin()

    def _begin(self) -> None:
        self._batch_maker = BatchMaker()
        self._rng = np.random.default_rng(self._options.words)
        self._draws: Draws | None = None
        self._counts: Counts | None = None
        self._numbers: list[int] = []  # of the shards that they are of
        self._begun = False

    # -- planning ----------------------------------------------------------------------------------

    def note_ahead(self, batch_size: int, batches: int) -> None:
        """See `Foresighted`: shards draw ahead by themselves."""

    def plan(self, batch_size: int, patience: Patience) -> Plan:
        """Return the next batch.

        Raises
        ------
        Timeout
            No batch could be drawn for ``timeout_s``, or the deadline of ``patience`` passed.
        SchemaError, ConfigError
            The tables of the shards differ.
        Unsupported, Closed, Broken, ...
        """
        found = self.draw_now(batch_size)
        if found is not None:
            return found
        limit = Deadline(self._options.timeout_s)
        bell = EventFd()
        try:
            self._listen(bell)
            while (found := self.draw_now(batch_size)) is None:
                if limit.expired:
                    raise Timeout(f"no batch after {self._options.timeout_s} s: {self._reason()}")
                self._wait(patience, bell, min(limit.left_or_inf(), _LOOK_S))
                bell.clear()
        finally:
            self._listen(None)
            bell.close()
        return found

    def _wait(self, patience: Patience, bell: EventFd, most_s: float) -> None:
        """Wait for the bell; for shards that are lost or come, which do not ring it, not long."""
        if patience.deadline.left_or_inf() <= most_s:
            patience.wait(bell, self._reason())
            return
        shorter = Patience(patience.end, Deadline(most_s), patience._on_wait)
        try:
            with contextlib.suppress(Timeout):
                shorter.wait(bell, self._reason())
        finally:
            patience.waited_s += shorter.waited_s

    def draw_now(self, batch_size: int) -> Plan | None:
        """See `AnyThread`: a batch of rows that have arrived."""
        with self._lock:
            self._check(batch_size)
            self._join()
            if self._queue and self._shards:
                return self._in_turn(list(self._shards.values()))
            here = [one for one in self._shards.values() if one.here]
            if not here:
                return self._at_end() if self._ended() else None
            totals = [one.totals() for one in here]
            known = [one for one in totals if one is not None]
            if not self._begun and len(known) < len(totals):
                self._at = [one for one, said in zip(here, totals, strict=True) if said is None]
                return None  # the first batch waits for all that answer
            if self._immediate and not any(one.items or one.uses_up for one in known):
                text = f"cannot draw {batch_size} items, the shards hold none that can be drawn"
                raise NotEnoughData(f"{text}: add steps first, or give timeout_s", batch_size, 0)
            draws = self._agreed(here)
            if draws is None:
                return None
            if draws.in_turn or any(one.source.leased for one in here):
                self._queue = True
                self._forget_shards(_PARTING_S)  # they are opened for whole batches
                return self.draw_now(batch_size)
            self._begun = True
            pairs = [(one, said) for one, said in zip(here, totals, strict=True) if said]
            return self._by_totals(pairs, batch_size, draws)

    def _by_totals(
        self, here: list[tuple[ShardRows, TotalsReply]], batch_size: int, draws: Draws
    ) -> Plan | None:
        """Draw from each shard in proportion to its total."""
        totals = [said for _, said in here]
        if sum(one.items for one in totals) < self._options.min_size:
            self._at = [one for one, _ in here]
            return None
        uses_up = any(one.uses_up for one in totals)
        numbers = [one.shard.number for one, _ in here]
        if self._counts is None or numbers != self._numbers or self._stuck(here):
            self._counts, self._numbers = draws.counts(self._rng, batch_size, totals), numbers
        if self._counts is None:
            self._at = [one for one, _ in here]
            return None
        missing = []
        for (one, _), count in zip(here, self._counts.tolist(), strict=True):
            one.most_age = math.inf if uses_up else draws.most_age
            one.shuffled = draws.shuffled
            if not one.fill(count, self._batches):
                missing.append(one)
        self._at = missing
        if missing:
            return None
        parts = [
            part
            for (one, _), count in zip(here, self._counts.tolist(), strict=True)
            for part in one.take(count)
        ]
        self._counts = None
        arrays = self._batch_maker.batch(parts, batch_size)
        weight = self._batch_maker.weight_of(arrays)
        if weight is not None:
            draws.weigh(weight, totals)
        self._batches += 1
        return Ready(self._batch_maker.nested(arrays), lent=True)

    def _stuck(self, here: list[tuple[ShardRows, TotalsReply]]) -> bool:
        """Whether a shard that has to give rows has none any more."""
        assert self._counts is not None
        return any(
            count > one.held and not said.items
            for (one, said), count in zip(here, self._counts.tolist(), strict=True)
        )

    def _in_turn(self, there: list[ShardRows]) -> Plan | None:
        """Take the batch of one shard, beginning with another one each time.

        Also what lost shards had given: it is nowhere else.
        """
        self._at = there
        first = self._batches % len(there)
        for one in (*there[first:], *there[:first]):
            _ = one.here  # one that was started anew is opened again
            plan = one.draw()
            if isinstance(plan, Ready):
                self._batches += 1
                batch = self._batch_maker.nested(one.arrays_of(plan))
                lease = None if plan.lease is None else ShardLease(one.source, plan.lease)
                return Ready(batch, lent=True, lease=lease)
        return self._at_end() if self._ended() else None

    def _ended(self) -> bool:
        """Whether nothing more comes. A shard that was not reached yet may have rows."""
        shards = self._shards.values()
        every = len(shards) == len(self._connections.all)
        return bool(shards) and every and all(one.ended for one in shards)

    def _at_end(self) -> Plan | None:
        """Return END; ``None`` for `ClusterTable.sample`, which waits for shards that come anew."""
        return None if self._fresh else END

    def _check(self, batch_size: int) -> None:
        self._check_open()
        if self._batch_size == batch_size:
            return
        if self._batch_size:
            text = f"this source was opened for {self._batch_size}: make another"
            raise ConfigError(f"batch_size={batch_size}, and {text}")
        self._batch_size = batch_size

    def _join(self) -> None:
        """Open sources of new shards, and forget those that were removed."""
        there = self._connections.all
        if self._shards.keys() == {one.number for one in there}:
            return
        for gone in self._shards.keys() - {one.number for one in there}:
            del self._shards[gone]
        for one in there:
            if one.number not in self._shards and one.is_open:
                self._shards[one.number] = self._opened(one, len(there))

    def _opened(self, shard: ShardConnection, shards: int) -> ShardRows:
        options, queue = self._options, self._queue
        most_age = WEIGHTED_AGE if options.weighted else AGE
        chunk, ahead = chunks_of(self._batch_size, shards, most_age)
        if queue:
            chunk = self._batch_size
        elif self._fresh:
            chunk = max(1, self._batch_size // shards)
        rows = ShardRows(
            shard,
            lambda: self._open_source(shard, ahead, queue),
            chunk,
            np.random.default_rng([*options.words, shard.number]),
            self._batch_maker,
        )
        if self._bell is not None:
            rows.listen(self._bell)
        return rows

    def _agreed(self, here: list[ShardRows]) -> Draws | None:
        """Return how batches are drawn; ``None`` while no shard has said what its sampler is."""
        for one in here:
            if one.opened():
                said = one.sampler()
                if self._draws is None:
                    self._draws = Draws(said, self._options.learners)
                self._draws.agree(said, one.shard.name)
        return self._draws

    def _listen(self, bell: EventFd | None) -> None:
        """Have a bell rung when rows or totals of a shard come; ``None``: no more."""
        with self._lock:
            self._bell = bell
            for one in self._shards.values():
                one.listen(bell)

    def _reason(self) -> str:
        """Name what a plan waits for."""
        names = ", ".join(one.shard.name for one in self._at)
        lost = [one.name for one in self._connections.all if not one.is_open]
        text = f"rows of {names or 'any shard'} of the cluster"
        return f"{text} (lost: {', '.join(lost)})" if lost else text

    def begin_afresh(self, immediate: bool) -> None:
        """Forget what the shards have drawn and said: the next batch is of this moment.

        ``immediate``: raise NotEnoughData if they are empty, and no limiter is to be waited for.
        """
        with self._lock:
            self._fresh, self._immediate = True, immediate
            self._counts, self._begun = None, False
            for one in self._shards.values():
                one.begin_afresh()

    def reader(self) -> None:
        """Return None: no rows are planned."""
        return

    def waiting_for(self) -> str | None:
        """Return None: other processes produce what this waits for."""
        return None

    @property
    def transports(self) -> dict[str, str | None]:
        """How the batches of each shard are received, "shm" or "tcp", by its name."""
        with self._lock:
            return {one.shard.name: one.source.transport for one in self._shards.values()}

    # -- leases, see `Leasing` ---------------------------------------------------------------------

    def hand_out(self, lease: object) -> bool:
        """See `Leasing.hand_out`."""
        assert isinstance(lease, ShardLease)
        return lease.source.hand_out(lease.lease)

    def settle(self, lease: object) -> None:
        """See `Leasing.settle`."""
        assert isinstance(lease, ShardLease)
        lease.source.settle(lease.lease)

    def release(self, timeout_s: float) -> None:
        """See `Leasing.release`. The next plan may be of any batch size."""
        with self._lock:
            self._batch_size = 0
            self._forget_shards(timeout_s)

    def _forget_shards(self, timeout_s: float) -> None:
        """Close the sources of all shards: the next plan opens others, for any batch size."""
        shards, self._shards = self._shards, {}
        deadline = Deadline(min(timeout_s, _PARTING_S))
        for one in shards.values():
            try:
                one.close(deadline.left_or_inf())
            except AsyncLoaderError:
                continue  # the shard is lost, and with it the reader
        self._begin()

    # -- by index ----------------------------------------------------------------------------------

    def update_priorities(self, index: Any, priority: Any) -> Applied:
        """Set new priorities for rows of earlier batches, each in its own shard; wait for all.

        Rows of shards that are lost count as stale.

        Raises
        ------
        ConfigError, Unsupported, Timeout, Closed, Broken
        """
        self._check_open()
        return self._rows.update_priorities(index, priority, None)

    def update(self, index: Any, /, **fields: Any) -> Applied:
        """Set new values of some fields, by id: see `ClusterTable.update`."""
        self._check_open()
        return self._rows.update(index, fields, None)

    # -- the end -----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this source of a cluster is closed")

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<ClusterSource of {len(self._connections.all)} shards {state}>"

    def __reduce__(self) -> Any:
        raise CannotSend("a source stays in its process: connect to the cluster there")

    def close(self, timeout_s: float | None = None) -> None:
        """Give back what was not handed out. Twice does no harm."""
        with self._lock:
            self._closed = True
            self._forget_shards(_PARTING_S if timeout_s is None else timeout_s)
            if self._bell is not None:
                self._bell.ring()
