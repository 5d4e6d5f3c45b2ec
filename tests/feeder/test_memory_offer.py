"""Memory that a learner offers to a server: taken if it cannot be cut short, refused in words if
it is anything else.
"""

import contextlib
import os
import resource
import select
import socket
import threading

import msgspec
import pytest

from async_loader.errors import Broken, Malformed
from async_loader.feeder.memory_offer import Offer, read_record
from async_loader.feeder.server.shared_memory import Listener
from async_loader.shm.segment import Segment

OFFER = Offer(session=7, number=1, slots=3, slot_bytes=4096)
RECORD = msgspec.msgpack.encode(OFFER)


@pytest.fixture
def segment():
    segment = Segment.create(OFFER.nbytes, "a test")
    yield segment
    segment.close()


@contextlib.contextmanager
def listening(path, take):
    """A listener in a loop of its own, as a server polls it."""
    with (
        contextlib.closing(Listener(str(path), take)) as listener,
        listening_to(listener),
    ):
        yield listener


@contextlib.contextmanager
def listening_to(listener):
    """The loop."""
    end, over = os.pipe()

    def loop():
        while True:
            ready, _, _ = select.select([end, listener], [], [])
            if end in ready:
                return
            listener.handle()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        os.close(over)
        thread.join()
        os.close(end)


def test_memory_that_is_offered_is_the_same_memory(tmp_path, segment):
    taken = []
    segment.seal()
    with listening(
        tmp_path / "m", lambda offer, fd: taken.append((offer, Segment.attach(fd, offer.nbytes)))
    ):
        OFFER.send(str(tmp_path / "m"), segment.fileno())
    ((offer, theirs),) = taken
    assert offer == OFFER
    theirs.bytes()[5] = 42
    assert segment.bytes()[5] == 42
    theirs.close()


def test_memory_that_could_be_cut_short_is_refused(tmp_path, segment):
    with listening(tmp_path / "m", pytest.fail), pytest.raises(Malformed, match="not sealed"):
        OFFER.send(str(tmp_path / "m"), segment.fileno())


def test_memory_of_another_size_is_refused(tmp_path, segment):
    segment.seal()
    wrong = Offer(7, 1, 2, 4096)
    with (
        listening(tmp_path / "m", pytest.fail),
        pytest.raises(Malformed, match="12288 bytes, 8192 were announced"),
    ):
        wrong.send(str(tmp_path / "m"), segment.fileno())


@contextlib.contextmanager
def no_descriptor_left(but=0):
    """This process cannot open another descriptor, or only that many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + but, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def rounds(listener):
    """Serve all that is readable, and count how often there was anything."""
    for count in range(50):
        if not select.select([listener], [], [], 0)[0]:
            return count
        listener.handle()
    return 50


def test_without_descriptors_the_loop_is_told_and_later_callers_are_heard(tmp_path, segment):
    path = str(tmp_path / "m")
    segment.seal()
    with (
        contextlib.closing(Listener(path, lambda _, fd: os.close(fd))) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller,
    ):
        assert rounds(listener) == 0
        with no_descriptor_left():
            caller.connect(path)
            assert not listener.handle()
        assert rounds(listener) == 1
        with listening_to(listener):
            OFFER.send(path, segment.fileno())


def test_a_server_that_was_killed_is_gone_and_may_come_back(tmp_path, segment):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as killed:
        killed.bind(str(tmp_path / "killed"))
        killed.listen()
    with pytest.raises(Broken, match=r"does not answer: .*refused"):
        OFFER.send(str(tmp_path / "killed"), segment.fileno())


def test_a_server_that_says_nothing_ends_in_a_timeout(tmp_path, segment):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        deaf.listen()
        with pytest.raises(Broken, match="does not answer: timed out"):
            OFFER.send(str(tmp_path / "deaf"), segment.fileno())


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"ALM1",
        RECORD[:-1],
        RECORD + b"\0",
        RECORD.replace(b"offer", b"XXXXX"),
        bytes(len(RECORD)),
        msgspec.msgpack.encode(Offer(7, 1, 3, 4095)),
        msgspec.msgpack.encode(Offer(7, 1, 0, 4096)),
    ],
)
def test_records_that_are_no_offers_are_refused(record):
    with pytest.raises(Malformed):
        read_record(record)


def test_an_offer_without_a_descriptor_or_with_two_is_refused_and_none_is_kept(tmp_path, segment):
    segment.seal()
    with listening(tmp_path / "m", pytest.fail):
        for fds in ([], [segment.fileno()] * 2):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
                channel.settimeout(20)
                channel.connect(str(tmp_path / "m"))
                socket.send_fds(channel, [RECORD], fds)
                assert b"descriptors" in channel.recv(512)
