"""Memory of batches: used again, and never while an array in it is referenced."""

from __future__ import annotations

import os
import platform
import resource

import numpy as np
import pytest

from async_loader import ReplayBuffer
from async_loader.shm.array_pool import ArrayPool
from async_loader.shm.hugepages import keep_freed_memory
from async_loader.shm.slot_leases import SlotRing

SHAPE, DTYPE = (256, 84, 84), np.dtype(np.uint8)


def test_memory_stays_with_the_last_view():
    blocks = ArrayPool()
    array = blocks.array(SHAPE, DTYPE)
    array[:] = 7
    view = array[3:5, ::2].view(np.int8)
    del array
    others = [blocks.array(SHAPE, DTYPE) for _ in range(4)]
    for other in others:
        other[:] = 1
    assert (view == 7).all()


def test_batches_that_are_kept_stay_as_they_were():
    buffer = ReplayBuffer(64, {"frame": ((4096,), np.uint8), "number": np.int64})
    for i in range(64):
        buffer.add(frame=np.full(4096, i, np.uint8), number=i)
    kept = [buffer.sample(256) for _ in range(6)]
    for _ in range(20):
        buffer.sample(256)
    for batch in kept:
        assert (batch["frame"] == batch["number"][:, None]).all()


def test_a_forked_child_writes_into_pages_of_its_own():
    array = ArrayPool().array(SHAPE, DTYPE)
    array[:] = 7
    pid = os.fork()
    if not pid:
        array[:] = 1
        os._exit(0)
    os.waitpid(pid, 0)
    assert (array == 7).all()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc learns")
def test_a_batch_after_the_first_needs_no_new_pages():
    keep_freed_memory()
    keep_freed_memory()
    np.ones(3 << 20, np.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(3 << 20, np.uint8)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    # one batch alone has this number of pages; without the setting twenty times that are fetched
    assert faults < 768


def test_the_slot_that_came_back_last_comes_next():
    ring = SlotRing(4, 4096, spare=2)
    leases = [ring.lease() for _ in range(4)]
    assert [slot for slot, _ in leases] == [0, 1, 2, 3]
    assert ring.lease() is None
    for slot in (2, 0, 3):
        leases[slot] = None
    assert [ring.lease()[0] for _ in range(3)] == [3, 3, 3]  # each dies at once
    held = [ring.lease() for _ in range(3)]
    assert [slot for slot, _ in held] == [3, 0, 2]
    del held, leases
    ring.segment.close()
