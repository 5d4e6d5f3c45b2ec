"""A client follows the map of its cluster, also one that it cannot follow as a whole."""

from __future__ import annotations

import contextlib
import math

import pytest
from cluster_rig import PATIENCE_S, HandMade, ThreadShard, filled, until

from async_loader.errors import ConfigError, Timeout
from async_loader.feeder.curve_keys import make_keys
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
def test_a_shard_without_a_key_is_left_out_until_it_has_one_and_the_others_are_followed(tmp_path):
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


def test_a_key_that_is_missing_at_the_beginning_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"no shard-0\.secret"):
        ClusterClient(HandMade([f"ipc://{tmp_path}/a"]), keys=tmp_path, timeout_s=PATIENCE_S)


def test_shards_that_come_while_a_client_connects_are_waited_for(tmp_path):
    directory = HandMade([])
    with pytest.raises(Timeout, match="no shard yet"):
        ClusterClient(directory, timeout_s=0.05)
    with shard_in(tmp_path) as shard:
        directory = Asked([])
        directory.then(lambda: directory.add(named("shard-0", 0, shard.address)))
        with ClusterClient(directory, timeout_s=PATIENCE_S) as client:
            assert client.shards == ("shard-0",)
            assert len(client.table("t")) == 1


def test_a_shard_that_is_started_again_while_a_client_connects_is_waited_for(tmp_path):
    with shard_in(tmp_path) as shard:
        directory = Asked([f"ipc://{tmp_path}/none"])
        directory.then(lambda: directory.change(0, address=shard.address))
        with ClusterClient(directory, timeout_s=PATIENCE_S) as client:
            assert len(client.table("t")) == 1


@pytest.mark.slow
def test_a_shard_that_is_not_there_delays_no_client_of_the_others(tmp_path):
    with shard_in(tmp_path) as shard:
        directory = HandMade([f"ipc://{tmp_path}/none", shard.address])
        with ClusterClient(directory, timeout_s=math.inf) as client:
            assert len(client.table("t")) == 1


class Asked(HandMade):
    """Changes when it is asked for the second time."""

    asked = 0

    def then(self, change):
        self._then = change

    def find(self):
        self.asked += 1
        if self.asked > 1 and (change := self.__dict__.pop("_then", None)) is not None:
            change()
        return super().find()


def named(name, number, address):
    return Shard(name=name, number=number, address=address, host="elsewhere")
