"""Batches in messages: they come back as they were, whatever is wrong is said, and nothing else
is looked at.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_rig import PIXELS, raw, reheaded, schemas, steps

from async_loader import Schema
from async_loader.errors import Malformed, SchemaError
from async_loader.feeder import wire

FORM = wire.BatchForm.of(PIXELS, 3)


def same(one, other):
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


def together(form, batches):
    """One message of several batches."""
    frames = [form.batch(columns).frames[0] for columns in batches]
    return wire.Batch(sum(len(columns[0]) for columns in batches), [np.concatenate(frames)])


def read(form, body):
    decoded = wire.decode(raw(wire.Message(body))).body
    return [
        [column[:rows] for column in form.layout.views(block.copy())]
        for block, rows, _ in form.blocks(decoded)
    ]


@settings(deadline=None)
@given(schemas(), st.integers(1, 5), st.integers(1, 4), st.integers(0, 9))
def test_batches_come_back_as_they_were(schema, rows, count, seed):
    form = wire.BatchForm.of(schema, rows)
    batches = [steps(schema, rows, seed + i).columns for i in range(count)]
    after = read(form, together(form, batches))
    assert len(after) == count
    for columns, before in zip(after, batches, strict=True):
        assert all(map(same, columns, before))
        assert all(column.flags.aligned and column.flags.c_contiguous for column in columns)


@pytest.mark.parametrize("rows", [0, 4, 7])
def test_rows_that_the_blocks_do_not_hold_are_refused(rows):
    frames = reheaded(raw(wire.Message(FORM.batch(steps(PIXELS, 3).columns))), rows=rows)
    with pytest.raises(Malformed, match=r"BATCH holds no row|rows in batches of 3"):
        FORM.blocks(wire.decode(frames).body)


@pytest.mark.parametrize("cuts", [[], [1], [0, 3], [1.5, 1.5], [3, 1]])
def test_frames_that_end_within_a_block_or_hold_another_number_are_refused(cuts):
    frames = [bytes(int(blocks * FORM.nbytes)) for blocks in cuts]
    with pytest.raises(
        Malformed, match=f"9 rows in batches of 3 came in frames of .* a batch takes {FORM.nbytes}"
    ):
        FORM.blocks(wire.Batch(9, frames))


@pytest.mark.parametrize("which", [0, 1])
def test_bools_are_0_or_1_in_every_batch(which):
    form = wire.BatchForm.of(Schema.of({"x": "i8", "hit": "?"}), 3)
    body = together(form, [[np.arange(3), np.ones(3, bool)], [np.arange(3), np.zeros(3, bool)]])
    assert len(form.blocks(body)) == 2
    hit = form.layout.regions[1].offset
    body.frames[0][which * form.nbytes + hit + 2] = 2
    with pytest.raises(Malformed, match="field 'hit' holds bytes that are neither 0 nor 1"):
        form.blocks(body)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda c: c[:2],
        lambda c: [*c[:2], c[2].astype("f8")],
        lambda c: [one[:0] for one in c],
        lambda c: [*c[:2], c[2][:2]],
    ],
    ids=["missing", "dtype", "empty", "short"],
)
def test_columns_that_do_not_fit_are_not_sent(wrong):
    with pytest.raises(SchemaError):
        FORM.batch(wrong(steps(PIXELS, 3).columns))
