"""Batches in messages: they come back as they were, whatever is wrong is said, and nothing else
is looked at.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_rig import PIXELS, raw, schemas, steps

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
