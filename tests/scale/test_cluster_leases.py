"""Rows of queues that batches of several shards have together, while connections are lost."""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader.feeder.wire import TotalsReply
from async_loader.lifecycle import Deadline, Patience
from async_loader.scale.source import ClusterSource
from async_loader.scale.source_options import SourceOptions
from async_loader.schema import Schema
from async_loader.source import END, Ready

SCHEMA = Schema.of({"index": np.int64, "x": np.int64})
SHARD = 10_000
"""Row ``i`` of shard ``n`` has this times ``n``, plus ``i``."""
PATIENCE_S = 60.0


class Leased:
    """What a fake source has sent together."""

    def __init__(self, opening, rows):
        self.opening, self.rows = opening, rows


class FakeQueue:
    """A source of one shard's queue, with the leases of `RemoteSource`, that the test moves."""

    leased, end_has_come, server, transport, schema = True, False, 0, "tcp", SCHEMA
    ahead, opened = 4, (1, 0)

    def __init__(self, number, rows):
        self.waiting = deque(range(number * SHARD, number * SHARD + rows))
        self.opening, self.ends, self.bell = 0, False, None
        self.planned, self.handed_out, self.settled = set(), set(), []

    def totals(self, chunk):
        return TotalsReply(items=len(self.waiting), uses_up=True), {"kind": "fifo"}

    def listen(self, chunk, bell):
        self.bell = bell

    def ask_anew(self):
        """It says how much there is at once."""

    def draw_now(self, chunk):
        if len(self.waiting) < (1 if self.ends else chunk):
            return END if self.ends else None
        rows = [self.waiting.popleft() for _ in range(min(chunk, len(self.waiting)))]
        lease = Leased(self.opening, rows)
        self.planned.add(lease)
        batch = {"index": np.array(rows) % SHARD, "x": np.array(rows)}
        return Ready(batch, lent=True, lease=lease)

    def returned(self, lease):
        return lease.opening != self.opening

    def hand_out(self, lease):
        if lease not in self.handed_out:
            if lease not in self.planned or self.returned(lease):
                self.planned.discard(lease)
                return False
            self.handed_out.add(lease)
        self.planned.discard(lease)
        return True

    def settle(self, lease):
        if lease in self.handed_out:
            self.handed_out.remove(lease)
            if not self.returned(lease):
                self.settled.append(lease)

    def release(self, timeout_s):
        self.opening += 1
        self.planned.clear()
        self.handed_out.clear()

    def close(self, timeout_s):
        """Nothing is open."""

    def reconnect(self):
        """The connection was lost and is back: the server sends again what is not settled."""
        back = [one for one in (*self.planned, *self.handed_out) if not self.returned(one)]
        self.opening += 1
        self.waiting.extendleft(sorted((row for one in back for row in one.rows), reverse=True))


