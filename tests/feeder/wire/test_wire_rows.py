"""Rows and other arrays: views of received frames, checked before they are made."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_rig import PIXELS, SMALL, examples, raw, reheaded, schemas, steps, three_steps

from async_loader.errors import Malformed
from async_loader.feeder import wire
from tests.insert_rows import insert

LAYOUT = wire.RowLayout.of(SMALL)
IMAGES = wire.RowLayout.of(PIXELS)


def same(left: np.ndarray, right: np.ndarray) -> bool:
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
    )


def sent(layout: wire.RowLayout, rows: wire.Steps) -> list[bytes]:
    return raw(wire.Message(insert(layout, rows), 1, 2, 3, layout.schema_id))


@settings(deadline=None)
@given(schemas(), st.integers(1, 5), st.integers(0, 7), st.integers(0, 9))
def test_rows_come_back_as_they_were(schema, rows, flags, seed):
    layout = wire.RowLayout.of(schema)
    before = steps(schema, rows, seed, flags)
    message = wire.decode(sent(layout, before))
    after = wire.read_insert(message.body, layout)
    assert message.body.rows == rows
    assert message.body.nbytes == rows * layout.row_bytes
    assert all(map(same, after.columns, before.columns))
    assert same(after.streams, before.streams)
    assert same(after.flags, before.flags)
    assert same(after.priorities, before.priorities)


@pytest.mark.parametrize("flags", [8, 16, 1 << 31, 0xFFFFFFFF])
def test_an_unknown_flag_of_rows_is_malformed(flags):
    frames = sent(LAYOUT, three_steps())
    body = bytearray(frames[1])
    body[44:48] = flags.to_bytes(4, "little")
    with pytest.raises(Malformed, match=r"a row .*flag"):
        wire.read_insert(wire.decode([frames[0], body]).body, LAYOUT)


@pytest.mark.parametrize("priority", [-1.0, np.inf, -np.inf])
def test_a_priority_is_finite_and_not_negative_or_nan(priority):
    rows = three_steps()
    rows.priorities[1] = priority
    frames = sent(LAYOUT, three_steps())
    body = bytearray(frames[1])
    body[48:56] = np.float64(priority).tobytes()
    with pytest.raises(Malformed, match="priority"):
        wire.read_insert(wire.decode([frames[0], body]).body, LAYOUT)


def test_frames_that_are_too_many_or_too_few_are_refused():
    frames = sent(IMAGES, steps(PIXELS, 3))
    for wrong in (frames[:2], [*frames, b""]):
        with pytest.raises(Malformed, match="was a frame lost, or added"):
            wire.decode(wrong)
        message = wire.decode(
            reheaded(wrong, frames=len(wrong) - 1, body_bytes=sum(map(len, wrong[1:])))
        )
        with pytest.raises(Malformed, match="their schema takes 2"):
            wire.read_insert(message.body, IMAGES)
    many = [*frames, *[b""] * 5000]
    with pytest.raises(Malformed, match="4097 are allowed"):
        wire.decode(reheaded(many, frames=len(many) - 1))


def test_a_message_beyond_the_limits_is_refused():
    frames = sent(IMAGES, steps(PIXELS, 3))
    with pytest.raises(Malformed, match="3144 body bytes, 3143 are allowed") as caught:
        wire.decode(frames, wire.Limits(message_bytes=3143))
    assert (caught.value.code, caught.value.session, caught.value.sequence) == (
        wire.ErrorCode.TOO_LARGE,
        1,
        2,
    )
    assert wire.decode(frames, wire.Limits(message_bytes=3144)).body.rows == 3


# -- the other bodies without msgpack --------------------------------------------------------------

FIXED = [
    "ACK", "GAP", "PULL", "BATCH in shared memory", "INSERT in shared memory",
    "APPLIED", "RETURN",
]  # fmt: skip


@pytest.mark.parametrize("name", [*FIXED, "PING", "DONE", "DRAIN"])
def test_bodies_of_another_length_are_refused(name):
    frames = raw(examples()[name])
    for at in range(1, len(frames)):
        for size in [*range(len(frames[at])), len(frames[at]) + 1, len(frames[at]) + 8]:
            cut = [*frames[:at], (frames[at] + bytes(8))[:size], *frames[at + 1 :]]
            with pytest.raises(Malformed):
                wire.decode(reheaded(cut, body_bytes=sum(map(len, cut[1:]))))
    for wrong in ([*frames, b""], frames[:-1]):
        if wrong:
            with pytest.raises(Malformed):
                wire.decode(
                    reheaded(wrong, frames=len(wrong) - 1, body_bytes=sum(map(len, wrong[1:])))
                )


@pytest.mark.parametrize("name", ["PULL", "RETURN", "BATCH in shared memory"])
@pytest.mark.parametrize("rows", [0, 1, 3, 2**32 - 1])
def test_counts_that_lie_are_refused(name, rows):
    with pytest.raises(Malformed):
        wire.decode(reheaded(raw(examples()[name]), rows=rows))
