"""Who gets which batch: by waiting time, within credit, again when a learner is gone."""

from __future__ import annotations

import numpy as np
from server_rig import SCHEMA, Rig

from async_loader import ReplayBuffer
from async_loader.feeder.wire import (
    REDELIVERED,
    Batch,
    End,
    Error,
    ErrorCode,
    Ping,
    Plane,
    Prioritize,
    Reader,
    TensorSpec,
)
from async_loader.replay.rate_limiter import MinSize, Queue
from async_loader.replay.samplers import Fifo, Prioritized


def queue(size: int = 100) -> dict[str, ReplayBuffer]:
    return {
        "t": ReplayBuffer(size, SCHEMA, sampler=Fifo(), limiter=Queue(size), max_times_sampled=1)
    }


def batches(peer) -> list:
    found = []
    while (message := peer.receive(Plane.PULL, wait=False)) is not None:
        found.append(message)
    return found


def test_credit_is_absolute_so_that_a_pull_may_be_lost_doubled_or_late():
    with Rig() as rig:
        peer = rig.peer()
        peer.open_writer()
        peer.insert(0, range(100))
        peer.open_reader()
        for granted, sent in ((2, 2), (2, 0), (1, 0), (5, 3), (3, 0), (6, 1)):
            peer.pull(granted)
            assert len(batches(peer)) == sent
        sequences = []
        peer.pull(8)
        sequences = [message.sequence for message in batches(peer)]
        assert sequences == [6, 7]


def test_the_longest_wait_is_served_first_and_a_large_request_is_not_passed_for_ever():
    with Rig(queue()) as rig:
        writer, one, two = rig.peer(), rig.peer(), rig.peer()
        writer.open_writer()
        large, small = one.open_reader(batch_size=10), two.open_reader(batch_size=2)
        one.pull(1)
        rig.turn()
        two.pull(9)
        for n in range(9):
            writer.insert(n, [n])
            assert batches(one) == batches(two) == []
        writer.insert(9, [9])
        (first,) = batches(one)
        assert one.values(first, large) == list(range(10))
        for n in range(10, 14):
            writer.insert(n, [n])
        assert [two.values(message, small) for message in batches(two)] == [[10, 11], [12, 13]]


def test_learners_take_turns():
    with Rig() as rig:
        peers = [rig.peer() for _ in range(3)]
        peers[0].open_writer()
        peers[0].insert(0, range(100))
        for peer in peers:
            peer.open_reader()
        for peer in peers:
            peer.pull(50)
        rig.turn()
        served = []
        for peer in peers:
            peer._turn = None
            served.append(
                sum(1 for _ in iter(lambda p=peer: p.receive(Plane.PULL, wait=False), None))
            )
        assert sorted(served) == [21, 21, 22]


def test_what_a_dead_learner_had_goes_to_another_with_a_flag_and_in_batches_of_its_size():
    with Rig(queue()) as rig:
        writer, dead, other = rig.peer(), rig.peer(), rig.peer()
        writer.open_writer()
        writer.insert(0, range(12))
        reader = dead.open_reader(batch_size=4)
        assert reader.body.leased
        dead.pull(2)
        first, _ = batches(dead)
        dead.give_back([first.sequence])
        rig.turn()
        rig.clock.now += 5
        for peer in (other, writer):
            peer.ask(Plane.CONTROL, Ping())
        rig.pass_time(6)
        assert dead.session not in [one.number for one in rig.server_state.sessions]
        reader = other.open_reader(batch_size=3)
        other.pull(3)
        came = batches(other)
        assert [other.values(message, reader) for message in came] == [
            [4, 5, 6],
            [7, 8, 9],
            [10, 11],
        ][: len(came)]
        assert [bool(message.flags & REDELIVERED) for message in came] == [True, True]
        assert [other.redelivered(message, reader) for message in came] == [
            [True] * 3,
            [True, False, False],
        ]
        writer.insert(1, [12])
        (last,) = batches(other)
        assert other.values(last, reader) == [10, 11, 12]
        assert other.redelivered(last, reader) == [False] * 3
        assert not last.flags & REDELIVERED
        other.give_back([0, 1, 2, 77])
        other.close_reader()
        assert rig.server_state.tables["t"].scheduler.finished