class FakeShards:
    """A source of a cluster over fake queues, and a loader that has planned some batches ahead."""

    def __init__(self, queues, fresh=False):
        self.queues = queues
        self.shards = tuple(
            SimpleNamespace(
                number=number,
                name=f"shard-{number}",
                is_open=True,
                answers=True,
                connection=SimpleNamespace(servers=0),
            )
            for number in range(len(queues))
        )
        self.connections = SimpleNamespace(
            all=self.shards, listen=lambda bell: None, unlisten=lambda bell: None
        )
        self.source = ClusterSource(
            self.connections,
            lambda shard, ahead: queues[shard.number],
            None,
            SourceOptions(words=(1, 0, 1), queue=True, fresh=fresh),
            SimpleNamespace(note=lambda *said: None),
        )
        self.ahead, self.used, self.delivered = deque(), None, []

    def plan(self, batch_size):
        """Plan a batch ahead; return whether there is one."""
        plan = self.source.draw_now(batch_size)
        if plan is None or plan is END:
            return False
        self.ahead.append(plan)
        return True

    def hand_out(self):
        """Hand the next batch out, if there is one, and its lease is held; return whether."""
        self.settle()
        if not self.ahead:
            return False
        plan = self.ahead.popleft()
        if self.source.hand_out(plan.lease):
            self.delivered += plan.batch["x"].tolist()
            self.used = plan.lease
        return self.used is not None

    def settle(self):
        """Settle what was handed out last."""
        if self.used is not None:
            self.source.settle(self.used)
            self.source.settle(self.used)  # as a call after one that was interrupted
            self.used = None

    def use_up(self, batch_size):
        """Deliver what is left of queues that end."""
        for one in self.queues:
            one.ends = True
        while self.plan(batch_size) or self.ahead:
            self.hand_out()
        self.settle()

    def of(self, number):
        """What was delivered of a shard."""
        return [row for row in self.delivered if row // SHARD == number]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["plan"] * 4 + ["hand_out"] * 3 + ["settle", "reconnect", "write"]),
        st.integers(0, 2),
    ),
    min_size=8,
    max_size=40,
)


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(st.lists(st.integers(3, 40), min_size=2, max_size=3), st.integers(4, 9), STEPS)
def test_no_row_is_lost_whatever_plans_hand_outs_and_reconnects_come_between(
    written, batch_size, steps
):
    fakes = FakeShards([FakeQueue(number, rows) for number, rows in enumerate(written)])
    fragile, reconnected = len(written) - 1, False
    for step, number in steps:
        if step == "plan":
            fakes.plan(batch_size)
        elif step == "hand_out":
            fakes.hand_out()
        elif step == "settle":
            fakes.settle()
        elif step == "reconnect":
            fakes.queues[fragile].reconnect()
            reconnected = True
        else:
            number %= len(written)
            first = number * SHARD + written[number]
            fakes.queues[number].waiting.extend(range(first, first + 4))
            written[number] += 4
    fakes.use_up(batch_size)
    for number, queue in enumerate(fakes.queues):
        got, whole = fakes.of(number), set(range(number * SHARD, number * SHARD + written[number]))
        assert set(got) == whole
        if number != fragile or not reconnected:
            assert len(got) == len(whole)
        assert len({*queue.settled}) == len(queue.settled)
        settled = [row for lease in queue.settled for row in lease.rows]
        assert sorted(settled) == sorted(whole)
        assert all(queue.returned(lease) for lease in queue.planned | queue.handed_out)


def test_a_batch_that_is_dropped_loses_no_row_of_a_shard_whose_later_rows_are_used():
    fakes = FakeShards([FakeQueue(0, 60), FakeQueue(1, 3)])
    assert fakes.plan(7)  # three rows of each, and the first row of a chunk of shard 0
    assert fakes.plan(7)  # the rest of that chunk: shard 1 has no more
    fakes.queues[1].reconnect()
    assert not fakes.hand_out()
    assert fakes.hand_out()
    assert fakes.delivered == [4, 5, 6, 7, 8, 9, 10]
    fakes.settle()
    assert not any({3, 11} & {*lease.rows} for lease in fakes.queues[0].settled)
    for _ in range(4):
        assert fakes.plan(7)
        assert fakes.hand_out()  # no batch after it is dropped
    fakes.use_up(7)
    assert sorted(fakes.delivered) == [*range(60), *range(SHARD, SHARD + 3)]


def test_rows_stay_in_the_order_of_their_shard_when_the_batches_with_them_are_dropped():
    fakes = FakeShards([FakeQueue(0, 60), FakeQueue(1, 60)])
    for _ in range(3):
        assert fakes.plan(7)
    fakes.queues[1].reconnect()
    assert not fakes.hand_out()
    assert fakes.plan(7)
    for _ in range(2):
        assert not fakes.hand_out()
    fakes.use_up(7)
    assert fakes.of(0)[:7] == [0, 1, 2, 3, 4, 5, 6]
    assert sorted(fakes.of(0)) == list(range(60))


