"""A table of a cluster as a loader's source: batches out of the rows of all shards."""

from __future__ import annotations

import threading
from collections.abc import Callable
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
from async_loader.scale.batch_maker import BatchMaker, Part
from async_loader.scale.by_id import UpdatesById
from async_loader.scale.connections import Connections
from async_loader.scale.leases import BatchLease, Leases
from async_loader.scale.losses import Losses
from async_loader.scale.rules import Rule, whole_of
from async_loader.scale.shard_connection import ShardConnection
from async_loader.scale.shard_rows import ShardRows
from async_loader.scale.shares import Counts, chunks_of
from async_loader.scale.source_options import SourceOptions
from async_loader.source import END, Applied, Plan, Ready

_PARTING_S = 1.0


class ClusterSource:
    """Draws batches from all shards of a cluster that answer. Made by `ClusterTable.source`.

    Each batch is what one table with the items of all shards would give: by a uniform sampler each
    shard gives in proportion to what it holds at that moment, by a prioritized one in proportion to
    the sum of its masses, with weights over the whole. Of queues each gives what it has, as it
    comes. The rows of a batch lie shard after shard.

    A shard that is lost is left out at once, with what it drew ahead, and comes back by itself. A
    shard that stops answering is left out after three heartbeats.

    Threads: as a `Source`, `draw_now` included.

    Parameters
    ----------
    connections : Connections
    open_source : callable
        Makes a source of the table of one shard, given how many chunks it may draw ahead.
    updates : UpdatesById
    options : SourceOptions
    losses : Losses
    """

    def __init__(
        self,
        connections: Connections,
        open_source: Callable[[ShardConnection, int], RemoteSource],
        updates: UpdatesById,
        options: SourceOptions,
        losses: Losses,
    ) -> None:
        self._losses = losses
        self._connections, self._open_source = connections, open_source
        self._updates, self._options = updates, options
        self._shards: dict[int, ShardRows] = {}
        self._leases = Leases()
        self._lock = threading.RLock()
        self._begin()
        self._batch_size = self._planned = self._batches = 0
        self._bell: EventFd | None = None
        self._closed = self._begun = self._at_once = False
        self._at: list[ShardRows] = []

    def _begin(self) -> None:
        options = self._options
        self._batch_maker = BatchMaker()
        self._rng = np.random.default_rng(options.words)
        self._rule: Rule | None = None
        self._counts: Counts | None = None
        self._numbers: list[int] = []  # of the shards that they are of
        self._takes_turns = False

    # -- planning ----------------------------------------------------------------------------------

    def note_ahead(self, batch_size: int, batches: int) -> None:
        """See `Foresighted`."""
        self._planned = batches

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
        # before: of a plan that this one has interrupted, in a signal handler
        bell, before = EventFd(), self._bell
        try:
            while True:
                if self._bell is not bell:
                    self._listen(bell)
                if (found := self.draw_now(batch_size)) is not None:
                    break
                if limit.expired:
                    raise Timeout(f"no batch after {self._options.timeout_s} s: {self._reason()}")
                _wait(patience, bell, self._reason(), limit)
                bell.clear()
        finally:
            self._listen(None)
            if before is not None:
                before.ring()  # that plan listens again
            bell.close()
        return found

    def draw_now(self, batch_size: int) -> Plan | None:
        """See `AnyThread`: a batch of rows that have arrived."""
        with self._lock:
            self._check(batch_size)
            self._join()
            if self._takes_turns and self._shards:
                return self._in_turn(list(self._shards.values()), batch_size)
            here = [one for one in self._shards.values() if one.here]
            if not here:
                return self._at_end() if self._ended() else None
            totals = [one.totals() for one in here]
            known = [one for one in totals if one is not None]
            if not self._begun and len(known) < len(totals):
                self._at = [one for one, said in zip(here, totals, strict=True) if said is None]
                return None  # the first batch waits for all that answer
            if self._at_once and not any(one.items or one.uses_up for one in known):
                text = f"cannot draw {batch_size} items, the shards hold none that can be drawn"
                raise NotEnoughData(f"{text}: add steps first, or give timeout_s", batch_size, 0)
            rule = self._agreed(here)
            if rule is None:
                return None
            self._begun = True
            pairs = [(one, said) for one, said in zip(here, totals, strict=True) if said]
            if rule.in_turn or any(one.source.leased for one in here):
                self._takes_turns = True
                return self._in_turn(list(self._shards.values()), batch_size)
            return self._by_totals(pairs, batch_size, rule)

    def _by_totals(
        self, here: list[tuple[ShardRows, TotalsReply]], batch_size: int, rule: Rule
    ) -> Plan | None:
        """Draw from each shard in proportion to its total."""
        totals = [said for _, said in here]
        if sum(one.items for one in totals) < self._options.min_size:
            self._at = [one for one, _ in here]
            return None
        uses_up = any(one.uses_up for one in totals)
        numbers = [one.shard.number for one, _ in here]
        if self._counts is None or numbers != self._numbers or self._stuck(here):
            self._counts, self._numbers = rule.counts(self._rng, batch_size, totals), numbers
        if self._counts is None:
            self._at = [one for one, _ in here]
            return None
        missing = []
        for (one, _), count in zip(here, self._counts.tolist(), strict=True):
            one.most_age, one.shuffled = None if uses_up else rule.most_age, rule.shuffled
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
        if rule.importance is not None and weight is not None:
            rule.importance.weigh(weight, whole_of(totals))
        self._batches += 1
        return Ready(self._batch_maker.nested(arrays), lent=True)

    def _stuck(self, here: list[tuple[ShardRows, TotalsReply]]) -> bool:
        """Whether a shard that has to give rows has none any more."""
        assert self._counts is not None
        return any(
            count > one.held and not said.items
            for (one, said), count in zip(here, self._counts.tolist(), strict=True)
        )

    def _in_turn(self, there: list[ShardRows], batch_size: int) -> Plan | None:
        """Take what the shards have, as it comes, beginning with another one each time.

        Also what lost shards had given: it is nowhere else.
        """
        first = self._batches % len(there)
        turn = [*there[first:], *there[:first]]
        self._at = there
        self._leases.put_back()
        for one in turn:
            _ = one.here  # one that was started anew is opened again
            one.fill(0, self._batches)
        held = sum(one.held for one in turn)
        for one in turn:
            wanted = batch_size
            if self._options.fresh:  # nothing is drawn ahead, and rows of the others are used first
                wanted = one.held + max(0, batch_size - held)
            held -= one.held
            one.fill(wanted, self._batches)
            held += one.held
        rest: int = batch_size
        if held < batch_size:
            if not self._ended():
                return None
            rest = held
        if not rest:
            return self._at_end()
        rows = rest
        parts: list[tuple[ShardRows, Part]] = []
        while rest:
            for one in turn:
                if count := min(rest, one.held, max(1, one.chunk)):
                    parts += [(one, part) for part in one.take(count)]
                    rest -= count
        self._batches += 1
        arrays = self._batch_maker.batch([part for _, part in parts], rows)
        lease = self._leases.of(parts)
        return Ready(self._batch_maker.nested(arrays), lent=True, lease=lease)

    def _ended(self) -> bool:
        """Whether nothing more comes. A shard that was not reached yet may have rows."""
        shards = self._shards.values()
        every = len(shards) == len(self._connections.all)
        return bool(shards) and every and all(one.ended for one in shards)

    def _at_end(self) -> Plan | None:
        """Return END; ``None`` for `ClusterTable.sample`, which waits for shards that come anew."""
        return None if self._options.fresh else END

    def _check(self, batch_size: int) -> None:
        if self._closed:
            raise Closed("this source of a cluster is closed")
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
        options = self._options
        chunk, ahead = chunks_of(self._batch_size, shards, options.most_age)
        if options.fresh or options.queue:
            chunk = max(1, self._batch_size // shards)
        order = np.random.default_rng([*options.words, shard.number])
        rows = ShardRows(
            shard,
            lambda: self._open_source(shard, ahead),
            order,
            self._batch_maker,
            lambda items: self._losses.note(shard.name, shard.connection.servers, items),
        )
        rows.chunk = chunk
        if self._bell is not None:
            rows.listen(self._bell)
        return rows

    def _agreed(self, here: list[ShardRows]) -> Rule | None:
        """Return how batches are drawn; ``None`` while no shard has said what its sampler is."""
        for one in here:
            if one.opened():
                said = one.sampler()
                if self._rule is None:
                    self._rule = Rule(said, self._options.learners)
                self._rule.agree(said, one.shard.name)
        return self._rule

    def _listen(self, bell: EventFd | None) -> None:
        """Have a bell rung when anything changes that a plan may wait for; ``None``: no more."""
        with self._lock:
            before, self._bell = self._bell, bell
            self._leases.listen(bell)
            if before is not None:
                self._connections.unlisten(before)
            if bell is not None:
                self._connections.listen(bell)
            for one in self._shards.values():
                one.listen(bell)

    def _reason(self) -> str:
        """Name what a plan waits for."""
        names = ", ".join(one.shard.name for one in self._at)
        lost = [one.name for one in self._connections.all if not one.is_open]
        text = f"rows of {names or 'any shard'} of the cluster"
        return f"{text} (lost: {', '.join(lost)})" if lost else text

    def begin_afresh(self, at_once: bool) -> None:
        """Forget what the shards have drawn and said: the next batch is of this moment.

        ``at_once``: raise NotEnoughData if they are empty, and no limiter is to be waited for.
        """
        with self._lock:
            self._counts, self._begun, self._at_once = None, False, at_once
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
        assert isinstance(lease, BatchLease)
        return self._leases.hand_out(lease)

    def settle(self, lease: object) -> None:
        """See `Leasing.settle`."""
        assert isinstance(lease, BatchLease)
        self._leases.settle(lease)

    def release(self, timeout_s: float) -> None:
        """See `Leasing.release`. Rows that are not leased are kept for the next loader."""
        with self._lock:
            for one in self._shards.values():
                if one.source.leased:
                    one.drop()
                    one.source.release(timeout_s)
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
        self._begun = False

    # -- by index ----------------------------------------------------------------------------------

    def update_priorities(self, index: Any, priority: Any) -> Applied:
        """Set new priorities for rows of earlier batches, each in its own shard; wait for all.

        Rows of shards that are lost count as stale.

        Raises
        ------
        ConfigError, Unsupported, Timeout, Closed, Broken
        """
        self._check_open()
        return self._updates.update_priorities(index, priority, None)

    def update(self, index: Any, /, **fields: Any) -> Applied:
        """Set new values of some fields, by id: see `ClusterTable.update`."""
        self._check_open()
        return self._updates.update(index, fields, None)

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


def _wait(patience: Patience, bell: EventFd, reason: str, limit: Deadline) -> None:
    """Wait as long as patience has, or until the limit."""
    left, most = limit.left(), patience.deadline.left()
    if left is None or (most is not None and most <= left):
        patience.wait(bell, reason)
        return
    shorter = Patience(patience.end, limit, patience._on_wait)
    try:
        shorter.wait(bell, reason)
    finally:
        patience.waited_s += shorter.waited_s
