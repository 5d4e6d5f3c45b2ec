"""A client follows the map of its cluster, also one that it cannot follow as a whole."""

from __future__ import annotations

import contextlib

import pytest
from cluster_rig import PATIENCE_S, HandMade, ThreadShard, filled, until

from async_loader.feeder.curve_keys import make_keys
from async_loader.scale import connections
from async_loader.scale.client import ClusterClient
from async_loader.scale.shards import Shard


@contextlib.contextmanager
def shard_in(folder):
    one = ThreadShard(folder, filled(0, 1))
    try:
        yield one
    finally:
        one.close()


@pytest.mark.slow
def test_a_shard_without_a_key_is_left_out_until_it_has_one_and_the_others_are_followed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(connections, "_LOOK_S", 0.05)
    keys = tmp_path / "keys"
    keys.mkdir()
    with shard_in(tmp_path / "a") as first, shard_in(tmp_path / "b") as moved:
        directory = HandMade([first.address])
        with ClusterClient(directory, timeout_s=PATIENCE_S) as client:
            there, directory.client = client._connections, client
            there._keys = keys
            directory.add(named("late", 1, f"ipc://{tmp_path}/none"))
            assert client.shards == ("shard-0",)
            directory.change(0, address=moved.address)
            assert there.all[0].shard.address == moved.address
            make_keys(tmp_path / "made", ["late"])
            (tmp_path / "made" / "late.secret").rename(keys / "late.secret")
            until(lambda: len(there.all) > 1)


def named(name, number, address):
    return Shard(name=name, number=number, address=address, host="elsewhere")
