"""Aligned shared mappings, and huge pages under them: no byte changes, and nothing stays mapped."""

import os
import sys

import numpy as np
import pytest

from async_loader import ReplayBuffer
from async_loader.shm import hugepages
from tests.table_parts import debug_state

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="memfd and huge pages are Linux's"
)
MIB = 1 << 20


@pytest.fixture
def fd():
    fd = os.memfd_create("test")
    os.ftruncate(fd, 8 * MIB + 12345)
    yield fd
    os.close(fd)


def test_huge_pages_change_no_byte(fd):
    array = np.frombuffer(hugepages.aligned(fd, 8 * MIB), np.uint8)
    array[:] = np.random.default_rng(0).integers(0, 256, 8 * MIB)
    before = array.copy()
    pages = hugepages.HugePages(array.ctypes.data, 8 * MIB)
    assert pages.under(3 * MIB, 5 * MIB) == 6 * MIB
    pages.under(0, 8 * MIB)
    assert (array == before).all()


class Kernel:
    """Returns a fixed answer, and counts the calls."""

    def __init__(self):
        self.answer, self.asked = True, []

    def collapse(self, address):
        self.asked.append(address)
        return self.answer


@pytest.fixture
def kernel(monkeypatch):
    kernel = Kernel()
    monkeypatch.setattr(hugepages, "collapse", kernel.collapse)
    # this call takes no time, but the thread may be suspended for a while
    monkeypatch.setattr(hugepages, "_SLOW_S", 60.0)
    return kernel


def on_memory(nbytes):
    room = np.zeros(nbytes + hugepages.HUGE, np.uint8)
    begin = -room.ctypes.data % hugepages.HUGE
    return room, hugepages.HugePages(room.ctypes.data + begin, nbytes)


def test_where_it_takes_long_it_is_given_up(kernel, monkeypatch):
    clock = iter(range(0, 100_000, 100))
    monkeypatch.setattr(hugepages.time, "monotonic", lambda: next(clock))
    room, pages = on_memory(16 * MIB)
    pages.under(0, 16 * MIB)
    assert len(kernel.asked) == 3
    assert not pages.wanted
    del room


def test_a_table_takes_huge_pages_as_it_fills(kernel):
    buffer = ReplayBuffer(100_000, {"x": ((6,), np.float64)}, seed=0)  # 80 bytes a row
    asked = []
    for begin in range(0, 200_000, 1000):
        buffer.extend(x=np.arange(begin, begin + 1000, dtype=np.float64)[:, None].repeat(6, 1))
        asked.append(len(kernel.asked))
    assert asked[0] == 1
    assert asked == sorted(asked)
    rows = debug_state(buffer).state.table.storage.layout.rows
    assert len(set(kernel.asked)) == len(kernel.asked) == rows * 80 // hugepages.HUGE
    batch = buffer.sample(256)
    assert (batch["x"] == batch["index"][:, None]).all()
