"""A new writer goes to the shard with the fewest writers at that moment."""

from __future__ import annotations

from types import SimpleNamespace

from async_loader.lifecycle import Deadline
from async_loader.scale.placement import Placement


class Shards:
    """Two shards that say what the test wants."""

    def __init__(self, *writers):
        self.writers, self.now = list(writers), 0.0
        self.all = [self._shard(number) for number in range(len(writers))]

    def _shard(self, number):
        def status(timeout_s):
            return {"tables": {"t": {"writers": self.writers[number], "size": 9 - number}}}

        return SimpleNamespace(
            name=number, takes_writers=True, is_here=True, client=SimpleNamespace(status=status)
        )

    def listen(self, bell):
        pass

    def unlisten(self, bell):
        pass


def test_writers_that_have_ended_count_no_more():
    shards = Shards(0, 3)
    placement = Placement(shards, "t")
    placement._clock = lambda: shards.now
    for _ in range(3):
        shards.now += 10.0  # each opens and closes before the next one
        for _ in range(3):
            assert placement.choose(Deadline(1.0)).name == 0


def test_writers_that_their_shards_do_not_know_yet_count():
    shards = Shards(7, 8)
    placement = Placement(shards, "t")
    chosen = [placement.choose(Deadline(1.0)).name for _ in range(7)]
    assert sorted(chosen) == [0] * 4 + [1] * 3


def test_writers_of_the_only_shard_count_as_it_says_when_another_one_comes():
    shards = Shards(0, 3)
    (first, second), shards.all = shards.all, shards.all[:1]
    placement = Placement(shards, "t")
    for _ in range(9):  # short ones
        placement.choose(Deadline(1.0))
    shards.all = [first, second]
    assert placement.choose(Deadline(1.0)).name == 0
