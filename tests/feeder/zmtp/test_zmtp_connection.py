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


# -- the handshake ---------------------------------------------------------------------------------


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


def test_a_frame_that_is_too_large_is_refused_before_it_is_allocated():
    one = opened()
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="announced"):
            fed(one, bytes([LONG]) + struct.pack(">Q", FRAME + 1))
        assert tracemalloc.get_traced_memory()[1] < FRAME // 2
    finally:
        tracemalloc.stop()


# -- heartbeats ------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [b"", b"x", b"0123456789abcdef"])
def test_a_ping_is_answered_with_its_context_also_within_a_message(context):
    one = opened()
    assert fed(one, frame(b"a", MORE) + ping(context, ttl=25) + frame(b"b")) == [[b"a", b"b"]]
    assert one.outgoing == [frame(b"\4PONG" + context, COMMAND)]


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
