"""Memory that a learner offers to a server: taken if it cannot be cut short, refused in words if
it is anything else.
"""

import contextlib
import os
import resource
import select
import socket
import threading

import numpy as np
import pytest

from async_loader.errors import Broken, Malformed, Timeout, Unsupported
from async_loader.feeder.shared import Listener, Offer, SharedBatchRing
from async_loader.feeder.shared.offer import request
from async_loader.schema import Schema
from async_loader.shm.segment import Segment

SCHEMA = Schema.of({"x": ((3,), np.float32), "index": np.int64})
OFFER = Offer(session=7, number=1, slots=3, slot_bytes=4096)


def no_weights(wanted):
    raise Malformed(f"there are no weights {wanted.name!r}")


@pytest.fixture
def segment():
    segment = Segment.create(OFFER.nbytes, "a test")
    yield segment
    segment.close()


@contextlib.contextmanager
def listening(path, take):
    """A listener in a loop of its own, as a server polls it."""
    with (
        contextlib.closing(Listener(str(path), take, no_weights)) as listener,
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


def offer_to(path, offer, fd, timeout_s):
    """Offer memory, and wait for the answer."""
    request(path, offer.pack(), [fd], timeout_s)


def test_an_error_of_this_package_is_told_and_ends_no_loop(tmp_path, segment, caplog):
    segment.seal()
    with listening(tmp_path / "m", lambda offer, fd: os.close(fd) or 1 / 0):
        for _ in range(2):
            with pytest.raises(Malformed, match="ZeroDivisionError"):
                offer_to(str(tmp_path / "m"), OFFER, segment.fileno(), 20.0)
    assert "an offer of memory could not be answered" in caplog.text
    caplog.clear()
    caplog.get_records("call").clear()


def test_memory_that_is_offered_is_the_same_memory(tmp_path, segment):
    taken = []
    segment.seal()
    with listening(
        tmp_path / "m", lambda offer, fd: taken.append((offer, Segment.attach(fd, offer.nbytes)))
    ):
        offer_to(str(tmp_path / "m"), OFFER, segment.fileno(), 20.0)
    ((offer, theirs),) = taken
    assert offer == OFFER
    theirs.bytes()[5] = 42
    assert segment.bytes()[5] == 42
    theirs.close()


def test_memory_that_could_be_cut_short_is_refused(tmp_path, segment):
    with listening(tmp_path / "m", pytest.fail), pytest.raises(Malformed, match="not sealed"):
        offer_to(str(tmp_path / "m"), OFFER, segment.fileno(), 20.0)


def test_memory_of_another_size_is_refused(tmp_path, segment):
    segment.seal()
    wrong = Offer(7, 1, 2, 4096)
    with (
        listening(tmp_path / "m", pytest.fail),
        pytest.raises(Malformed, match="12288 bytes, 8192 were announced"),
    ):
        offer_to(str(tmp_path / "m"), wrong, segment.fileno(), 20.0)


def test_a_file_is_no_memory(tmp_path):
    (tmp_path / "file").write_bytes(bytes(OFFER.nbytes))
    with open(tmp_path / "file", "rb") as file, listening(tmp_path / "m", pytest.fail):
        with pytest.raises(Malformed, match="sealed"):
            offer_to(str(tmp_path / "m"), OFFER, file.fileno(), 20.0)


def test_what_the_server_says_is_the_reason(tmp_path, segment):
    def take(offer, fd):
        os.close(fd)
        raise Malformed("there is no reader 1")

    segment.seal()
    with listening(tmp_path / "m", take), pytest.raises(Malformed, match="there is no reader 1"):
        offer_to(str(tmp_path / "m"), OFFER, segment.fileno(), 20.0)


def test_sealed_memory_cannot_be_cut_short(segment):
    segment.seal()
    with pytest.raises(PermissionError):
        os.ftruncate(segment.fileno(), 1)


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


def test_without_descriptors_callers_keep_no_loop_busy_and_later_ones_are_heard(tmp_path, segment):
    path = str(tmp_path / "m")
    segment.seal()
    with (
        contextlib.closing(Listener(path, lambda _, fd: os.close(fd), no_weights)) as listener,
        contextlib.ExitStack() as stack,
    ):
        callers = [
            stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            for _ in range(5)
        ]
        assert rounds(listener) == 0
        with no_descriptor_left():
            for one in callers:
                one.connect(path)
            assert rounds(listener) == 5
        assert rounds(listener) == 0
        assert [one.recv(100) for one in callers] == [b""] * 5, (
            "each hears at once that there is no room"
        )
        with listening_to(listener):
            offer_to(path, OFFER, segment.fileno(), 20.0)


def test_an_address_without_a_listener_is_named(tmp_path, segment):
    with pytest.raises(Unsupported, match="cannot be reached"):
        offer_to(str(tmp_path / "absent"), OFFER, segment.fileno(), 1.0)


def test_a_server_that_was_killed_is_gone_and_may_come_back(tmp_path, segment):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as killed:
        killed.bind(str(tmp_path / "killed"))
        killed.listen()
    with pytest.raises(Broken, match="is gone"):
        offer_to(str(tmp_path / "killed"), OFFER, segment.fileno(), 1.0)


def test_a_server_that_says_nothing_ends_in_a_timeout(tmp_path, segment):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        deaf.listen()
        with pytest.raises(Timeout, match="not answered at its memory socket"):
            offer_to(str(tmp_path / "deaf"), OFFER, segment.fileno(), 0.01)


def test_a_server_that_goes_away_is_broken(tmp_path, segment):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dying:
        dying.bind(str(tmp_path / "dying"))
        dying.listen()
        thread = threading.Thread(target=lambda: dying.accept()[0].close())
        thread.start()
        with pytest.raises(Broken, match="went away"):
            offer_to(str(tmp_path / "dying"), OFFER, segment.fileno(), 20.0)
        thread.join()


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"ALM1",
        OFFER.pack()[:-1],
        OFFER.pack() + b"\0",
        b"XXXX" + OFFER.pack()[4:],
        bytes(len(OFFER.pack())),
    ],
)
def test_records_that_are_no_offers_are_refused(record):
    with pytest.raises(Malformed):
        Offer.unpack(record)


