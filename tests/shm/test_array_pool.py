"""Memory of large batches: used again, and never while an array in it is referenced."""

import gc
import os

import numpy as np
import pytest

from async_loader import ReplayBuffer
from async_loader.shm.array_pool import ArrayPool

SHAPE, DTYPE = (256, 84, 84), np.dtype(np.uint8)


def place(array):
    return array.ctypes.data


def test_memory_of_an_array_that_is_gone_is_used_again():
    blocks = ArrayPool()
    array = blocks.array(SHAPE, DTYPE)
    begin = place(array)
    del array
    assert place(blocks.array(SHAPE, DTYPE)) == begin


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


def test_no_more_than_two_blocks_of_a_size_are_kept():
    blocks = ArrayPool()
    arrays = [blocks.array(SHAPE, DTYPE) for _ in range(5)]
    del arrays
    gc.collect()
    assert {size: len(free) for size, free in blocks._free.items()} == {256 * 84 * 84: 2}


@pytest.mark.parametrize("shape", [(0, 84, 84), (3,), (7, 11, 13), SHAPE])
def test_arrays_begin_on_a_cache_line(shape):
    array = ArrayPool().array(shape, np.dtype(np.float32))
    assert array.shape == shape
    assert place(array) % 64 == 0
    assert array.flags.c_contiguous
    assert array.flags.writeable


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
