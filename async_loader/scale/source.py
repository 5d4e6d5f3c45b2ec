"""A table of a cluster as a loader's source: batches out of the rows of all shards."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from typing import Any, cast

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
from async_loader.replay.table_methods import TableMethods
from async_loader.scale.connections import Connections, ShardConnection
from async_loader.scale.draws import Counts, Draws, chunks_of
from async_loader.scale.shard_rows import BatchMaker, ShardRows
from async_loader.source import END, Applied, Plan, Ready

_PARTING_S = 1.0
_LOOK_S = 0.2
"""How often a plan that waits looks at which shards there are."""
_NOTHING = TotalsReply(items=0)
_Lease = tuple[RemoteSource, object]


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
    table : TableMethods
    connections : Connections
    open_source : callable
        Makes a source of the table of one shard, given how many chunks it may draw ahead.
    make_draws : callable
        Makes the arithmetic of a stream of batches.
    words : tuple of int
        The seed.
    min_size : int
        Items of all shards together that each batch waits for.
    timeout_s : float | None
        For a batch; ``None``: as long as the loader waits.
    """

    def __init__(
        self,
        table: TableMethods,
        connections: Connections,
        open_source: Callable[[ShardConnection, int], RemoteSource],
        make_draws: Callable[[], Draws],
        words: tuple[int, ...],
        min_size: int,
        timeout_s: float | None,
    ) -> None:
        self._table, self._connections = table, connections
        self._open_source, self._make_draws = open_source, make_draws
        self._words, self._min_size, self._timeout_s = words, min_size, timeout_s
        self._lock = threading.RLock()
        self._batch_size = self._batches = 0
        self._bell: EventFd | None = None
        self._closed = self._fresh = self._immediate = False
        # See `Finishing`.
        self.finishes: Callable[[Any], Any] | None = None
        self._shards: dict[int, ShardRows] = {}
        self._at: list[ShardRows] = []
        self._begin()

    def _begin(self) -> None:
        self._batch_maker, self._draws = BatchMaker(), self._make_draws()
        self._rng = np.random.default_rng(self._words)
        self._ended: dict[int, int] = {}  # by number: which of its servers has said so
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
        SchemaError
            The tables of the shards differ.
        Unsupported, Closed, Broken, ...
        """
        found = self.draw_now(batch_size)
        if found is not None:
            return found
        limit = Deadline(self._timeout_s)
        bell = EventFd()
        try:
            self._listen(bell)
            while (found := self.draw_now(batch_size)) is None:
                if limit.expired:
                    raise Timeout(f"no batch after {self._timeout_s} s: {self._reason()}")
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
            self._check_open()
            if self._batch_size not in (0, batch_size):
                text = f"this source was opened for {self._batch_size}: make another"
                raise ConfigError(f"batch_size={batch_size}, and {text}")
            self._batch_size = batch_size
            self._join()
            found = self._in_turn() if self._draws.in_turn else self._by_totals()
            if found is None and not self._fresh and not self._shards and self._all_ended():
                return END
            return found

    def _join(self) -> None:
        """Open sources of new shards and of new servers, and forget those that are over."""
        there = {one.number: one for one in self._connections.all}
        for number, one in list(self._shards.items()):
            if number not in there:
                del self._shards[number]
            elif one.source.end_has_come and not self._draws.in_turn:
                self._over(one)
        for number, shard in there.items():
            new = shard.connection.servers > self._ended.get(number, -1)
            if number not in self._shards and shard.is_open and new:
                self._shards[number] = self._opened(shard, len(there))

    def _over(self, one: ShardRows) -> None:
        """Take the END of a shard. It is opened again when it has been started anew."""
        self._ended[one.shard.number] = one.source.server
        del self._shards[one.shard.number]
        one.source.listen(one.chunk, None)
        one.source.close(0.0)

    def _opened(self, shard: ShardConnection, shards: int) -> ShardRows:
        draws, words = self._draws, (*self._words, shard.number)
        chunk, ahead = chunks_of(self._batch_size, shards, draws.most_age)
        if draws.in_turn:
            chunk = self._batch_size
        elif self._fresh:
            chunk = max(1, self._batch_size // shards)
        shuffle = np.random.default_rng(words) if draws.shuffled else None
        rows = ShardRows(shard, self._open_source(shard, ahead), chunk, draws.most_age, shuffle)
        if self._bell is not None:
            rows.source.listen(chunk, self._bell)
        return rows

    def _all_ended(self) -> bool:
        """Whether nothing more comes. A shard that was not reached yet may have rows."""
        return self._ended.keys() >= {one.number for one in self._connections.all}

    def _in_turn(self) -> Plan | None:
        """Take the batch of one shard, beginning with another one each time.

        Also what lost shards had given: it is nowhere else.
        """
        self._at = there = list(self._shards.values())
        first = self._batches % max(1, len(there))
        for one in (*there[first:], *there[:first]):
            plan = one.source.draw_now(one.chunk)
            if isinstance(plan, Ready):
                self._batches += 1
                batch = self._batch_maker.nested(one.arrays_of(plan, self._batch_maker))
                lease = None if plan.lease is None else (one.source, plan.lease)
                return Ready(batch, lent=True, lease=lease)
            if plan is END:
                self._over(one)
        return None

    def _by_totals(self) -> Plan | None:
        """Draw from each shard in proportion to its total."""
        here = [one for one in self._shards.values() if one.shard.answers]
        said = [one.source.totals(one.chunk) for one in here]
        self._at = [one for one, total in zip(here, said, strict=True) if total is None]
        if not here or (self._at and not self._begun):
            return None  # the first batch waits for all that answer
        totals = [total or _NOTHING for total in said]  # of one that was lost: nothing
        uses_up = any(one.uses_up for one in totals)
        if self._immediate and not uses_up and not any(one.items for one in totals):
            text = f"cannot draw {self._batch_size} items, the shards hold none that can be drawn"
            raise NotEnoughData(f"{text}: add steps first, or give timeout_s", self._batch_size, 0)
        self._begun, self._at = True, here
        if sum(one.items for one in totals) < self._min_size:
            return None
        numbers = [one.shard.number for one in here]
        if numbers != self._numbers or self._stuck(here, totals):
            self._counts = None
        if self._counts is None:
            self._counts = self._draws.counts(self._rng, self._batch_size, totals)
            self._numbers = numbers
        if self._counts is None:
            return None
        pairs = list(zip(here, self._counts.tolist(), strict=True))
        for one in here:
            one.most_age = math.inf if uses_up else self._draws.most_age
        self._at = [
            one for one, count in pairs if not one.fill(count, self._batches, self._batch_maker)
        ]
        if self._at:
            return None
        self._counts = None
        parts = [part for one, count in pairs for part in one.take(count)]
        arrays = self._batch_maker.batch(parts, self._batch_size)
        if self._batch_maker.weight is not None:
            self._draws.weigh(arrays[self._batch_maker.weight], totals)
        self._batches += 1
        return Ready(self._batch_maker.nested(arrays), lent=True)

    def _stuck(self, here: list[ShardRows], totals: list[TotalsReply]) -> bool:
        """Whether a shard that has to give rows has none any more."""
        counts = [] if self._counts is None else self._counts.tolist()
        return any(
            count > one.held and not total.items
            for one, total, count in zip(here, totals, counts, strict=False)
        )

    def _listen(self, bell: EventFd | None) -> None:
        """Have a bell rung when rows or totals of a shard come; ``None``: no more."""
        with self._lock:
            self._bell = bell
            for one in self._shards.values():
                one.source.listen(one.chunk, bell)

    def _reason(self) -> str:
        """Name what a plan waits for."""
        names = ", ".join(one.shard.name for one in self._at)
        lost = [one.name for one in self._connections.all if not one.is_open]
        text = f"rows of {names or 'any shard'} of the cluster"
        return f"{text} (lost: {', '.join(lost)})" if lost else text

    def begin_afresh(self, immediate: bool) -> None:
        """Forget what the shards have drawn and said: the next batch is of this moment.

        ``immediate``: raise NotEnoughData if they are empty, and no limiter is to be waited for.
        Batches of a queue stay: they come once.
        """
        with self._lock:
            self._fresh, self._immediate = True, immediate
            self._counts, self._begun = None, False
            for one in self._shards.values():
                one.drop()
                one.source.ask_anew()

    @property
    def shards(self) -> int:
        """How many numbers of shards an index may have; lost ones count."""
        return 1 + max((one.number for one in self._connections.all), default=0)

    @property
    def sequences(self) -> bool:
        """Whether rows are sequences of steps, once some have come."""
        return len(self._batch_maker.ids) > 1

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
        source, of_shard = cast(_Lease, lease)
        return source.hand_out(of_shard)

    def settle(self, lease: object) -> None:
        """See `Leasing.settle`."""
        source, of_shard = cast(_Lease, lease)
        source.settle(of_shard)

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
            with contextlib.suppress(AsyncLoaderError):  # the shard is lost, and the reader with it
                one.close(deadline.left_or_inf())
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
        return self._table.update_priorities(index, priority)

    def update(self, index: Any, /, **fields: Any) -> Applied:
        """Set new values of some fields, by id: see `ClusterTable.update`."""
        self._check_open()
        return self._table.update(index, **fields)

    # -- the end -----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this source of a cluster is closed")

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __repr__(self) -> str:
        return f"<ClusterSource of {self._table!r} {'closed' if self._closed else 'open'}>"

    def __reduce__(self) -> Any:
        raise CannotSend("a source stays in its process: connect to the cluster there")

    def close(self, timeout_s: float | None = None) -> None:
        """Give back what was not handed out. Twice does no harm."""
        with self._lock:
            self._closed = True
            self._forget_shards(_PARTING_S if timeout_s is None else timeout_s)
            if self._bell is not None:
                self._bell.ring()
