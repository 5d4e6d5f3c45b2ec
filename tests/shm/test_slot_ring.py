"""Slots come back when the last array on them dies; the one that came back last is used next."""

from async_loader.shm.slot_ring import SlotRing


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
