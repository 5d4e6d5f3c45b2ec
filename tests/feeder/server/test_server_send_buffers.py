"""What batches over a socket are sent from: many in a message, and memory that is used again
only when it may be.
"""

from __future__ import annotations

import numpy as np
import pytest
from server_rig import NO_SLOTS, SCHEMA, Rig

from async_loader import ReplayBuffer, Schema
from async_loader.feeder.server.send_buffers import (
    COPIED_TOGETHER,
    LENT_FROM,
    LENT_TOGETHER,
    CopiedSendBuffer,
    ZeroCopySendBuffer,
    send_buffer_for,
)
from async_loader.feeder.wire import BatchForm, Plane, Pull
from async_loader.replay.rate_limiter import Queue
from async_loader.replay.samplers import Fifo

MOST = 64 << 20
WIDE = Schema.of({"x": np.int64, "pixels": ((LENT_FROM,), np.uint8)})


def queue(schema=SCHEMA):
    return ReplayBuffer(1000, schema, sampler=Fifo(), limiter=Queue(1000), max_times_sampled=1)


def fill(peer, values):
    peer.open_writer()
    peer.insert(0, values)
    peer.receive(Plane.INSERT)


def fill_one_by_one(peer, count):
    """Rows of WIDE, a message each."""
    peer.open_writer(schema=WIDE)
    for i in range(count):
        peer.insert(i, [i], schema=WIDE)
        peer.receive(Plane.INSERT)


def test_small_batches_share_a_block_and_large_ones_are_lent():
    small, large = BatchForm.of(SCHEMA, 4), BatchForm.of(WIDE, 1)
    assert isinstance(send_buffer_for(small, 64, 64, MOST), CopiedSendBuffer)
    assert isinstance(send_buffer_for(large, 64, 64, MOST), ZeroCopySendBuffer)
    assert send_buffer_for(small, 1, 64, MOST).most == 1
    assert send_buffer_for(small, 1 << 20, 64, MOST).most == 64, "more are never on their way"
    assert send_buffer_for(small, 64, 64, MOST).most == 64
    assert send_buffer_for(small, 64, 64, 3 * small.nbytes + 1).most == 3
    assert send_buffer_for(large, 64, 64, MOST).most == LENT_TOGETHER // large.nbytes
    assert send_buffer_for(large, 64, 64, large.nbytes).most == 1
    assert send_buffer_for(
        BatchForm.of(SCHEMA, LENT_FROM // 32), 64, 64, MOST
    ).most == COPIED_TOGETHER // (LENT_FROM // 32 * 9)


def test_a_copied_frame_does_not_change_when_its_block_is_filled_again():
    send_buffer = send_buffer_for(BatchForm.of(SCHEMA, 4), 2, 4, MOST)
    batch_slots = [send_buffer.take(), send_buffer.take()]
    for i, batch_slot in enumerate(batch_slots):
        batch_slot.arrays[0][:] = i + 1
    (frame,) = send_buffer.frames(batch_slots)
    send_buffer.sent(0, batch_slots)
    send_buffer.clear()
    assert send_buffer.take() is batch_slots[0]
    batch_slots[0].arrays[0][:] = 9
    assert np.frombuffer(frame, np.int64)[:4].tolist() == [1, 1, 1, 1]


def test_a_lent_frame_is_filled_again_only_when_it_was_received():
    send_buffer = send_buffer_for(BatchForm.of(WIDE, 1), 64, 4, MOST)
    sent = []
    for number in range(3):
        batch_slot = send_buffer.take()
        send_buffer.sent(number, [batch_slot])
        sent.append(batch_slot)
    assert len({batch_slot.slot for batch_slot in sent}) == 3
    send_buffer.received(1)
    assert send_buffer.take() is sent[0]
    assert send_buffer.take() not in sent
    send_buffer.received(1)
    send_buffer.received(0)
    assert send_buffer.take() not in sent


def test_a_lent_frame_that_was_not_sent_is_filled_again():
    send_buffer = send_buffer_for(BatchForm.of(WIDE, 1), 64, 4, MOST)
    batch_slot = send_buffer.take()
    send_buffer.clear()
    assert send_buffer.take() is batch_slot


@pytest.mark.parametrize("schema", [SCHEMA, WIDE])
def test_what_could_not_be_drawn_leaves_its_place_to_the_next(schema):
    send_buffer = send_buffer_for(BatchForm.of(schema, 1), 2, 4, MOST)
    for number in range(5):
        send_buffer.put_back(send_buffer.take())
        batch_slots = [send_buffer.take() for _ in range(send_buffer.most)]
        send_buffer.sent(number * send_buffer.most, batch_slots)
        send_buffer.clear()
        assert send_buffer.take() not in (batch_slots if schema is WIDE else ())
        send_buffer.clear()


def test_frames_of_a_reader_that_never_says_what_it_received_are_forgotten_not_kept_for_ever():
    send_buffer = send_buffer_for(BatchForm.of(WIDE, 1), 64, 4, MOST)
    for number in range(50):
        batch_slot = send_buffer.take()
        send_buffer.frames([batch_slot])
        send_buffer.sent(number, [batch_slot])
    assert len(send_buffer._frames) == 4
    send_buffer.received(50)
    assert send_buffer.frames([send_buffer.take()]) is not None


def test_batches_that_may_go_together_do_and_are_counted_one_by_one():
    with Rig({"t": queue()}) as rig:
        peer = rig.peer()
        fill(peer, range(40))
        reader = peer.open_reader(together=4)
        peer.pull(10)
        messages = [peer.receive(Plane.PULL) for _ in range(3)]
        assert [(one.sequence, one.body.rows) for one in messages] == [(0, 16), (4, 16), (8, 8)]
        assert [x for one in messages for x in peer.values(one, reader)] == list(range(40))


def test_a_reader_that_has_not_said_so_gets_one_batch_in_a_message():
    with Rig({"t": queue()}) as rig:
        peer = rig.peer()
        fill(peer, range(8))
        reader = peer.open_reader()
        peer.pull(2)
        assert [peer.values(peer.receive(Plane.PULL), reader) for _ in range(2)] == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
        ]


