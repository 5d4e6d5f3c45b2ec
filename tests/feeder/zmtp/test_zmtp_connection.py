"""Bytes in, messages out: whatever the cuts, and whatever the bytes."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from zmtp_rig import (
    COMMAND,
    LONG,
    MORE,
    Splitter,
    fed,
    frame,
    framed,
    greeting,
    opening,
    ping,
    ready,
)

from async_loader.feeder.zmtp import Connection, Null, ProtocolError

FRAME, MESSAGE, FRAMES = 1 << 20, 2 << 20, 50
SIZES = st.one_of(
    st.integers(0, 300), st.sampled_from([255, 256, 16383, 16384, 65535, 65536, 200_000])
)
MESSAGES = st.lists(st.lists(SIZES, min_size=1, max_size=5), max_size=6)


def connection() -> Connection:
    return Connection(Null(), FRAME, MESSAGE, FRAMES)


def opened() -> Connection:
    one = connection()
    fed(one, opening())
    one.outgoing.clear()
    return one


def filled(messages: list[list[int]]) -> list[list[bytes]]:
    rng = np.random.default_rng(0)
    return [[rng.bytes(size) for size in sizes] for sizes in messages]


# -- messages --------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(MESSAGES, st.lists(st.integers(0, 1 << 30), max_size=8), st.integers(1, 30))
@example([[0], [1, 0], [200_000, 3]], [1, 2, 3], 1)
def test_messages_are_the_same_whatever_the_cuts(sizes, cuts, most):
    messages = filled(sizes)
    data = opening() + b"".join(framed(one) for one in messages)
    assert fed(connection(), data, sorted(cut % (len(data) + 1) for cut in cuts), most) == messages


def test_messages_are_the_same_when_every_byte_comes_alone():
    messages = [[b"a" * 300, b"", b"b"], [b""], [bytes(range(256)) * 80]]
    data = (
        opening()
        + framed(messages[0])
        + ping(b"context")
        + b"".join(framed(one) for one in messages[1:])
    )
    assert fed(connection(), data, range(1, len(data))) == messages


def test_frames_stay_as_they_are_when_more_is_received():
    one, scratch = opened(), bytearray(64 << 10)
    for data in (framed([b"first"]), framed([b"other"])):
        space = one.space(scratch)
        space[: len(data)] = data
        one.received(scratch, len(data), 10)
    assert [bytes(frames[0]) for frames, _ in one.messages] == [b"first", b"other"]


def test_bytes_that_wait_are_counted():
    one, scratch = opened(), bytearray(64 << 10)
    data = framed([b"12345", b"678"]) + framed([b"9"])
    one.space(scratch)[: len(data)] = data
    one.received(scratch, len(data), 10)
    assert one.held_bytes == 9 + 3 * 64, "a frame costs memory by itself"
    assert [nbytes for _, nbytes in one.messages] == [8 + 2 * 64, 1 + 64]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(MESSAGES.filter(bool))
def test_what_is_encoded_is_the_message(sizes):
    one, splitter = opened(), Splitter()
    splitter.greeting = b"-"
    messages = filled(sizes)
    for message in messages:
        parts, nbytes = one.encode(
            [np.frombuffer(x, np.uint8) if len(x) % 2 else x for x in message]
        )
        data = b"".join(parts)
        assert nbytes == len(data)
        splitter.feed(data)
    assert list(splitter.messages) == messages


def test_a_large_frame_is_sent_as_it_lies():
    block = np.zeros(1 << 16, np.uint8)
    parts, _ = opened().encode([b"head", block])
    block[:] = 7
    assert b"".join(parts).endswith(b"\7" * len(block))


# -- the handshake ---------------------------------------------------------------------------------


def test_the_greeting_is_that_of_zmtp_3_1():
    one = connection()
    assert one.outgoing == [greeting()]
    assert not one.ready
    fed(one, greeting())
    assert not one.ready
    assert one.outgoing[1].startswith(b"\4")
    assert b"\x0bSocket-Type\0\0\0\6ROUTER" in one.outgoing[1]
    fed(one, ready())
    assert one.ready
    assert one.user is None


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_peers_of_zmtp_3_are_taken(minor):
    assert fed(connection(), opening(minor=minor) + framed([b"x"])) == [[b"x"]]


@pytest.mark.parametrize(
    "data",
    [
        b"\1\0",  # ZMTP 1.0
        greeting(major=1),
        greeting(major=2),
        greeting(b"CURVE"),
        greeting(b"PLAIN"),
        greeting(b""),
        b"GET / HTTP/1.1\r\n",
        b"\xff" + bytes(63),
        greeting() + framed([b"too early"]),
        greeting() + frame(b"\5HELLO", COMMAND),
        greeting() + frame(b"\5ERROR\x03400", COMMAND),
        greeting() + frame(b"", COMMAND),
        greeting() + frame(b"\0", COMMAND),
        greeting() + frame(b"\xff", COMMAND),
        greeting() + ready(b"PUB"),
        greeting() + ready(b""),
        greeting() + frame(b"\5READY", COMMAND),
        greeting() + frame(b"\5READY\x0bSocket-Type\0\0\0\7DEALER", COMMAND),
        greeting() + frame(b"\5READY\0\0\0\0\0", COMMAND),
        greeting() + bytes([COMMAND | LONG]) + struct.pack(">Q", 1 << 20),
        opening() + b"\x08\0",
        opening() + frame(b"x", MORE | COMMAND),
        opening() + frame(b"\4PING", COMMAND),
        opening() + frame(b"\4PING\0", COMMAND),
        opening() + frame(b"\5ERROR\x03400", COMMAND),
        opening() + framed([b""] * (FRAMES + 1)),
        opening() + bytes([LONG]) + struct.pack(">Q", FRAME + 1),
        opening() + bytes([LONG]) + b"\xff" * 8,
        opening() + framed([bytes(FRAME)] * 3),
    ],
)
def test_what_breaks_the_rules_is_refused(data):
    with pytest.raises(ProtocolError):
        fed(connection(), data)


def test_an_identity_that_the_peer_chose_is_passed_over():
    assert fed(connection(), opening(identity=b"\0\1\2\3\4") + framed([b"x"])) == [[b"x"]]


def test_a_frame_that_is_too_large_is_refused_before_it_is_allocated():
    one = opened()
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="announced"):
            fed(one, bytes([LONG]) + struct.pack(">Q", FRAME + 1))
        assert tracemalloc.get_traced_memory()[1] < FRAME // 2
    finally:
        tracemalloc.stop()


def test_frames_of_a_message_are_too_large_together():
    one = opened()
    fed(one, b"".join(frame(bytes(FRAME), MORE) for _ in range(2)))
    with pytest.raises(ProtocolError, match="announced"):
        fed(one, frame(b"x" * 20_000, MORE)[:100])


# -- heartbeats ------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [b"", b"x", b"0123456789abcdef"])
def test_a_ping_is_answered_with_its_context_also_within_a_message(context):
    one = opened()
    assert fed(one, frame(b"a", MORE) + ping(context, ttl=25) + frame(b"b")) == [[b"a", b"b"]]
    assert one.outgoing == [frame(b"\4PONG" + context, COMMAND)]


def test_commands_that_are_not_known_are_passed_over():
    data = frame(b"\x09SUBSCRIBEx", COMMAND) + frame(b"\4PONGx", COMMAND) + framed([b"x"])
    assert fed(opened(), data) == [[b"x"]]


# -- hostile bytes ---------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.binary(max_size=300), st.booleans(), st.lists(st.integers(0, 1 << 20), max_size=4))
def test_random_bytes_raise_a_protocol_error_or_nothing(data, open_first, cuts):
    one = opened() if open_first else connection()
    with contextlib.suppress(ProtocolError):
        fed(one, data, sorted(cut % (len(data) + 1) for cut in cuts))


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=4))
def test_damaged_bytes_raise_a_protocol_error_or_nothing(damage):
    data = bytearray(
        opening(identity=b"id") + framed([b"a" * 300, b"b"]) + ping(b"context", 10) + framed([b"c"])
    )
    for at, change in damage:
        data[at % len(data)] ^= change
    one = connection()
    with contextlib.suppress(ProtocolError):
        fed(one, bytes(data))
