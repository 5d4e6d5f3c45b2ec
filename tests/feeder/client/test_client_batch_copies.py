"""What of a message a learner keeps: its own batch, and nothing that came with it."""

from __future__ import annotations

import numpy as np
import pytest

from async_loader import Schema
from async_loader.feeder import wire
from async_loader.feeder.client.slots import Unpacking
from async_loader.shm.slot_ring import COPY_BELOW

SMALL, LARGE = COPY_BELOW // 2, 2 * COPY_BELOW


def message(nbytes, cuts):
    """Three batches of one row; each frame holds ``together`` of them."""
    form = wire.BatchForm.of(Schema.of({"x": ((nbytes,), np.uint8)}), 1)
    whole = np.concatenate(
        [form.batch([np.full((1, nbytes), i, np.uint8)]).frames[0] for i in range(3)]
    )
    frames = np.split(whole, np.cumsum(cuts)[:-1] * form.nbytes)
    return form, [np.ascontiguousarray(frame).copy() for frame in frames]


@pytest.mark.parametrize(
    ("nbytes", "cuts", "shared"),
    [
        (LARGE, [1, 1, 1], [True] * 3),
        (LARGE, [3], [False] * 3),
        (LARGE, [1, 2], [True, False, False]),
        (SMALL, [1, 2], [False] * 3),
    ],
    ids=["large, alone", "large, together", "large, some together", "small"],
)
def test_only_a_large_batch_that_came_alone_is_used_where_it_came(nbytes, cuts, shared):
    form, frames = message(nbytes, cuts)
    unpacking = Unpacking(form)
    arrays = [unpacking.arrays(lying)[0] for lying in form.blocks(wire.Batch(3, frames))]
    assert [int(array[0, 0]) for array in arrays] == [0, 1, 2]
    assert all((array == i).all() and array.shape == (1, nbytes) for i, array in enumerate(arrays))
    assert [any(np.shares_memory(array, frame) for frame in frames) for array in arrays] == shared
