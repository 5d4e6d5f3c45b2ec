"""A shard that is stopped or killed delays calls on the whole cluster by a few heartbeats only."""

from __future__ import annotations

import contextlib
import os
import signal

import numpy as np
import pytest
from cluster_rig import until

from async_loader import Schema
from async_loader.errors import Timeout
from async_loader.feeder.embedded import Embedded
from async_loader.feeder.settings import ServerSettings
from async_loader.scale import Cluster
from async_loader.source import Applied

pytestmark = pytest.mark.slow

ROWS = 8
TIMEOUT_S = 20.0
"""Of the client: far more than a shard may be silent."""
SETTINGS = ServerSettings.from_plain({"t": {"capacity": 64, "sampler": {"kind": "prioritized"}}})


@contextlib.contextmanager
def cluster(shards=2):
    """Feeders in processes of their own with some rows, and a client of all."""
    with contextlib.ExitStack() as stack:
        feeders = [
            stack.enter_context(contextlib.closing(Embedded(SETTINGS))) for _ in range(shards)
        ]
        addresses = [one.address for one in feeders]
        client = stack.enter_context(Cluster.static(addresses, timeout_s=TIMEOUT_S))
        for name in client.shards:
            with client.shard(name).table("t").writer(schema=Schema.of({"x": np.int64})) as writer:
                for x in range(ROWS):
                    writer.append(x=x)
        yield feeders, client


@contextlib.contextmanager
def stopped(feeder):
    """Stop a feeder's process within the block."""
    pid = feeder.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: state_of(pid) == "T")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def state_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


IDS = np.concatenate([np.arange(ROWS), np.arange(ROWS) + (1 << 56)])
CALLS = {
    "update_priorities": lambda table: table.update_priorities(IDS, np.ones(len(IDS))),
    "update": lambda table: table.update(IDS, x=np.arange(len(IDS))),
    "delete": lambda table: table.delete(IDS),
}


@pytest.mark.parametrize("name", ["update_priorities", "update"])
def test_rows_of_a_stopped_shard_count_as_stale_and_all_others_are_reached(name):
    with cluster() as (feeders, client):
        table = client.table("t")
        with stopped(feeders[0]):
            assert client._connections.all[0].is_open
            assert CALLS[name](table) == Applied(ROWS, stale=ROWS)


WEIGHTS = {"w": np.ones(1000, np.float32)}


def test_weights_reach_all_other_shards_when_one_is_stopped():
    with cluster() as (feeders, client):
        assert client.publish("policy", WEIGHTS, 1)
        with stopped(feeders[0]):
            assert client.publish("policy", WEIGHTS, 2)
            assert client.shard("shard-1").latest("policy").version == 2
            with pytest.raises(Timeout):  # the only shard: nothing is newest
                client.shard("shard-0").publish("policy", WEIGHTS, 3, timeout_s=0.1)
