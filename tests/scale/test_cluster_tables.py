"""Tables of a cluster with what steps of real tasks have: nested fields, sequences, saves."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from cluster_rig import PATIENCE_S, drawn

from async_loader import Field, Schema, Sequences
from async_loader.feeder.embedded import Embedded
from async_loader.feeder.settings import ServerSettings
from async_loader.feeder.settings_reader import settings_of
from async_loader.scale import Cluster

pytestmark = pytest.mark.slow

SCHEMA = Schema.of(
    {
        "obs": {"image": Field((4, 4), np.uint8), "speed": Field((), np.float32)},
        "action": Field((), np.int64),
        "reward": Field((), np.float32),
        "terminated": "bool",
        "truncated": "bool",
    }
)
EPISODE, EPISODES = 12, 20


def step(shard, episode, at):
    """A step that knows where it is from."""
    return {
        "obs": {"image": np.full((4, 4), at, np.uint8), "speed": float(episode)},
        "action": shard,
        "reward": float(at),
        "terminated": at == EPISODE - 1,
        "truncated": False,
    }


@contextlib.contextmanager
def cluster(shards=2, saves=None):
    """A client of shards that run in processes of their own."""
    with contextlib.ExitStack() as stack:
        addresses = []
        for i in range(shards):
            plain = {"tables": {"t": {"capacity": 4096}}}
            if saves is not None:
                plain["checkpoint"] = {"path": str(saves / f"shard-{i}")}
            feeder = stack.enter_context(
                contextlib.closing(Embedded(settings_of(plain, ServerSettings)))
            )
            addresses.append(feeder.address)
        yield stack.enter_context(Cluster.static(addresses, timeout_s=PATIENCE_S))


def fill(client):
    for shard, name in enumerate(client.shards):
        with client.shard(name).table("t").writer(schema=SCHEMA) as writer:
            for episode in range(EPISODES):
                for at in range(EPISODE):
                    writer.append(step(shard, episode, at))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_nested_steps_and_sequences_of_all_shards_are_whole(transport):
    with cluster() as client:
        fill(client)
        table = client.table("t")
        assert table.schema == SCHEMA
        with contextlib.closing(table.source(transport=transport, seed=1)) as source:
            for _ in range(20):
                batch = drawn(source, 32)
                assert np.array_equal(batch["index"] >> 56, batch["action"])
                assert np.array_equal(batch["obs"]["image"][:, 2, 1], batch["reward"])
            assert set(source.transports.values()) == {transport}
        view = Sequences(6, stride=3)
        with contextlib.closing(table.source(view=view, transport=transport, seed=1)) as source:
            seen = set()
            for _ in range(20):
                batch = drawn(source, 16)
                assert batch["obs"]["image"].shape == (16, 6, 4, 4)
                assert np.array_equal(batch["index"] >> 56, batch["action"][:, 0])
                for row in range(16):
                    mask = batch["mask"][row]
                    assert (np.diff(batch["reward"][row][mask]) == 1).all()
                    assert len(set(batch["obs"]["speed"][row][mask].tolist())) == 1
                seen |= set(batch["action"][:, 0].tolist())
            assert seen == {0, 1}


def test_each_shard_is_saved_in_its_own_folder_and_loaded_from_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a feeder of this process's own saves
    with cluster(saves=tmp_path) as client:
        fill(client)
        table = client.table("t")
        before = table.stats()
        report = table.save("nightly")
        assert report.rows == 2 * EPISODE * EPISODES
        table.clear()
        assert len(table) == 0
        table.load("nightly")
        after = table.stats()
        assert (after.size, after.inserted) == (before.size, before.inserted)
        batch = table.sample(64)
        assert np.array_equal(batch["index"] >> 56, batch["action"])
        assert np.array_equal(table.get(batch["index"])["reward"], batch["reward"])