def test_batches_that_were_sent_before_and_short_ones_go_alone():
    with Rig({"t": queue()}) as rig:
        peer, other = rig.peer(), rig.peer(client=b"o" * 16)
        fill(peer, range(14))
        other.open_reader()
        other.pull(1)
        other.receive(Plane.PULL)
        other.close_reader(arrived=1, seen=[0])
        reader = peer.open_reader(together=8)
        rig.server_state.begin_to_drain()
        peer.pull(8)
        messages = [peer.receive(Plane.PULL) for _ in range(3)]
        assert [(one.sequence, one.body.rows, one.flags) for one in messages] == [
            (0, 4, 2),
            (1, 8, 0),
            (3, 2, 0),
        ]
        assert [x for one in messages for x in peer.values(one, reader)] == list(range(14))


@pytest.mark.parametrize("together", [1, 2, 8])
@pytest.mark.parametrize("received", [0, 3])
def test_large_batches_are_what_was_drawn_whatever_a_reader_says_it_received(received, together):
    with Rig({"t": queue(WIDE)}) as rig:
        peer = rig.peer()
        fill_one_by_one(peer, 6)
        reader = peer.open_reader(batch_size=1, together=together)

        def values(count):
            found = []
            while len(found) < count:
                message = peer.receive(Plane.PULL)
                assert len(message.body.frames) <= together
                found += peer.values(message, reader)
            return found

        peer.pull(3)
        first = values(3)
        peer.pull(6, received=received)
        assert first + values(3) == list(range(6))


def test_what_a_pull_of_an_earlier_opening_has_received_frees_nothing_of_this_one():
    with Rig({"t": queue(WIDE)}) as rig:
        peer = rig.peer()
        fill_one_by_one(peer, 6)
        before = peer.sequence
        reader = peer.open_reader(batch_size=1)
        peer.pull(3)
        rig.turn()
        peer.send(Plane.PULL, Pull(6, 400, NO_SLOTS), 1, before)
        assert [peer.values(peer.receive(Plane.PULL), reader) for _ in range(6)] == [
            [i] for i in range(6)
        ]


def test_a_leased_batch_keeps_no_place():
    with Rig({"t": queue(WIDE)}) as rig:
        peer = rig.peer()
        fill_one_by_one(peer, 1)
        peer.open_reader(batch_size=1)
        peer.pull(1)
        peer.receive(Plane.PULL)
        (reader,) = rig.server_state.tables["t"].scheduler.readers
        assert [one.batch_slot for one in reader.leases.values()] == [None]
