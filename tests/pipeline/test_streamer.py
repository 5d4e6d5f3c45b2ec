"""What the streamer does with each kind of item, and how it ends. Order of events:
test_streamer_faults.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from device_rig import SCHEMA, Rig, filled, new_ring
from fake_device import FakeBackend
from waiting_rig import LIMIT_S

from async_loader import AsyncDataLoader
from async_loader.batch_layout import BatchLayout
from async_loader.errors import Broken, Closed
from async_loader.lifecycle import Deadline
from async_loader.pipeline.batch import Batch, Failure
from async_loader.pipeline.device.streamer import MAX_IN_FLIGHT, Streamer
from async_loader.pipeline.train_queue import TrainQueue

NOW = Deadline(0.0)
LAYOUT = BatchLayout.contiguous(SCHEMA, 4)


# -- one item --------------------------------------------------------------------------------------


def test_a_batch_in_a_slot_is_one_copy_and_one_block():
    rig = Rig()
    rig.send()
    rig.receive()
    assert rig.fake.copies == 1
    obs = rig.held[0]["obs"]
    assert obs["pixels"].block is obs["speed"].block is rig.held[0]["done"].block
    assert rig.problems() == []


def test_a_loose_batch_is_copied_tensor_by_tensor_and_the_rest_stays():
    rig = Rig()
    frozen = np.arange(3)
    frozen.flags.writeable = False
    half = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)
    tree = {
        "a": frozen,
        "b": [half, "text"],
        "index": np.array([7]),
        "n": None,
        "s": torch.eye(2).to_sparse(),
    }
    rig.inbox.items.append(Batch(tree=tree))
    rig.step()
    with rig.fake.stream(rig.consumers[0]):
        batch = rig.streamer.receive(rig.queue.get(NOW))
        assert batch["a"].numpy().tolist() == [0, 1, 2]
        assert torch.equal(batch["b"][0].cpu(), half)
    assert batch["b"][1] == "text"
    assert batch["n"] is None
    assert batch["s"].is_sparse
    assert torch.equal(batch["index"], torch.tensor([7]))
    assert rig.fake.copies == rig.fake.pageable_copies == 2
    rig.finish()


# -- slots and pages -------------------------------------------------------------------------------


def test_copies_in_flight_are_few_and_each_holds_its_slot():
    rig = Rig(slots=5)
    for _ in range(4):
        rig.send()
        assert rig.ring.count - rig.ring.free <= MAX_IN_FLIGHT
    assert rig.fake.host_syncs.total() == 4 - MAX_IN_FLIGHT
    assert rig.problems() == []


def test_a_ring_is_page_locked_once_and_released_when_a_new_one_has_taken_over():
    rig = Rig()
    for _ in range(3):
        rig.send()
    assert rig.fake.registrations == 1
    rig.change_ring()
    rig.send()
    assert (rig.fake.registrations, rig.fake.unregistrations) == (2, 0), (
        "the old ring was still copied from"
    )
    rig.change_ring()
    rig.run_side()
    rig.send()
    assert (rig.fake.registrations, rig.fake.unregistrations) == (3, 2)
    assert rig.problems() == []


def test_without_page_locking_copies_are_pageable_and_the_streamer_says_so():
    class Unpinnable(FakeBackend):
        def register(self, memory: Any) -> bool:
            return False

    rig = Rig()
    rig.fake = rig.streamer._backend = Unpinnable()
    rig.send()
    rig.receive()
    assert rig.fake.pageable_copies == 1
    assert rig.problems() == []


def test_a_batch_that_cannot_be_copied_is_a_failure_and_holds_its_slot_while_the_device_reads():
    class Full(FakeBackend):
        def arrays(self, block: Any, regions: Any) -> Any:
            raise MemoryError("device memory is full")

    rig = Rig()
    rig.fake = rig.streamer._backend = Full()
    rig.make()
    rig.step()
    item = rig.queue.get(NOW)
    assert isinstance(item, Failure)
    assert str(item.error) == "device memory is full"
    item.error.__traceback__ = None
    assert rig.ring.free == 2, "the copy was enqueued and still reads the slot"
    rig.run_side()
    rig.finish()
    assert rig.ring.free == 3


# -- the thread ------------------------------------------------------------------------------------


def _threaded(backend: FakeBackend) -> tuple[TrainQueue, TrainQueue, Streamer]:
    train, cuda = TrainQueue(), TrainQueue()
    streamer = Streamer(train, cuda, backend)
    streamer.start()
    return train, cuda, streamer


def test_the_thread_ends_with_the_train_queue_and_leaves_nothing_locked_or_leased():
    fake, ring = FakeBackend(), new_ring()
    train, cuda, streamer = _threaded(fake)
    train.put(0, Batch(filled(ring, np.random.default_rng(0), LAYOUT), LAYOUT))
    arrival = None
    while arrival is None:  # it is woken when the device is open
        arrival = cuda.get(Deadline(LIMIT_S))
    train.close()
    assert streamer.join(LIMIT_S)
    assert (ring.free, fake.unregistrations, fake.violations) == (3, 1, [])
    with pytest.raises(Closed):
        cuda.get(NOW)
    assert streamer.meter.batches == 1
    del arrival


@pytest.mark.parametrize("step", ["open", "record", "synchronize", "unregister"])
def test_what_ends_the_thread_breaks_the_cuda_queue_with_the_reason(step):
    def fail(*_: Any) -> None:
        raise OSError("the device fell off the bus")

    fake, ring = FakeBackend(), new_ring()
    setattr(fake, step, fail)
    train, cuda, streamer = _threaded(fake)
    train.put(0, Batch(filled(ring, np.random.default_rng(0), LAYOUT), LAYOUT))
    train.end(1)
    assert streamer.join(LIMIT_S)
    with pytest.raises(Broken, match="fell off the bus") as raised:
        cuda.get(NOW)
    assert isinstance(raised.value.__cause__, OSError)


# -- in a loader -----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_on_the_fake_device_delivers_the_rows_of_its_source(workers):
    rows = np.arange(512)
    data = {"x": rows.astype(np.float32), "y": np.stack([rows, rows], 1)}
    fake = FakeBackend()
    with AsyncDataLoader(
        data,
        32,
        fake,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        timeout_s=LIMIT_S,
    ) as loader:
        for _ in range(20):
            batch = next(loader)
            index = batch["index"].numpy()
            assert np.array_equal(batch["x"], index.astype(np.float32))
            assert np.array_equal(batch["y"], np.stack([index, index], 1))
    assert fake.violations == []
    assert fake.registrations == fake.unregistrations
