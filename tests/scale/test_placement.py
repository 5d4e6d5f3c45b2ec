"""A new writer goes to the shard with the fewest writers at that moment."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

from async_loader.lifecycle import Deadline
from async_loader.scale import placement as module
from async_loader.scale.connections import Bells
from async_loader.scale.placement import Placement


class Shards:
    """Two shards that say what the test wants."""

    def __init__(self, *writers):
        self.writers, self.draining = list(writers), set()
        self.bells = Bells()
        self.reached = [self._shard(number) for number in range(len(writers))]
        self.pool = SimpleNamespace(submit=self._submitted)

    def _submitted(self, call, one):
        done = Future()
        done.set_result(call(one))
        return done

    def _shard(self, number):
        def status(timeout_s):
            table = {"writers": self.writers[number], "size": 9 - number}
            return {"draining": number in self.draining, "tables": {"t": table}}

        connection = SimpleNamespace(
            check_fork=lambda: None, answers_s=9.0, news=SimpleNamespace(ring=lambda: None)
        )
        return SimpleNamespace(
            name=number, shard=SimpleNamespace(is_here=True), connection=connection,
            client=SimpleNamespace(status=status),
        )  # fmt: skip


def test_writers_that_have_ended_count_no_more(monkeypatch):
    monkeypatch.setattr(module, "_OPENS_S", 0.0)  # each opens and closes before the next one
    placement = Placement(Shards(0, 3), "t")
    assert [placement.choose(Deadline(1.0)).name for _ in range(9)] == [0] * 9
