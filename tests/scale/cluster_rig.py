"""Shards in threads of the test's process, and a directory that the test moves by hand."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace

import numpy as np

from async_loader import ReplayBuffer
from async_loader.lifecycle import Deadline, Patience
from async_loader.replay.kernel_build import warm
from async_loader.scale.client import ClusterClient
from async_loader.scale.shards import Shard
from async_loader.schema import Schema
from tests.feeder.client.thread_rig import Feeder

SCHEMA = Schema.of({"x": np.int64, "shard": np.int64})
PATIENCE_S = 60.0

warm()


class ThreadShard(Feeder):
    """One feeder in a thread, on ipc."""

    def __init__(self, folder, table, **settings):
        folder.mkdir(parents=True, exist_ok=True)
        self.table = table
        super().__init__(folder, {"t": table}, **settings)

    def close(self):
        super().close()
        self.table.close()


class HandMade:
    """Finds shards that the test moves; ``client`` looks for them after each change."""

    fixed = False

    def __init__(self, addresses, host="elsewhere"):
        self.shards = [
            Shard(name=f"shard-{i}", number=i, address=address, host=host)
            for i, address in enumerate(addresses)
        ]
        self.removed, self.client = set(), None

    def find(self):
        return list(self.shards), set(self.removed)

    def change(self, number, **fields):
        """Replace what is known of a shard; without fields it is removed."""
        if not fields:
            self.removed.add(number)
        self.shards = [
            replace(one, **fields) if one.number == number else one
            for one in self.shards
            if fields or one.number != number
        ]
        self._look()

    def add(self, shard):
        self.shards.append(shard)
        self._look()

    def _look(self):
        if self.client is not None:
            self.client._connections.look()


def filled(number, rows, capacity=4096, first=0, priorities=None, **settings):
    """A table with rows that know their shard and count from ``first``."""
    table = ReplayBuffer(capacity, schema=SCHEMA, **settings)
    if rows:
        add(table, number, rows, first, priorities)
    return table


def add(table, number, rows, first=0, priorities=None):
    x = np.arange(first, first + rows)
    table.extend({"x": x, "shard": np.full(rows, number)}, priority=priorities)


@contextlib.contextmanager
def cluster_of(folder, tables, **settings):
    """Shards with these tables, their directory, and a client."""
    with contextlib.ExitStack() as stack:
        shards = []
        for i, table in enumerate(tables):
            shards.append(ThreadShard(folder / str(i), table, **settings))
        stack.callback(lambda: [one.close() for one in shards])
        directory = HandMade([one.address for one in shards])
        client = stack.enter_context(ClusterClient(directory, timeout_s=PATIENCE_S))
        directory.client = client
        yield shards, directory, client


def drawn(source, batch_size):
    """The next batch."""
    plan = source.plan(batch_size, Patience(deadline=Deadline(PATIENCE_S)))
    return plan.batch


def until(happened, source=None):
    """Wait until this holds; with a source, draw from it meanwhile."""
    deadline = Deadline(PATIENCE_S)
    while not happened():
        assert not deadline.expired, "it did not happen"
        threading.Event().wait(0.01)


def chi_square(counts, expected):
    """How many standard deviations the statistic is above its mean."""
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = counts.size - 1
    return (statistic - freedom) / np.sqrt(2 * freedom)
