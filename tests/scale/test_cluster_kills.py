"""Shards' processes are killed under load, and others take their places."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from cluster_rig import PATIENCE_S, HandMade

from async_loader import AsyncDataLoader
from async_loader.errors import Timeout
from async_loader.feeder import connect
from async_loader.feeder.embedded import Embedded
from async_loader.feeder.settings import ServerSettings
from async_loader.scale.client import ClusterClient

SHARDS = 2
CAPACITY = 1_000_000


def shard():
    return Embedded(ServerSettings.from_plain({"t": CAPACITY}))


class Actor(threading.Thread):
    """Adds steps that count up to one shard, until it is told to end."""

    def __init__(self, client, number):
        super().__init__()
        self.writer, self.number, self.steps = None, number, 0
        self._client, self._end = client, threading.Event()
        self.writer = client.shard(f"shard-{number}").table("t").writer()
        self.error = None

    def run(self):
        try:
            while not self._end.is_set():
                self.writer.append(x=self.steps, shard=self.number)
                self.steps += 1
                if self.steps % 50 == 0:
                    self._end.wait(0.01)  # some thousand steps a second
        except Exception as error:
            self.error = error

    def end(self):
        self._end.set()
        self.join(PATIENCE_S)
        assert self.error is None, self.error
        self.writer.close(PATIENCE_S)


class Learner(threading.Thread):
    """Draws batches, and notes the longest time between two."""

    def __init__(self, table):
        super().__init__()
        self.batches, self.longest_s, self.error = 0, 0.0, None
        self.ids = set()
        self._table, self._end = table, threading.Event()

    def run(self):
        try:
            with AsyncDataLoader(self._table, batch_size=64) as loader:
                before = None
                while not self._end.is_set():
                    batch = next(loader)
                    now = time.monotonic()
                    self.longest_s = max(self.longest_s, 0.0 if before is None else now - before)
                    before = now
                    self.batches += 1
                    assert np.array_equal(batch["index"] >> 56, batch["shard"])
                    self._end.wait(0.002)
        except Exception as error:
            self.error = error

    def end(self):
        self._end.set()
        self.join(PATIENCE_S)
        assert self.error is None, self.error


def rounds_of(count, rng):
    """Kill a shard under load, so often; return the longest time without a batch."""
    feeders = [shard() for _ in range(SHARDS)]
    directory = HandMade([one.address for one in feeders])
    longest = 0.0
    try:
        with ClusterClient(directory, timeout_s=PATIENCE_S) as client:
            directory.client = client
            table = client.table("t")
            actors = [Actor(client, number) for number in range(SHARDS)]
            for one in actors:
                one.start()
            for _ in range(count):
                longest = max(longest, kill_one(table, feeders, directory, actors, rng))
            for one in actors:
                one.end()
            check(client, feeders, actors)
    finally:
        for one in feeders:
            one.close()
    return longest


def kill_one(table, feeders, directory, actors, rng):
    learner = Learner(table)
    learner.start()
    more(learner)
    number = int(rng.integers(SHARDS))
    os.kill(feeders[number].pid, signal.SIGKILL)
    more(learner)  # without the shard
    feeders[number].close()
    feeders[number] = shard()
    directory.change(number, address=feeders[number].address)
    acked = actors[number].writer
    acked.flush(PATIENCE_S)
    more(learner)
    learner.end()
    return learner.longest_s


def more(learner):
    """Wait until the learner has drawn some more batches."""
    wanted, deadline = learner.batches + 10, time.monotonic() + PATIENCE_S
    while learner.batches < wanted:
        if time.monotonic() > deadline or learner.error is not None:
            raise Timeout(f"{learner.batches} of {wanted} batches: {learner.error!r}")
        threading.Event().wait(0.01)


def check(client, feeders, actors):
    """Every step is in its living shard once, in order, or is counted as lost with a dead one."""
    lost = client.table("t").stats().lost
    for actor in actors:
        name = f"shard-{actor.number}"
        with connect(feeders[actor.number].address) as own:
            size = own.table("t").stats().inserted
            there = own.table("t").get(np.arange(size + 64))["x"]
        gone = sum(one.rows for one in lost if one.shard == name)
        assert there.tolist() == list(range(gone, actor.steps))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the feeder lost .* rows:UserWarning")
def test_kills_lose_nothing_of_the_living_and_name_what_the_dead_had():
    longest = rounds_of(3, np.random.default_rng(5))
    assert longest < PATIENCE_S


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore:the feeder lost .* rows:UserWarning")
def test_hundreds_of_kills():
    longest = rounds_of(200, np.random.default_rng(6))
    assert longest < 5.0
