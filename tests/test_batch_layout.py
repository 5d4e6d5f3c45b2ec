"""Positions of a batch's arrays within a block."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from async_loader import Field, Schema
from async_loader.batch_layout import BatchLayout

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]

schemas = st.lists(
    st.tuples(st.lists(st.integers(0, 4), max_size=3).map(tuple), st.sampled_from(DTYPES)),
    min_size=1,
    max_size=6,
).map(
    lambda kinds: Schema.of(
        {f"f{i}": Field(shape, dtype) for i, (shape, dtype) in enumerate(kinds)}
    )
)
rows = st.integers(1, 9)


def root_of(layout: BatchLayout) -> np.ndarray:
    """Return exactly nbytes, so that a view beyond them is impossible,
    aligned to a cache line like slots.
    """
    raw = np.zeros(layout.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + layout.nbytes]


def addresses(view: np.ndarray) -> set[int]:
    """Return the address of every byte of every item."""
    if not view.size:
        return set()
    steps = [np.arange(n) * s for n, s in zip(view.shape, view.strides, strict=True)]
    firsts = sum(np.ix_(*steps)) if steps else np.zeros(())
    start = view.__array_interface__["data"][0]
    return {int(start + first + k) for first in np.ravel(firsts) for k in range(view.itemsize)}


@given(schemas, rows)
def test_views_do_not_overlap_and_lie_within_the_block(schema, count):
    layout = BatchLayout.contiguous(schema, count)
    root = root_of(layout)
    inside = range(root.ctypes.data, root.ctypes.data + layout.nbytes)
    taken: set[int] = set()
    for field, view in zip(schema.fields, layout.views(root), strict=True):
        assert view.shape == (count, *field.shape)
        assert view.dtype == field.dtype
        mine = addresses(view)
        assert len(mine) == view.nbytes
        assert not mine & taken
        assert all(a in inside for a in mine)
        taken |= mine


@given(schemas, rows, st.data())
def test_a_window_is_its_rows_of_the_views(schema, count, data):
    layout = BatchLayout.contiguous(schema, count)
    root = root_of(layout)
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    window = layout.window(root, start, stop)
    for field, view in zip(window.fields, layout.views(root), strict=True):
        field[...] = 1
        assert field.shape == view[start:stop].shape
        assert (view[start:stop] == 1).all()
        assert not view[:start].any()
        assert not view[stop:].any()