@pytest.mark.parametrize(
    "offer",
    [Offer(1, 1, 0, 4096), Offer(1, 1, 5000, 4096), Offer(1, 1, 1, 0), Offer(1, 1, 1, 1000)],
)
def test_offers_out_of_bounds_are_refused(offer):
    with pytest.raises(Malformed, match="whole pages are taken"):
        Offer.unpack(offer.pack())


def test_an_offer_without_a_descriptor_or_with_two_is_refused_and_none_is_kept(tmp_path, segment):
    segment.seal()
    with listening(tmp_path / "m", pytest.fail):
        for fds in ([], [segment.fileno()] * 2):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
                channel.settimeout(20)
                channel.connect(str(tmp_path / "m"))
                socket.send_fds(channel, [OFFER.pack()], fds)
                assert b"descriptors" in channel.recv(512)


def test_an_offer_waits_its_time_for_room_among_the_callers(tmp_path, segment):
    segment.seal()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
        contextlib.ExitStack() as stack,
    ):
        server.bind(str(tmp_path / "m"))
        server.listen(0)
        first = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        first.connect(str(tmp_path / "m"))
        with pytest.raises(Broken, match="is busy"):
            offer_to(str(tmp_path / "m"), OFFER, segment.fileno(), 0.01)

        def serve():
            for _ in range(2):
                caller = stack.enter_context(server.accept()[0])
            caller.recv(512)
            caller.send(b"\0")

        serving = threading.Timer(0.2, serve)  # later than the offer, as a rule
        serving.start()
        offer_to(str(tmp_path / "m"), OFFER, segment.fileno(), 60.0)
        serving.join()


def test_silent_connections_do_not_keep_others_out(tmp_path, segment):
    segment.seal()
    taken = []
    with (
        listening(tmp_path / "m", lambda offer, fd: taken.append(fd)),
        contextlib.ExitStack() as stack,
    ):
        for _ in range(100):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            silent.connect(str(tmp_path / "m"))
        offer_to(str(tmp_path / "m"), OFFER, segment.fileno(), 20.0)
    assert len(taken) == 1
    os.close(taken[0])


def test_a_shelf_hands_out_what_was_given_back_and_nothing_else(segment):
    batch_ring = SharedBatchRing(
        Segment.attach(os.dup(segment.fileno()), OFFER.nbytes), OFFER, SCHEMA, 4
    )
    assert not batch_ring.free
    batch_ring.give_back([2, 0])
    batch_slot = batch_ring.take()
    assert (batch_slot.slot, batch_slot.generation) == (2, 1)
    x, index = batch_slot.arrays
    x[:], index[:] = 1.5, 9
    assert x.shape == (4, 3)
    del x, index, batch_slot
    with pytest.raises(Malformed, match="slot 0 was given back and is not lent"):
        batch_ring.give_back([0])
    with pytest.raises(Malformed, match="slot 3"):
        batch_ring.give_back([3])
    batch_ring.give_back([2])
    assert [
        (batch_slot.slot, batch_slot.generation)
        for batch_slot in (batch_ring.take(), batch_ring.take())
    ] == [(2, 2), (0, 1)]  # the one that came back last first
    assert not batch_ring.free
    batch_ring.close()


def test_slots_that_are_too_small_are_refused(segment):
    with pytest.raises(Malformed, match="a slot has 4096"):
        SharedBatchRing(segment, OFFER, SCHEMA, 1000)
