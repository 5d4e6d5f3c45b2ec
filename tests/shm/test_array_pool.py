"""Memory of large batches: used again, and never while an array in it is referenced."""

import os

import numpy as np

from async_loader import ReplayBuffer
from async_loader.shm.array_pool import ArrayPool

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
