"""Records and descriptors between a loader and a worker."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from async_loader.shm.fd_channel import FdChannel
from async_loader.shm.segment import Segment


@pytest.fixture
def ends():
    pair = FdChannel.pair()
    yield pair
    for end in pair:
        end.close()


def send_in_thread(channel, *args):
    thread = threading.Thread(target=channel.send, args=args)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "nbytes", [0, 1, 1000, 40_000, 48 << 10, (48 << 10) + 1, 64 << 10, 200_000, 5_000_000]
)
def test_payloads_of_any_size_arrive_whole(ends, nbytes):
    one, two = ends
    payload = np.random.default_rng(nbytes).bytes(nbytes)
    thread = send_in_thread(one, ("kind", 3, None), payload)
    record = two.receive()
    thread.join()
    assert record.message == ("kind", 3, None)
    assert bytes(record.payload) == payload
    assert record.fds == []


def test_a_segment_is_a_payload_without_being_copied(ends):
    one, two = ends
    segment = Segment.create(100_000, "a test")
    segment.bytes()[:] = 7
    one.send(("beside",), segment)
    record = two.receive()
    assert record.payload.nbytes == 100_000
    segment.bytes()[0] = 9
    assert record.payload[0] == 9
    del segment
    assert (record.payload[1:] == 7).all()  # the mapping outlives the sender's descriptor


@pytest.mark.parametrize("nbytes", [10, 100_000])
def test_descriptors_travel_beside_the_payload(ends, nbytes):
    one, two = ends
    segments = [Segment.create(4096, "a test") for _ in range(3)]
    for i, segment in enumerate(segments):
        segment.bytes()[0] = i
    one.send(("fds",), b"x" * nbytes, [s.fileno() for s in segments])
    record = two.receive()
    assert len(record.fds) == 3
    assert len(record.payload) == nbytes
    again = [Segment.attach(fd, 4096) for fd in record.fds]
    assert [s.bytes()[0] for s in again] == [0, 1, 2]
    assert all(not os.get_inheritable(s.fileno()) for s in again)


@pytest.mark.parametrize("payload", [b"", b"beside", bytes(100_000)], ids=len)
def test_a_message_larger_than_a_record_arrives_whole(ends, payload):
    one, two = ends
    message = ("layout", tuple(range(100_000)))
    thread = send_in_thread(one, message, payload)
    record = two.receive()
    thread.join()
    assert (record.message, bytes(record.payload)) == (message, payload)
