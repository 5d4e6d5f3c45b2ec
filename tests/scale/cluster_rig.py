"""Shards in threads of the test's process, and a directory that the test moves by hand."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace

import numpy as np

from async_loader import ReplayBuffer
from async_loader.errors import Closed
from async_loader.feeder.server import Server
from async_loader.feeder.settings import ServiceSettings
from async_loader.feeder.wire import Plane
from async_loader.lifecycle import Deadline, Patience
from async_loader.replay.kernel_warmup import warm
from async_loader.scale.client import ClusterClient
from async_loader.scale.shard_map import Shard, ShardMap
from async_loader.schema import Schema

SCHEMA = Schema.of({"x": np.int64, "shard": np.int64})
PATIENCE_S = 60.0

warm()


class ThreadShard:
    """One feeder in a thread, on ipc."""

    def __init__(self, folder, table, **settings):
        folder.mkdir(parents=True, exist_ok=True)
        self.table, self.address = table, f"ipc://{folder}/f"
        endpoints = {
            plane: self.address + ("" if plane is Plane.CONTROL else f".{plane.value}")
            for plane in Plane
        }
        settings = ServiceSettings(drain_s=0.0, **settings)
        memory = f"{folder}/f.memory"
        self.server = Server({"t": table}, endpoints, memory=memory, settings=settings)
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()

    def die(self):
        """End as one that is killed: clients are not told."""
        self.server._send_ends = lambda reason: None
        self.close()

    def close(self):
        if self._thread.is_alive():
            self.server.stop()
            self.server.stop()
            self._thread.join()
        self.server.__dict__.clear()
        self.table.close()


class HandMade:
    """A directory that the test changes."""

    keys = None

    def __init__(self, addresses, host="elsewhere"):
        shards = tuple(
            Shard(
                name=f"shard-{i}",
                number=i,
                address=address,
                host=host,
                incarnation=0,
                state="serving",
            )
            for i, address in enumerate(addresses)
        )
        self._map = ShardMap(version=0, shards=shards)
        self._changed, self._closed = threading.Condition(), False
        self.reports = []

    def shard_map(self, newer_than=-1, timeout_s=0.0):
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._map.version > newer_than, timeout_s
            )
            if self._closed:
                raise Closed("this directory is closed")
            return self._map

    def change(self, number, **fields):
        """Replace what the map says of a shard; ``None`` removes it."""
        with self._changed:
            shards = tuple(
                replace(one, **fields) if one.number == number else one
                for one in self._map.shards
                if fields or one.number != number
            )
            self._map = ShardMap(version=self._map.version + 1, shards=shards)
            self._changed.notify_all()

    def add(self, shard):
        with self._changed:
            shards = (*self._map.shards, shard)
            self._map = ShardMap(version=self._map.version + 1, shards=shards)
            self._changed.notify_all()

    def report_lost(self, name, incarnation):
        self.reports.append((name, incarnation))

    def close(self):
        with self._changed:
            self._closed = True
            self._changed.notify_all()


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
