"""What the streamer does with each kind of item, and how it ends. Order of events:
test_streamer_faults.py.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from device_rig import SCHEMA, Rig, filled, new_ring
from fake_device import FakeArray, FakeBackend
from waiting_rig import LIMIT_S

from async_loader import AsyncDataLoader
from async_loader.batch_layout import BatchLayout
from async_loader.errors import Broken, Closed
from async_loader.lifecycle import Deadline
from async_loader.pipeline.batch import Batch, Failure
from async_loader.pipeline.device.streamer import MAX_IN_FLIGHT, Streamer
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.schema import Schema
from async_loader.source import END

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


def test_index_stays_on_the_cpu_and_owns_its_memory():
    rig = Rig(slots=1)
    rig.send()
    rig.receive()
    index = rig.held[0]["index"]
    before = index.clone()
    assert index.device.type == "cpu"
    assert index.dtype == torch.int64
    rig.run_side()
    rig.finish()
    assert rig.ring.free == 1
    assert torch.equal(index, before)


def test_index_within_a_nested_field_goes_to_the_device():
    layout = BatchLayout.contiguous(Schema.of({"info": {"index": ((), "int64")}}), 2)
    rig = Rig()
    rig.inbox.items.append(Batch(filled(rig.ring, np.random.default_rng(0), layout), layout))
    rig.step()
    with rig.fake.stream(rig.consumers[0]):
        batch = rig.streamer.receive(rig.queue.get(NOW))
    assert isinstance(batch["info"]["index"], FakeArray)
    rig.finish()


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


def test_a_batch_outside_the_ring_is_copied_from_pageable_memory():
    rig = Rig(slots=1)
    rig.send()
    rig.send()
    assert (rig.fake.copies, rig.fake.pageable_copies) == (2, 1)
    assert rig.problems() == []


def test_failures_keep_their_turn_and_urgent_ones_overtake():
    rig = Rig()
    plain, urgent = Failure(ValueError(), seq=0), Failure(ValueError(), urgent=True, seq=1)
    for item in (plain, urgent, END):
        rig.inbox.items.append(item)
        rig.step()
    assert [rig.queue.get(NOW) for _ in range(4)] == [urgent, plain, END, END]


def test_the_consumer_never_waits_for_the_device_to_take_a_batch():
    rig = Rig()
    rig.send()
    rig.receive()
    assert not rig.fake.host_syncs


# -- slots and pages -------------------------------------------------------------------------------


def test_copies_in_flight_are_few_and_each_holds_its_slot():
    rig = Rig(slots=5)
    for _ in range(4):
        rig.send()
        assert rig.ring.count - rig.ring.free <= MAX_IN_FLIGHT
    assert rig.fake.host_syncs.total() == 4 - MAX_IN_FLIGHT
    assert rig.problems() == []


def test_finished_copies_are_let_go_without_waiting():
    rig = Rig(slots=5)
    for _ in range(4):
        rig.send()
        rig.run_side()
    assert not rig.fake.host_syncs
    assert rig.problems() == []


def test_a_ring_is_page_locked_once_and_released_when_a_new_one_has_taken_over():
    rig = Rig()
    assert rig.streamer.pinned is None
    for _ in range(3):
        rig.send()
    assert rig.streamer.pinned is True
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
        def register(self, memory: Any, unit: int) -> bool:
            return False

    rig = Rig()
    rig.fake = rig.streamer._backend = Unpinnable()
    rig.send()
    assert rig.streamer.pinned is False
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


def test_the_thread_ends_with_end_and_its_batches_stay_good():
    fake, ring = FakeBackend(), new_ring()
    train, cuda, streamer = _threaded(fake)
    buffer = filled(ring, np.random.default_rng(0), LAYOUT)
    written = LAYOUT.views(buffer.root)[0].copy()
    train.put(0, Batch(buffer, LAYOUT))
    train.end(1)
    del buffer
    assert streamer.join(LIMIT_S)
    batch = streamer.receive(cuda.get(NOW))
    assert np.array_equal(batch["obs"]["pixels"], written)
    assert cuda.get(NOW) is END


def test_a_slot_comes_back_although_no_other_batch_follows():
    fake, ring, back = FakeBackend(), new_ring(), threading.Event()
    train, _, streamer = _threaded(fake)
    buffer = filled(ring, np.random.default_rng(0), LAYOUT)
    weakref.finalize(buffer.root, back.set).atexit = False
    train.put(0, Batch(buffer, LAYOUT))
    del buffer
    assert back.wait(LIMIT_S)
    train.close()
    assert streamer.join(LIMIT_S)


def test_join_before_start_and_twice_is_harmless():
    streamer = Streamer(TrainQueue(), TrainQueue(), FakeBackend())
    assert streamer.join(0.0)
    assert streamer.join(0.0)


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


@pytest.mark.parametrize("step", ["record", "synchronize"])
def test_slots_of_a_lost_device_are_not_used_again(step):
    fake, ring = FakeBackend(), new_ring()

    def fail(*_: Any) -> None:
        raise OSError("lost")

    setattr(fake, step, fail)
    train, _, streamer = _threaded(fake)
    train.put(0, Batch(filled(ring, np.random.default_rng(0), LAYOUT), LAYOUT))
    assert streamer.join(LIMIT_S)
    assert (ring.free, fake.unregistrations) == (2, 0)


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
