"""Rows and other arrays: views of received frames, checked before they are made."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_rig import PIXELS, SMALL, raw, schemas, steps, three_steps

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


def test_every_truncation_of_rows_is_refused():
    frames = sent(IMAGES, steps(PIXELS, 3))
    for at in (1, 2):
        for size in [*range(0, len(frames[at]), 7), len(frames[at]) + 1]:
            cut = list(frames)
            cut[at] = (frames[at] + b"\0")[:size]
            message = wire.decode(cut)
            with pytest.raises(Malformed, match=f"frame {at - 1} of 3 rows holds {size} bytes"):
                wire.read_insert(message.body, IMAGES)


def test_frames_that_are_too_many_or_too_few_are_refused():
    frames = sent(IMAGES, steps(PIXELS, 3))
    for wrong in (frames[:2], [*frames, b""]):
        with pytest.raises(Malformed, match="their schema takes 2"):
            wire.read_insert(wire.decode(wrong).body, IMAGES)


def test_a_message_beyond_the_limits_is_refused():
    frames = sent(IMAGES, steps(PIXELS, 3))
    with pytest.raises(Malformed, match="body of 3144 bytes, 3143 are allowed") as caught:
        wire.decode(frames, wire.Limits(message_bytes=3143))
    assert (caught.value.code, caught.value.session, caught.value.sequence) == (
        wire.ErrorCode.TOO_LARGE,
        1,
        2,
    )
    assert wire.decode(frames, wire.Limits(message_bytes=3144)).body.rows == 3


# -- short messages --------------------------------------------------------------------------------


def test_numbers_of_short_messages_are_bounded():
    pull = wire.Pull(2**64 - 1, ())
    assert wire.decode(raw(wire.Message(pull))).body == pull
    for wrong in (wire.Pull(-1, ()), wire.Pull(1, (), np.nan), wire.Return((2**65,))):
        with pytest.raises(Malformed):
            raw(wire.Message(wrong))
    with pytest.raises(ValueError, match="2 of 1 leases"):
        wire.CloseReader(0, 2, (1,))
    with pytest.raises(ValueError, match="INSERT of 60 rows names a slot of 59"):
        wire.SlotInsert(60, 3, 59)