def test_a_hand_out_that_is_called_again_puts_no_row_back_twice():
    fakes = FakeShards([FakeQueue(0, 30), FakeQueue(1, 30)])
    assert fakes.plan(6)
    fakes.queues[1].reconnect()
    lease = fakes.ahead[0].lease
    assert not fakes.source.hand_out(lease)
    assert not fakes.hand_out()
    fakes.source.settle(lease)
    fakes.use_up(6)
    assert sorted(fakes.delivered) == [*range(30), *range(SHARD, SHARD + 30)]


def test_parts_go_back_also_if_the_connection_is_lost_within_the_call():
    fakes = FakeShards([FakeQueue(0, 30), FakeQueue(1, 30)])
    assert fakes.plan(6)
    broken = fakes.queues[1]
    hand_out = broken.hand_out

    def lost(lease):
        broken.hand_out = hand_out
        broken.reconnect()
        return hand_out(lease)

    broken.hand_out = lost
    assert not fakes.hand_out()
    fakes.use_up(6)
    assert sorted(fakes.delivered) == [*range(30), *range(SHARD, SHARD + 30)]


def test_a_plan_that_waits_takes_the_rows_of_a_batch_that_is_dropped():
    fakes = FakeShards([FakeQueue(0, 8), FakeQueue(1, 3)])
    assert fakes.plan(6)
    fakes.queues[1].reconnect()
    fakes.queues[1].waiting.clear()  # another learner has them
    waits, found = threading.Event(), []
    patience = Patience(deadline=Deadline(PATIENCE_S), on_wait=lambda *said: waits.set())

    def wait():
        found.append(fakes.source.plan(6, patience).batch["x"].tolist())

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(PATIENCE_S)
    assert not fakes.hand_out()
    thread.join()
    assert sorted(found[0]) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("batch_size", "shards"), [(10, 2), (11, 2), (16, 3), (2, 3)])
def test_samples_of_a_queue_lose_no_row_and_lease_few_more_than_they_give(batch_size, shards):
    fakes = FakeShards([FakeQueue(number, 80) for number in range(shards)], fresh=True)
    chunk, there = max(1, batch_size // shards), 80 * shards
    while there - len(fakes.delivered) >= batch_size:
        fakes.source.begin_afresh(at_once=False)
        assert fakes.plan(batch_size)
        assert fakes.hand_out()
        left = sum(len(one.waiting) for one in fakes.queues)
        assert there - left - len(fakes.delivered) < chunk
    fakes.use_up(batch_size)
    assert sorted(fakes.delivered) == [n * SHARD + i for n in range(shards) for i in range(80)]


def test_rows_that_went_back_are_asked_for_again_by_a_sample():
    fakes = FakeShards([FakeQueue(0, 96), FakeQueue(1, 96)], fresh=True)
    for _ in range(2):
        fakes.source.begin_afresh(at_once=False)
        assert fakes.plan(11)
        for one in fakes.queues:
            one.reconnect()
        assert not fakes.hand_out()
    assert fakes.plan(11)
    assert fakes.hand_out()


def test_a_queue_ends_only_after_each_shard_of_the_map_was_reached_and_has_ended():
    fakes = FakeShards([FakeQueue(0, 8), FakeQueue(1, 5)])
    fakes.shards[1].is_open = False
    fakes.queues[0].ends = True
    assert fakes.plan(4)
    assert fakes.plan(4)
    assert fakes.source.draw_now(4) is None
    fakes.shards[1].is_open = True
    assert fakes.plan(4)
    fakes.queues[1].ends = True
    assert fakes.plan(4)
    assert fakes.source.draw_now(4) is END
    while fakes.ahead:
        assert fakes.hand_out()
    assert sorted(fakes.delivered) == [*range(8), *range(SHARD, SHARD + 5)]


def test_a_plan_waits_for_the_shard_in_the_place_of_all_that_were_removed():
    fakes = FakeShards([FakeQueue(0, 8), FakeQueue(1, 5)])
    fakes.connections.all = fakes.shards[:1]
    assert fakes.plan(4)
    fakes.connections.all, fakes.shards[1].is_open = fakes.shards[1:], False
    assert fakes.source.draw_now(4) is None
    fakes.shards[1].is_open = True
    assert fakes.plan(4)
