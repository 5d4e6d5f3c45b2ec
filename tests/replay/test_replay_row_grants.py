"""What writers in other processes publish is taken in by one kernel: all of it, in order, once, and
nothing that cannot be.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from async_loader import Field, Prioritized, ReplayBuffer, Schema
from async_loader.errors import Closed
from async_loader.replay.base import ring_format
from async_loader.replay.base.grant_log import GrantLog
from async_loader.replay.base.row_format import AWAITS, FINAL, TERMINATED, TRUNCATED
from async_loader.replay.kernels import publish_ring
from async_loader.replay.multiprocess.publish_ring import PublishRing
from async_loader.replay.samplers import Fifo
from async_loader.replay.table.storage import Storage, StorageLayout
from async_loader.replay.table.table import Table
from async_loader.testing.debug import debug_state

WRITERS, STREAMS, MOST = 3, 2, 6
LINKED = Schema.of({"obs": Field((2,), np.float32, stack=3, next="next_obs"), "reward": np.float32})
STEPS = [
    (0,),
    (0,),
    (0,),
    (TERMINATED,),
    (TRUNCATED,),
    (TRUNCATED | AWAITS, FINAL),
    (FINAL | TRUNCATED,),
]
NOTES = [ring_format.ENDED | TRUNCATED, ring_format.ENDED | TERMINATED, ring_format.SKIPPED]


class Hand:
    """A writer's end of a ring and the table's grant log of it, in one process."""

    def __init__(self, table: Table, number: int) -> None:
        self.table, self.ring = table, PublishRing.create()
        self.grant_log = GrantLog(self.ring.address)
        self.streams = table.numbers((number, k) for k in range(STREAMS))
        self.rows: deque[int] = deque()
        block = self.ring.segment.bytes(
            ring_format.RECORDS, ring_format.NBYTES - ring_format.RECORDS
        )
        self.numbers = np.frombuffer(block, np.int64).reshape(3, ring_format.SIZE)
        self.given = np.frombuffer(block, np.float64).reshape(3, ring_format.SIZE)[2]
        self.written = self.published = 0

    def grant(self, count: int, extent: int) -> None:
        while len(self.rows) < count:
            first, got = self.table.grant(extent)
            self.grant_log.granted(first, got)
            self.rows += range(first, first + got)

    def record(self, stream: int, flags: int, priority: float = np.nan) -> None:
        place = self.written % ring_format.SIZE
        self.numbers[:2, place], self.given[place] = (stream, flags), priority
        self.written += 1

    def do(self, what: tuple[int, ...], stream: int, priority: float) -> None:
        for flags in what:
            if flags & ring_format.SKIPPED:
                count = min(len(self.rows), 1 + stream)
                self.record(count, flags)
                for _ in range(count):
                    self.rows.popleft()
                continue
            if not flags & (ring_format.ENDED | ring_format.SKIPPED):
                row = self.rows.popleft() % self.table.storage.layout.rows
                self.table.storage.cell(0)[row] = self.table.storage.cell(1)[row] = self.written
            self.record(int(self.streams[stream]), flags, np.nan if flags & FINAL else priority)

    def publish(self, upto: int | None = None) -> None:
        self.published = self.written if upto is None else upto
        publish_ring.publish(self.ring.address, self.published)


class Owning:
    """A table and its writers."""

    def __init__(self, max_times_sampled: int = 0) -> None:
        self.sampler = Prioritized(1.0)
        storage = Storage.create(StorageLayout.of(LINKED, 100, spare=24))
        self.table = Table(
            storage, [self.sampler], Fifo(), np.random.SeedSequence(0), max_times_sampled
        )
        self.sampler.bind(self.table.items, np.random.SeedSequence(1))
        self.hands = [Hand(self.table, number) for number in range(WRITERS)]

    def at_once(self) -> int:
        for hand in self.hands:
            hand.publish()
        return self.table.commit(np.array([hand.grant_log.address for hand in self.hands]))

    def one_by_one(self) -> int:
        count = 0
        for hand in self.hands:
            while hand.published < hand.written:
                hand.publish(hand.published + 1)
                count += self.table.commit(np.array([hand.grant_log.address]))
        return count

    def draw(self) -> list[int]:
        most = self.table.drawable(self.sampler)
        count = 8 if most is None else min(8, most)
        return self.table.draw(self.sampler, count)[0].tolist() if count else []

    def facts(self) -> dict[str, Any]:
        table = self.table
        arrays = {
            "heads": table.storage.heads(),
            "rows": table.storage.cell(0),
            "alive": table.items.alive,
            "held": table.held,
            "ids": table.ids,
            "last": table.last,
            "given": table.given,
            "times": table.times,
            "dirty": table.dirty,
            "masses": self.sampler.state()["mass"],
        }
        facts = {name: np.nan_to_num(array, nan=-1.0).tolist() for name, array in arrays.items()}
        grant_logs = [
            (hand.grant_log.held, hand.grant_log.stepped, hand.ring.room(hand.written))
            for hand in self.hands
        ]
        return {
            **facts,
            "counts": (len(table), table.inserted, table.deleted, table.granted, table.state()[0]),
            "of": grant_logs,
        }


deed = st.tuples(
    st.integers(0, WRITERS - 1),
    st.sampled_from([*STEPS, *((note,) for note in NOTES)]),
    st.integers(0, STREAMS - 1),
    # a step without one gets the largest so far, those told of with it included
    st.sampled_from([0.5, 1.0, 3.0]),
)
rounds = st.lists(
    st.tuples(st.integers(1, 7), st.lists(deed, max_size=MOST)), min_size=1, max_size=30
)


@given(rounds, st.sampled_from([0, 2]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_adopting_many_lanes_at_once_equals_adopting_them_record_by_record(
    rounds: Any, max_times_sampled: int
) -> None:
    both = Owning(max_times_sampled), Owning(max_times_sampled)
    for extent, deeds in rounds:
        for owning in both:
            for hand in owning.hands:
                hand.grant(2 * MOST, extent)
            for writer, what, stream, priority in deeds:
                owning.hands[writer].do(what, stream, priority)
        assert both[0].at_once() == both[1].one_by_one()
        assert both[0].facts() == both[1].facts()
        assert both[0].draw() == both[1].draw()


def test_all_that_many_writers_have_published_is_told_once_and_in_order() -> None:
    told: list[list[int]] = []

    class Listening(Prioritized):
        def insert(self, rows: Any, priority: Any) -> None:
            told.append(rows.tolist())
            super().insert(rows, priority)

    storage = Storage.create(StorageLayout.of(Schema.of({"x": np.int64}), 100))
    table = Table(storage, [sampler := Listening(1.0)], Fifo(), np.random.SeedSequence(0))
    sampler.bind(table.items, np.random.SeedSequence(1))
    hands = [Hand(table, number) for number in range(WRITERS)]
    for hand in hands:
        hand.grant(4, 4)
        for _ in range(3):
            hand.rows.popleft()
            hand.record(int(hand.streams[0]), 0)
        hand.publish()
    assert table.commit(np.array([hand.grant_log.address for hand in hands])) == 9
    assert told == [[0, 1, 2, 4, 5, 6, 8, 9, 10]]
    assert table.commit(np.array([hand.grant_log.address for hand in hands])) == 0
    assert len(told) == 1


def test_what_was_adopted_when_ctrl_c_came_is_told_later_and_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owning = Owning()
    table = owning.table
    for hand in owning.hands:
        hand.grant(6, 6)
        for _ in range(5):
            hand.do((0,), 0, 1.0)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(table, "settle", interrupted)
        with pytest.raises(KeyboardInterrupt):
            owning.at_once()
    assert table.granted == sum(hand.grant_log.held for hand in owning.hands) == WRITERS
    assert owning.at_once() == 0
    # the last of each waits for what comes after
    assert len(table) == table.inserted == table.items.count == WRITERS * 4
    assert np.count_nonzero(owning.sampler.state()["mass"]) == WRITERS * 4


@pytest.mark.parametrize(
    "wrong",
    [
        lambda hand: hand.record(1000, 0),
        lambda hand: hand.record(-1, 0),
        lambda hand: hand.record(1000, ring_format.ENDED),
        lambda hand: hand.record(-3, ring_format.SKIPPED),
        lambda hand: hand.record(100, ring_format.SKIPPED),
        lambda hand: [hand.record(0, 0) for _ in range(10)],
        lambda hand: setattr(hand, "written", -1),
        lambda hand: setattr(hand, "written", 2 * ring_format.SIZE),
    ],
)
def test_a_lane_that_says_what_cannot_be_is_read_no_further_and_others_are(wrong: Any) -> None:
    owning = Owning()
    for hand in owning.hands:
        hand.grant(4, 4)
        hand.do((0,), 0, 1.0)
        hand.do((0,), 0, 1.0)
    assert owning.at_once() == 2 * WRITERS
    for hand in owning.hands:
        hand.do((0,), 0, 1.0)
    wrong(owning.hands[0])
    assert owning.at_once() < 0
    assert [hand.grant_log.wrong for hand in owning.hands] == [True, False, False]
    assert [hand.grant_log.stepped for hand in owning.hands[1:]] == [3, 3]
    assert owning.table.granted == sum(hand.grant_log.held for hand in owning.hands)
    owning.hands[1].do((0,), 0, 1.0)
    assert owning.at_once() == 1


def test_a_writer_whose_lane_is_wrong_is_closed_and_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ReplayBuffer(1000, {"x": np.int64}, seed=0) as buffer:
        good, bad = (buffer.writer_handle().open() for _ in range(2))
        good.append(x=1)
        bad.append(x=2)
        assert len(buffer) == 2
        with caplog.at_level(logging.ERROR, "async_loader"):
            publish_ring.publish(bad._ring.address, 1 << 40)
            assert len(buffer) == 2
            with pytest.raises(Closed):
                bad.flush()
        assert "has published what no writer publishes" in caplog.text
        good.append(x=3)
        good.flush()
        assert len(buffer) == 3
        bad.close()
        good.close()
        with debug_state(
            buffer
            # it answers a writer that closes before it has let go of everything, both under the
            # lock
        ).state.lock:
            assert debug_state(buffer).state.table.granted == 0


def kept(capacity: int) -> tuple[Table, Fifo, list[Hand]]:
    """Return a table that keeps its items, what draws from it, and two writers."""
    storage = Storage.create(StorageLayout.of(Schema.of({"x": np.int64}), capacity))
    table = Table(storage, [sampler := Fifo()], Fifo(), np.random.SeedSequence(0), 1, True)
    sampler.bind(table.items, np.random.SeedSequence(1))
    return table, sampler, [Hand(table, number) for number in range(2)]


def fill(hand: Hand, count: int) -> None:
    for _ in range(count):
        hand.rows.popleft()
        hand.record(int(hand.streams[0]), 0)
    hand.publish()


def test_rows_of_a_queue_become_items_in_the_order_of_their_ids() -> None:
    table, sampler, (slow, fast) = kept(4)
    logs = np.array([fast.grant_log.address, slow.grant_log.address])
    slow.grant(1, 1)
    fast.grant(3, 3)
    fill(fast, 3)
    assert table.commit(logs) == 0
    assert not table.news(logs)  # else the thread that serves writers would look all the time
    fill(slow, 1)
    assert table.news(logs)
    assert table.commit(logs) == 4
    for room in (1, 2, 3, 4):
        table.draw(sampler, 1)
        assert table.room() == room


def test_rows_that_a_dead_writer_of_a_queue_leaves_take_no_room() -> None:
    table, sampler, (dead, other) = kept(4)
    logs = np.array([other.grant_log.address, dead.grant_log.address])
    for round_ in range(3):
        other.grant(1, 1)
        dead.grant(1, 1)
        other.grant(3, 2)
        fill(other, 3)
        assert table.commit(logs) == 1
        table.abandon(dead.grant_log.address)
        dead.rows.clear()
        assert table.commit(logs) == 2
        assert len(table) == 3
        assert table.room() == 1, round_
        other.grant(1, 1)
        fill(other, 1)
        table.commit(logs)
        assert table.room() == 0
        assert len(table.draw(sampler, 4).ids) == 4
        assert table.room() == table.window == 4
