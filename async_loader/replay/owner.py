"""What the threads of a table's process share: the lock, the table under it, its limits, and who waits. Reads no row."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from async_loader.errors import Closed, ConfigError, Unsupported
from async_loader.lifecycle import seconds_or_none
from async_loader.replay.arguments import storable
from async_loader.replay.limiter import Limits, RateLimiter
from async_loader.replay.samplers import Fifo, Sampler
from async_loader.replay.staging import Stage
from async_loader.replay.storage import Storage, StorageLayout
from async_loader.replay.table import Table
from async_loader.replay.views import Recipe
from async_loader.replay.waiting import Waiters
from async_loader.schema import Schema

if TYPE_CHECKING:
    from async_loader.replay.remote.handle import WriterHandle
    from async_loader.replay.remote.service import Service


class Owner:
    """The table, once its schema is known, and everything that decides who may do what to it.

    Parameters
    ----------
    capacity, max_bytes : int | None
        In steps, in bytes; at least one of them.
    sampler, remover : Sampler
    limiter : RateLimiter | None
    max_times_sampled : int
    seed : int | None
    """

    def __init__(
        self,
        capacity: int | None,
        max_bytes: int | None,
        sampler: Sampler,
        remover: Sampler,
        limiter: RateLimiter | None,
        max_times_sampled: int,
        seed: int | None,
    ) -> None:
        self.capacity, self.max_bytes = capacity, max_bytes
        self.sampler, self.remover = sampler, remover
        self.max_times_sampled = max_times_sampled
        self.seeds = _seeds(seed)
        self._limits = None if limiter is None else Limits(limiter)
        self.lock = threading.Lock()
        self.waiters = Waiters(self.lock)
        self.foreign = self.closed = False
        self.writers: Service | None = None
        self.schema: Schema | None = None
        self._table: Table | None = None
        self._stage: Stage | None = None
        self.prioritized = sampler.prioritized or remover.prioritized  # whether anything here goes by priorities

    def forked(self) -> None:
        """In the child of a fork: what it has is a copy, and a thread of the parent may have held the lock."""
        self.foreign = True
        self.lock = threading.Lock()
        self.waiters = Waiters(self.lock)
        if self._table is not None:
            self._table.part()
        if self.writers is not None:
            self.writers.forget()  # again, perhaps: a buffer and its writers do not know who is first
            self.writers = None

    @property
    def ready(self) -> bool:
        """Whether there is a table."""
        return self._table is not None

    @property
    def table(self) -> Table:
        assert self._table is not None
        return self._table

    @property
    def stage(self) -> Stage:
        assert self._stage is not None
        return self._stage

    @property
    def limits(self) -> Limits | None:
        """The limiter, with the counts of this moment. Under the lock."""
        limits = self._limits
        if limits is not None and self._table is not None:
            limits.inserted, limits.sampled, limits.deleted = self._table.inserted, self._table.sampled, self._table.deleted
        return limits

    @property
    def limiter(self) -> RateLimiter | None:
        return None if self._limits is None else self._limits.config

    @limiter.setter
    def limiter(self, limiter: RateLimiter | None) -> None:
        if self.ready:
            _check_reachable(limiter, self.table.storage.layout.capacity)
        with self.lock:
            self._limits = None if limiter is None else Limits(limiter)
            if self.writers is not None:
                self.writers.follow(self.limits)
            self.waiters.ring()

    def own(self) -> Table:
        """The table, to be changed. Under the lock; raises Unsupported in a fork."""
        if self.foreign:
            raise Unsupported(
                "only the process that made a replay buffer adds to it: add from there, or through a writer_handle()"
            )
        self.check_open()
        self.catch_up()
        return self.table

    def check_open(self) -> None:
        """Raise Closed after `close`."""
        if self.closed:
            raise Closed("this replay buffer was closed: nothing is added to it or drawn from it any more")

    # -- writers in other processes --------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Complete what Ctrl-C interrupted, and take in what writers in other processes have published. Under the lock."""
        if self._table is not None:
            self._table.finish()
        if self.writers is not None and self.writers.adopt() and self.waiters.anybody:
            self.waiters.ring()

    def may_insert(self, count: int) -> bool:
        """Whether the limiter lets so many in at once, beside what writers in other processes may be writing. Under the lock."""
        limits = self.limits
        if limits is None:
            return True
        return limits.may_insert(count) if self.writers is None else self.writers.may_insert(limits, count)

    def writer_handle(self) -> WriterHandle:
        """See `ReplayBuffer.writer_handle`."""
        if not self.ready:
            raise ConfigError(
                "a writer in another process has to know what a step is: give the buffer a schema, or add a step first"
            )
        if self.table.free is not None:
            raise Unsupported(
                f"{self.remover!r} takes rows out of order, and writers in other processes fill them in order: "
                "use the Fifo remover"
            )
        from async_loader.replay.remote.service import Service

        with self.lock:
            self.own()
            if self.writers is None:
                self.writers = Service(self)
                self.writers.start()
            return self.writers.handle(self)

    def close(self, timeout_s: float | None) -> None:
        """Close the table: tell its writers, end their thread, and wake every waiting call."""
        seconds_or_none("timeout_s", timeout_s)
        with self.lock:
            if self.foreign:
                return
            self.closed = True
            writers = self.writers
            self.waiters.ring()
        if writers is not None:
            writers.close(timeout_s)

    # -- the beginning ---------------------------------------------------------------------------------------------------

    def start(self, schema: Schema) -> None:
        """Allocate, if no other thread was faster."""
        with self.lock:
            if self._table is None:
                self.allocate(schema)

    def allocate(self, schema: Schema, layout: StorageLayout | None = None) -> None:
        """Allocate, ``layout`` if it is known. Raises what the constructor of a ReplayBuffer does."""
        storable(schema)
        Recipe.of(schema)  # a next= that cannot be delivered shows here
        linked = [field.name for field in schema.fields if field.linked]
        if linked and type(self.remover) is not Fifo:
            raise ConfigError(
                f"field {linked[0]!r} has a stack or a next, which are read from its neighbours, and {self.remover!r} takes "
                "those out of order: use the Fifo remover, or store what a step needs in it"
            )
        layout = layout or self.layout_of(schema)
        _check_reachable(self.limiter, layout.capacity)
        storage = Storage.create(layout)
        for_sampler, for_remover = self.seeds.spawn(2)
        table = Table(storage, [self.sampler], self.remover, for_remover, self.max_times_sampled)
        self.sampler.bind(table.items, for_sampler)
        self._stage = Stage(layout, storage.base)
        self.capacity, self.schema = layout.capacity, schema
        self._table = table

    def layout_of(self, schema: Schema) -> StorageLayout:
        """Of as many steps as were asked for."""
        if self.max_bytes is not None:
            return StorageLayout.within(schema, self.max_bytes, self.capacity)
        assert self.capacity is not None
        return StorageLayout.of(schema, self.capacity)


def _seeds(seed: int | None) -> np.random.SeedSequence:
    try:
        return np.random.SeedSequence(seed)
    except (TypeError, ValueError):
        raise ConfigError(f"seed={seed!r}: it must be an integer of 0 or more, or None") from None


def _check_reachable(limiter: RateLimiter | None, capacity: int) -> None:
    """Raise ConfigError for a limiter that waits for more than there can ever be."""
    if limiter is not None and limiter.min_size_to_sample > capacity:
        raise ConfigError(
            f"min_size_to_sample={limiter.min_size_to_sample:,}: the table keeps {capacity:,} steps, so that nothing would ever "
            f"be sampled: use {capacity:,} or less, or raise the capacity"
        )
