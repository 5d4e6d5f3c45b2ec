"""Where batches are written: slots when they are large, fresh memory when they are small or
slots are short.
"""

from __future__ import annotations

import gc

import numpy as np

from async_loader import Schema
from async_loader.pipeline.batches.slot_allocator import COPY_BELOW, SlotAllocator


def schema(nbytes: int) -> Schema:
    return Schema.of({"x": ((nbytes,), np.uint8)})


def slots(prefetch=2, spare=1, slot_bytes=None, *, always_slots=False) -> SlotAllocator:
    return SlotAllocator(prefetch, spare, slot_bytes, always_slots=always_slots)


def test_there_are_as_many_slots_as_batches_under_way_and_lent():
    p = slots(prefetch=2, spare=1)
    held = [p.buffer_here(COPY_BELOW) for _ in range(3)]
    assert sorted(buffer.slot for buffer in held) == [0, 1, 2]
    assert p.shared_slot(COPY_BELOW) is None
    short = p.buffer_here(COPY_BELOW)
    assert short.ring is None  # slower, not wrong
    del held
    gc.collect()
    assert p.ring.free == 3
    assert p.buffer_here(COPY_BELOW).ring is p.ring


def test_a_slot_comes_back_when_the_last_view_on_it_dies():
    p = slots()
    layout = p.layout(schema(COPY_BELOW), 2)
    buffer = p.buffer_here(layout.nbytes)
    view = layout.views(buffer.root)[0][1, 5:7]
    assert p.ring.free == 2
    del buffer
    assert p.ring.free == 2
    del view
    assert p.ring.free == 3


def test_a_batch_that_outgrows_the_ring_gets_a_new_one_and_the_old_goes_with_its_last_lease():
    p = slots()
    small = p.buffer_here(COPY_BELOW)
    small.root[:] = 1
    old = p.ring
    large = p.buffer_here(10 * COPY_BELOW)
    large.root[:] = 2
    assert p.ring is not old
    assert large.ring is p.ring
    assert (small.root == 1).all()
    again = p.buffer_here(COPY_BELOW)
    assert again.ring is p.ring  # which is large enough
    again.root[:] = 3
    assert (large.root == 2).all()


def test_slots_retired_by_a_fork_are_not_used_again_and_a_worn_ring_is_replaced():
    p = slots(prefetch=2, spare=1)
    ring = None
    for _ in range(2):
        buffer = p.buffer_here(COPY_BELOW)
        ring = buffer.ring
        assert ring.lend(buffer.slot)
        p.retire_leased()
        slot = buffer.slot
        del buffer
        assert ring.free < 3
        assert slot not in [p.buffer_here(COPY_BELOW).slot for _ in range(1)]
    assert ring.retired == 2
    assert p.buffer_here(COPY_BELOW).ring is not ring
