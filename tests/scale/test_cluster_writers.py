"""Writers are bound to a shard, and follow it to the process that takes its place."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
from cluster_rig import (
    SCHEMA,
    ThreadShard,
    cluster_of,
    drawn,
    filled,
    until,
)

from async_loader import AsyncDataLoader, ReplayBuffer
from async_loader.errors import Broken
from async_loader.replay.rate_limiter import Queue
from async_loader.replay.samplers import Fifo
from async_loader.scale.shards import Shard


def test_writers_are_spread_and_their_streams_stay_together(tmp_path):
    tables = [filled(i, 0) for i in range(3)]
    with cluster_of(tmp_path, tables) as (_, _, client):
        table = client.table("t")
        writers = [table.writer() for _ in range(6)]
        for number, writer in enumerate(writers):
            for x in range(4):
                writer.append(x=x, shard=number)
            writer.end_episode()
            writer.flush()
        assert [len(one) for one in tables] == [8, 8, 8]
        for one in tables:
            wrote = one.get(np.arange(8))["shard"]
            assert sorted(np.bincount(wrote[wrote >= 0], minlength=6)) == [0, 0, 0, 0, 4, 4]
        for writer in writers:
            writer.close()


@pytest.mark.filterwarnings("ignore:the feeder lost .* rows:UserWarning")
def test_a_writer_follows_its_shard_to_another_address_and_what_was_lost_is_named(tmp_path):
    tables = [filled(0, 0), filled(1, 5)]
    with cluster_of(tmp_path, tables) as (shards, directory, client):
        table = client.table("t")
        writer = client.shard("shard-0").table("t").writer()
        for x in range(100):
            writer.append(x=x, shard=0)
        writer.flush()
        assert table.stats().lost == ()
        shards[0].die()
        until(lambda: not client._connections.all[0].is_open)
        for x in range(100, 150):  # kept meanwhile
            writer.append(x=x, shard=0)
        successor = ThreadShard(tmp_path / "successor", filled(0, 0))
        directory.change(0, address=successor.address)
        writer.flush()
        found = successor.table.get(np.arange(50))
        assert found["x"].tolist() == list(range(100, 150))  # once, in order
        (lost,) = table.stats().lost
        assert (lost.shard, lost.incarnation, lost.rows) == ("shard-0", 0, 100)
        assert "100 rows were lost with shard-0, incarnation 0" in str(table.stats())
        writer.close()
        successor.close()


def test_a_learner_goes_on_without_a_lost_shard_and_with_its_successor(tmp_path):
    tables = [filled(0, 40), filled(1, 40)]
    with cluster_of(tmp_path, tables) as (shards, directory, client):
        table = client.table("t")
        with AsyncDataLoader(table, batch_size=32) as loader:
            until(lambda: 1 in next(loader)["shard"])
            until(lambda: 0 in next(loader)["shard"])
            shards[1].die()
            until(lambda: not any(1 in next(loader)["shard"] for _ in range(20)))
            successor = ThreadShard(tmp_path / "successor", filled(1, 25, first=500))
            directory.change(1, address=successor.address)
            until(lambda: 1 in next(loader)["shard"])
            late = [next(loader) for _ in range(40)]
            x = np.concatenate([batch["x"][batch["shard"] == 1] for batch in late])
            assert x.min() >= 500  # nothing of the one that is lost
        successor.close()


def test_shards_come_and_go_while_a_learner_draws(tmp_path):
    with cluster_of(tmp_path, [filled(0, 40)]) as (_, directory, client):
        source = client.table("t").source()
        assert not drawn(source, 16)["shard"].any()
        added = ThreadShard(tmp_path / "added", filled(7, 400))
        directory.add(
            Shard(
                name="late",
                number=7,
                address=added.address,
                host="elsewhere",
            )
        )
        until(lambda: (drawn(source, 16)["index"] >> 56 == 7).any())
        writer = client.shard("late").table("t").writer()
        directory.change(7)  # removes it
        until(lambda: not any((drawn(source, 16)["shard"] == 7).any() for _ in range(20)))
        with contextlib.suppress(Broken):
            writer.append(x=1, shard=7)
        with pytest.raises(Broken, match="late was removed from the cluster"):
            writer.flush()
        source.close()
        added.close()


def test_a_queue_gives_each_step_to_one_learner_of_two(tmp_path):
    tables = [
        ReplayBuffer(
            64,
            schema=SCHEMA,
            sampler=Fifo(),
            remover=Fifo(),
            max_times_sampled=1,
            limiter=Queue(64),
        )
        for _ in range(3)
    ]
    with cluster_of(tmp_path, tables) as (_, _, client):
        table = client.table("t")

        def write(number):
            with client.shard(f"shard-{number}").table("t").writer() as writer:
                for x in range(number * 1000, number * 1000 + 200):
                    writer.append(x=x, shard=number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        sources = [table.source(rank=rank, world_size=2) for rank in range(2)]
        loaders = [AsyncDataLoader(source, batch_size=20) for source in sources]
        for one in threads:
            one.start()
        seen = [[], []]
        for _ in range(8):
            for rank, loader in enumerate(loaders):
                seen[rank] += next(loader)["x"].tolist()
        for loader in loaders:  # what they have planned goes back
            loader.close()
        rest = table.source()
        with AsyncDataLoader(rest, batch_size=1) as loader:
            last, again = [], []
            while len(last) < 280:
                batch = next(loader)
                marked = batch["redelivered"].numpy()
                last += batch["x"].numpy()[~marked].tolist()
                again += batch["x"].numpy()[marked].tolist()
                last += [x for x in again if x not in seen[0] + seen[1] + last]
        for one in threads:
            one.join()
        everything = [x for number in range(3) for x in range(number * 1000, number * 1000 + 200)]
        assert sorted(seen[0] + seen[1] + last) == everything
        assert not {*seen[0]} & {*seen[1]}
        for number in range(3):  # each shard's steps come in their order
            for one in seen:
                mine = [x for x in one if x // 1000 == number]
                assert mine == sorted(mine)
        for one in (*sources, rest):
            one.close()


def test_weights_go_to_all_shards_and_come_from_one(tmp_path):
    with cluster_of(tmp_path, [filled(0, 1), filled(1, 1)]) as (shards, _, client):
        assert client.latest("policy") is None
        assert client.publish("policy", {"w": np.arange(3)}, 1)
        assert [client.shard(name).latest("policy").version for name in client.shards] == [1, 1]
        first = client.latest("policy")
        shards[0].die()
        until(lambda: not client._connections.all[0].is_open)
        assert client.latest("policy", first) is None  # the same run in the other shard
        assert client.publish("policy", {"w": np.arange(3)}, 2)
        assert client.latest("policy", first).version == 2


def test_status_says_which_shards_answer(tmp_path):
    with cluster_of(tmp_path, [filled(0, 3), filled(1, 4)]) as (shards, _, client):
        said = client.status()["shards"]
        assert said["shard-1"]["status"]["tables"]["t"]["size"] == 4
        shards[1].die()
        until(lambda: not client._connections.all[1].is_open)
        said = client.status()["shards"]["shard-1"]
        assert (said["connected"], said["status"]) == (False, None)
        assert "2 shards, 1 of them connected" in repr(client)
