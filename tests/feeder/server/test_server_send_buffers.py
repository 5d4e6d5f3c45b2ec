"""What batches over a socket are sent from: many in a message, and memory that is used again
only when it may be.
"""

from __future__ import annotations

import numpy as np
import pytest
from server_rig import SCHEMA, Rig

from async_loader import ReplayBuffer, Schema
from async_loader.feeder.server.reader_state import OWN_FRAME_FROM, SendBuffer
from async_loader.feeder.wire import BatchForm, Plane
from async_loader.replay.rate_limiter import Queue
from async_loader.replay.samplers import Fifo

MOST = 64 << 20
WIDE = Schema.of({"x": np.int64, "pixels": ((OWN_FRAME_FROM,), np.uint8)})


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


class Route:
    """A connection that sends when it is told to."""

    def __init__(self):
        self.mark = self.sent = 0

    def has_sent(self, mark):
        return self.sent >= mark


def test_small_batches_share_a_frame_and_large_ones_have_their_own():
    small, large = BatchForm.of(SCHEMA, 4), BatchForm.of(WIDE, 1)
    assert SendBuffer(small, 1, 64, MOST).most == 1
    assert SendBuffer(small, 1 << 20, 64, MOST).most == 64, "more are never on their way"
    assert SendBuffer(small, 64, 64, 3 * small.nbytes + 1).most == 3
    assert SendBuffer(large, 64, 64, large.nbytes).most == 1
    for form, frames in ((small, 1), (large, 3)):
        send_buffer = SendBuffer(form, 64, 64, MOST)
        for _ in range(3):
            send_buffer.take()
        found = send_buffer.frames()
        assert len(found) == frames
        assert sum(map(len, found)) == 3 * form.nbytes


@pytest.mark.parametrize("schema", [SCHEMA, WIDE])
def test_a_block_is_filled_again_only_when_the_socket_has_sent_it(schema):
    send_buffer, route = SendBuffer(BatchForm.of(schema, 1), 2, 4, MOST), Route()
    sent = []
    for number in range(3):
        sent.append(send_buffer.take())
        route.mark = number + 1
        send_buffer.sent(route)
    assert len({id(slot) for slot in sent}) == 3
    route.sent = 1
    assert send_buffer.take() is sent[0]
    send_buffer.clear()
    assert send_buffer.take() is sent[0], "it was not sent"
    send_buffer.sent(route)
    assert send_buffer.take() not in sent


@pytest.mark.parametrize("schema", [SCHEMA, WIDE])
def test_what_could_not_be_drawn_leaves_its_place_to_the_next(schema):
    send_buffer = SendBuffer(BatchForm.of(schema, 1), 2, 4, MOST)
    slot = send_buffer.take()
    send_buffer.put_back(slot)
    assert send_buffer.take() is slot


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


def test_a_short_batch_is_the_last_of_its_message_and_flags_say_what_it_holds():
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
        message = peer.receive(Plane.PULL)
        assert (message.sequence, message.body.rows, message.flags) == (0, 14, 2)
        assert peer.values(message, reader) == list(range(14))
        assert peer.redelivered(message, reader) == [True] * 4 + [False] * 10


@pytest.mark.parametrize("together", [1, 2, 8])
def test_large_batches_are_what_was_drawn(together):
    with Rig({"t": queue(WIDE)}) as rig:
        peer = rig.peer()
        fill_one_by_one(peer, 6)
        reader = peer.open_reader(batch_size=1, together=together)
        found = []
        for granted in (3, 6):
            peer.pull(granted)
            while len(found) < granted:
                message = peer.receive(Plane.PULL)
                assert len(message.body.frames) <= together
                found += peer.values(message, reader)
        assert found == list(range(6))


def test_a_leased_batch_keeps_no_place():
    with Rig({"t": queue(WIDE)}) as rig:
        peer = rig.peer()
        fill_one_by_one(peer, 1)
        peer.open_reader(batch_size=1)
        peer.pull(1)
        peer.receive(Plane.PULL)
        (reader,) = rig.server_state.tables["t"].scheduler.readers
        assert [one.batch_slot for one in reader.leases.values()] == [None]
