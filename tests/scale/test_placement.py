"""A new writer goes to the shard with the fewest writers at that moment."""

from __future__ import annotations

from types import SimpleNamespace

from async_loader.scale import table as module
from async_loader.scale.table import ClusterTable


class Shards:
    """Two shards that say what the test wants."""

    def __init__(self, *writers):
        self.writers, self.draining = list(writers), set()
        self.reached = [
            SimpleNamespace(
                name=number, number=number, shard=SimpleNamespace(is_here=True),
                table=lambda name, number=number: number,
            )
            for number in range(len(writers))
        ]  # fmt: skip

    def ask(self, shards, call, deadline):
        found = {}
        for one in shards:
            table = {"writers": self.writers[one.number], "size": 9 - one.number}
            found[one.name] = {"draining": one.number in self.draining, "tables": {"t": table}}
        return found, {}


def test_writers_that_have_ended_count_no_more(monkeypatch):
    monkeypatch.setattr(module, "_OPENS_S", 0.0)  # each opens and closes before the next one
    table = ClusterTable(Shards(0, 3), "t", 1.0)
    assert [table._place() for _ in range(9)] == [0] * 9


def test_a_shard_that_drains_takes_no_writer():
    shards = Shards(0, 3)
    shards.draining = {0}
    assert ClusterTable(shards, "t", 1.0)._place() == 1


def test_writers_that_their_shards_do_not_know_yet_count():
    table = ClusterTable(Shards(7, 8), "t", 1.0)
    chosen = [table._place() for _ in range(7)]
    assert sorted(chosen) == [0] * 4 + [1] * 3
