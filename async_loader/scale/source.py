"""A table of a cluster as a loader's source: each batch is of one shard."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import (
    AsyncLoaderError,
    CannotSend,
    Closed,
    ConfigError,
    NotEnoughData,
    SchemaError,
    Timeout,
)
from async_loader.feeder.client.batch_structure import SERVER_BITS, BatchStructure
from async_loader.feeder.client.source import RemoteSource
from async_loader.feeder.wire import TotalsReply
from async_loader.lifecycle import Deadline, EventFd, Patience
from async_loader.replay.arguments import per_item
from async_loader.replay.table_methods import TableMethods
from async_loader.scale.connections import Connections, ShardConnection
from async_loader.scale.draws import Draws
from async_loader.source import END, Applied, Plan, Ready
from async_loader.sources.mixture_rows import add_source

_PARTING_S = 1.0
_LOOK_S = 0.05
"""How often a plan that waits looks at which shards there are, and at what they hold."""
_NOTHING = TotalsReply(items=0)
_Lease = tuple[RemoteSource, object]


class ClusterSource:
    """Draws batches from all shards of a cluster that answer. Made by `ClusterTable.source`.

    Each batch is of one shard. By a uniform sampler that shard is chosen in proportion to what it
    holds at that moment, by a prioritized one in proportion to the sum of its masses, with weights
    over the whole: so over many batches each row is drawn as from one table. Of queues each batch
    is of the next shard that has one.

    A shard that is lost is left out at once, and comes back by itself. A shard that stops
    answering is left out after three heartbeats.

    Threads: as a `Source`, `draw_now` included.

    Parameters
    ----------
    table : TableMethods
    connections : Connections
    open_source : callable
        Makes a source of the table of one shard.
    draws : Draws
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
        open_source: Callable[[ShardConnection], RemoteSource],
        draws: Draws,
        words: tuple[int, ...],
        min_size: int,
        timeout_s: float | None,
    ) -> None:
        self._table, self._connections = table, connections
        self._open_source, self._draws = open_source, draws
        self._words, self._min_size, self._timeout_s = words, min_size, timeout_s
        self._lock = threading.RLock()
        self._bell: EventFd | None = None
        self._closed = self._fresh = self._immediate = False
        # See `Finishing`.
        self.finishes: Callable[[Any], Any] | None = None
        self._begin()

    def _begin(self) -> None:
        self._batch_size = self._batches = 0
        self._rng = np.random.default_rng(self._words)
        self._sources: dict[int, RemoteSource] = {}  # by number of the shard
        self._ended: dict[int, int] = {}  # by number: which of its servers has said so
        self._structure: BatchStructure | None = None
        self._chosen: int | None = None  # the shard that the next batch is of
        self._begun = False
        self._waits_for: list[int] = []
        self._items: int | None = None  # that were too few when they were last looked at

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
        limit = Deadline(min(most_s, patience.deadline.left_or_inf()))
        shorter = Patience(patience.end, limit, patience._on_wait)
        try:
            shorter.wait(bell, self._reason())
        except Timeout:
            if patience.deadline.expired:
                raise
        finally:
            patience.waited_s += shorter.waited_s

    def draw_now(self, batch_size: int) -> Plan | None:
        """See `AnyThread`: a batch that has arrived."""
        with self._lock:
            self._check_open()
            if self._batch_size not in (0, batch_size):
                text = f"this source was opened for {self._batch_size}: make another"
                raise ConfigError(f"batch_size={batch_size}, and {text}")
            self._batch_size = batch_size
            there = self._join()
            found = self._in_turn(there) if self._draws.in_turn else self._by_totals(there)
            # a shard that was not reached yet may have rows
            if found is None and not (self._fresh or self._sources or there.keys() - self._ended):
                return END
            return found

    def _join(self) -> dict[int, ShardConnection]:
        """Open sources of new shards and of new servers, and forget those that are over."""
        there = {one.number: one for one in self._connections.all}
        for number, source in list(self._sources.items()):
            if number not in there:
                del self._sources[number]
            elif source.end_has_come and not self._draws.in_turn:
                self._over(number)
        for number, shard in there.items():
            new = shard.connection.servers > self._ended.get(number, -1)
            if number not in self._sources and shard.is_open and new:
                source = self._sources[number] = self._open_source(shard)
                if self._bell is not None:
                    source.listen(self._batch_size, self._bell)
        return there

    def _over(self, number: int) -> None:
        """Take the END of a shard. It is opened again when it has been started anew."""
        source = self._sources.pop(number)
        self._ended[number] = source.server
        source.listen(self._batch_size, None)
        source.close(0.0)

    def _in_turn(self, there: dict[int, ShardConnection]) -> Plan | None:
        """Take the batch of one shard, beginning with another one each time.

        Also what lost shards had given: it is nowhere else.
        """
        self._waits_for = numbers = list(self._sources)
        first = self._batches % max(1, len(numbers))
        for number in (*numbers[first:], *numbers[:first]):
            plan = self._sources[number].draw_now(self._batch_size)
            if isinstance(plan, Ready):
                return self._batch(there[number], plan, ())
            if plan is END:
                self._over(number)
        return None

    def _by_totals(self, there: dict[int, ShardConnection]) -> Plan | None:
        """Take the batch of a shard that is chosen in proportion to its total."""
        here = [number for number in self._sources if there[number].answers]
        known = {number: self._sources[number].totals(self._batch_size) for number in here}
        self._waits_for = [number for number, one in known.items() if one is None]
        if not here or (self._waits_for and not self._begun):
            return None  # the first batch waits for all that answer
        totals = {number: one or _NOTHING for number, one in known.items()}
        each = list(totals.values())
        items = sum(one.items for one in each)
        if self._immediate and not items and not any(one.uses_up for one in each):
            text = f"cannot draw {self._batch_size} items, the shards hold none that can be drawn"
            raise NotEnoughData(f"{text}: add steps first, or give timeout_s", self._batch_size, 0)
        self._begun, self._waits_for = True, here
        self._items = items if items < self._min_size else None
        if self._items is not None:
            return None
        if self._chosen not in totals or not totals[self._chosen].items:
            shares = self._draws.shares(each)
            self._chosen = None if shares is None else here[self._rng.choice(len(here), p=shares)]
        if self._chosen is None:
            return None
        self._waits_for = [self._chosen]
        shard, source = there[self._chosen], self._sources[self._chosen]
        while isinstance(plan := source.draw_now(self._batch_size), Ready):
            server = int(plan.batch["index"].reshape(-1)[0]) >> SERVER_BITS
            if server == shard.connection.servers:  # else lost with it
                return self._batch(shard, plan, each)
        return None

    def _batch(
        self, shard: ShardConnection, plan: Ready, totals: list[TotalsReply] | tuple[()]
    ) -> Ready:
        """Return a shard's batch with ids of the cluster, and weights over the whole.

        Raises
        ------
        SchemaError
            The tables of the shards differ.
        """
        self._batches += 1
        self._chosen, source = None, self._sources[shard.number]
        structure = source.structure
        assert structure is not None
        known, schema = self._structure or structure, structure.shown
        if schema != known.shown:
            raise SchemaError(
                f"{shard.name} has rows of {schema}, and another shard of {known.shown}: give all "
                "shards the same tables"
            )
        self._structure = structure
        arrays = list(tree.leaves(plan.batch, schema.structure))
        for place in structure.ids:
            arrays[place] = arrays[place].copy()
            add_source(arrays[place], shard.number)
        names = [field.name for field in schema.fields]
        if totals and "weight" in names:
            place = names.index("weight")
            arrays[place] = self._draws.weigh(arrays[place], totals)
        batch: Any = tree.rebuild_batch(schema.structure, arrays)
        return Ready(batch, lent=True, lease=plan.lease and (source, plan.lease))

    def _listen(self, bell: EventFd | None) -> None:
        """Have a bell rung when rows or totals of a shard come; ``None``: no more."""
        with self._lock:
            self._bell = bell
            for source in self._sources.values():
                source.listen(self._batch_size, bell)

    def _reason(self) -> str:
        """Name what a plan waits for."""
        if self._items is not None and self._min_size > 1:
            return f"{self._min_size:,} items of the cluster, whose shards hold {self._items:,}"
        every = self._connections.all
        names = ", ".join(one.name for one in every if one.number in self._waits_for)
        lost = [one.name for one in every if not one.is_open]
        text = f"rows of {names or 'any shard'} of the cluster"
        return f"{text} (lost: {', '.join(lost)})" if lost else text

    def begin_afresh(self, immediate: bool) -> None:
        """Forget what the shards have said: the next batch is of this moment.

        ``immediate``: raise NotEnoughData if they are empty, and no limiter is to be waited for.
        Batches of a queue stay: they come once.
        """
        with self._lock:
            self._fresh, self._immediate = True, immediate
            self._chosen, self._begun = None, False
            for source in self._sources.values():
                source.ask_anew()

    @property
    def shards(self) -> int:
        """How many numbers of shards an index may have; lost ones count."""
        return 1 + max((one.number for one in self._connections.all), default=0)

    @property
    def sequences(self) -> bool:
        """Whether rows are sequences of steps, once some have come."""
        return self._structure is not None and len(self._structure.ids) > 1

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
            names = {one.number: one.name for one in self._connections.all}
            known = self._sources.items()
            return {names[number]: one.transport for number, one in known if number in names}

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
        """See `Leasing.release`. The next plan opens other sources, for any batch size."""
        with self._lock:
            deadline = Deadline(min(timeout_s, _PARTING_S))
            there = {one.number for one in self._connections.reached}
            for number, source in self._sources.items():
                limit = deadline.left_or_inf() if number in there else 0.0
                with contextlib.suppress(AsyncLoaderError):  # the shard is lost
                    source.release(limit)
                    source.close(limit)
            self._begin()

    # -- by index ----------------------------------------------------------------------------------

    def update_priorities(self, index: Any, priority: Any) -> Applied:
        """Set new priorities for rows of earlier batches, each in its own shard; wait for all.

        Rows of shards that are lost count as stale. Errors ``[rows, time]`` of sequences become
        the priority of each: see `Sequences`.

        Raises
        ------
        ConfigError, Unsupported, Timeout, Closed, Broken
        """
        self._check_open()
        eta = next((one.eta for one in self._sources.values() if one.eta is not None), None)
        if eta is not None:
            priority = per_item(priority, tensors.to_ids(index).size, eta)
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

    def drop(self) -> None:
        """Close without waiting."""
        self.close(0.0)

    def close(self, timeout_s: float | None = None) -> None:
        """Give back what was not handed out. Twice does no harm."""
        with self._lock:
            self._closed = True
            self.release(_PARTING_S if timeout_s is None else timeout_s)
            if self._bell is not None:
                self._bell.ring()