def test_a_reader_that_closes_in_good_order_says_what_was_used_what_was_seen_and_what_was_neither():
    with Rig(queue()) as rig:
        peer, other = rig.peer(), rig.peer()
        peer.open_writer()
        peer.insert(0, range(20))
        peer.open_reader(batch_size=2)
        peer.pull(8)
        assert len(batches(peer)) == 8
        peer.give_back([0])
        # 1 and 2 were used, 6 and 7 did not arrive
        peer.close_reader(arrived=6, seen=[3], unseen=[5, 4])
        reader = other.open_reader(batch_size=2)
        other.pull(7)
        came = [
            (other.values(one, reader), other.redelivered(one, reader)) for one in batches(other)
        ]
        new = [([n, n + 1], [False, False]) for n in (8, 10, 12, 14, 16, 18)]
        assert came == [([6, 7], [True, True]), *new]
        assert not rig.server_state.tables["t"].scheduler.readers[0].leases.keys() - set(range(7))


def test_a_reader_that_is_closed_or_opened_again_gives_its_leases_back():
    with Rig(queue()) as rig:
        peer = rig.peer()
        peer.open_writer()
        peer.insert(0, range(4))
        reader = peer.open_reader(batch_size=4)
        for again in (False, True, True):
            peer.pull(1)
            (message,) = batches(peer)
            assert (bool(message.flags & REDELIVERED), peer.values(message, reader)) == (
                again,
                [0, 1, 2, 3],
            )
            assert isinstance(peer.open_reader(batch_size=4).body, Reader)


def test_a_reader_that_waits_too_long_is_told_repeatedly_and_served_nevertheless():
    with Rig({"t": ReplayBuffer(100, SCHEMA, limiter=MinSize(10))}) as rig:
        peer = rig.peer()
        peer.open_writer()
        peer.open_reader(timeout_s=2.0)
        peer.pull(1)
        rig.turn()
        for _ in range(3):
            rig.pass_time(1.5)
            assert batches(peer) == []
            rig.pass_time(0.6)
            (message,) = batches(peer)
            assert isinstance(message.body, Error)
            assert (message.body.code, message.number, message.body.retryable) == (
                ErrorCode.TIMEOUT,
                1,
                True,
            )
            assert "10" in message.body.text
        peer.insert(0, range(10))
        assert [type(message.body) for message in batches(peer)] == [Batch]


def test_a_learner_that_does_not_read_loses_no_batch_and_is_served_on_when_it_reads():
    with Rig(queue(2000)) as rig:
        peer = rig.peer()
        peer.open_writer()
        peer.insert(0, range(1000))
        reader = peer.open_reader(batch_size=1)
        for granted in range(1, 1001):
            peer.pull(granted)
            if granted % 200 == 0:
                rig.turn()
        for _ in range(40):
            rig.turn()
        values = []
        while len(values) < 1000:
            values += [peer.values(message, reader)[0] for message in batches(peer)]
            peer.pull(1000)
            peer.give_back(range(len(values)))
            rig.turn()
        assert values == list(range(1000))


def prioritize(count):
    return Prioritize(table="t", count=count, specs=(TensorSpec("priority", 12, (count,)),))


def test_priorities_are_applied_and_those_of_rows_that_are_gone_counted():
    with Rig({"t": ReplayBuffer(10, SCHEMA, sampler=Prioritized(0.6), seed=0)}) as rig:
        peer = rig.peer()
        peer.open_writer()
        peer.insert(0, range(20))
        peer.open_reader()
        data = np.array([3, 15, 19]).tobytes() + np.array([1.0, 2.0, 0.5]).tobytes()
        answer = peer.ask(Plane.PULL, prioritize(3), 1, 77, data=data)
        assert (answer.sequence, answer.body.applied, answer.body.stale) == (77, 2, 1)
        peer.pull(1)
        (message,) = batches(peer)
        assert message.body.rows == 4


def test_a_queue_that_drains_hands_out_its_last_rows_and_waits_for_them_to_be_used():
    with Rig(queue()) as rig:
        peer = rig.peer()
        peer.open_writer()
        peer.insert(0, range(10))
        reader = peer.open_reader(batch_size=4)
        peer.pull(2)
        assert len(batches(peer)) == 2
        rig.server.stop()
        assert not rig.server._over()
        peer.pull(4)
        rig.turn()
        (last,) = batches(peer)
        assert peer.values(last, reader) == [8, 9]
        assert not rig.server._over()
        peer.give_back([0, 1, 2])
        rig.turn()
        assert rig.server._over()
        rig.server.close()
        peer._turn = None
        end = peer.receive(Plane.PULL)
        assert isinstance(end.body, End)
        assert (end.number, end.body.count) == (1, 3)
