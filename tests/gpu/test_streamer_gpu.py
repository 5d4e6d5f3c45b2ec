"""The streamer on a real device. Races are widened with kernels that sleep; what arrives is
compared byte by byte.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from async_loader import AsyncDataLoader, ReplayBuffer
from async_loader.batch_layout import BatchLayout
from async_loader.lifecycle import Deadline
from async_loader.pipeline.batch import Batch
from async_loader.pipeline.device.cuda_backend import CudaBackend, backend_for
from async_loader.pipeline.device.streamer import Streamer
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.schema import Schema
from async_loader.shm.batch_buffer import BatchBuffer
from async_loader.shm.slot_leases import SlotRing

pytestmark = pytest.mark.gpu

SOON = Deadline(None)
LONG = 400_000_000  # cycles; about a quarter of a second
SCHEMA = Schema.of(
    {"x": ((64, 64), "uint8"), "y": ((3,), "float32"), "done": ((), "bool"), "index": ((), "int64")}
)


class SlowCopies(CudaBackend):
    """The side stream is busy before each copy, and page-locking is counted."""

    cycles = 0
    locked = 0

    def upload(self, root: Any, nbytes: int) -> torch.Tensor:
        if self.cycles:
            torch.cuda._sleep(self.cycles)
        return super().upload(root, nbytes)

    def register(self, memory: Any) -> bool:
        ok = super().register(memory)
        self.locked += ok
        return ok

    def unregister(self, memory: Any) -> None:
        super().unregister(memory)
        self.locked -= 1


class Line:
    """Train queue, streamer and cuda queue around one ring."""

    def __init__(self, device: torch.device, slots: int = 4, rows: int = 64) -> None:
        self.layout = BatchLayout.contiguous(SCHEMA, rows)
        self.ring = SlotRing(slots, self.layout.nbytes, spare=1)
        self.backend = SlowCopies(device)
        self.train, self.cuda = TrainQueue(), TrainQueue()
        self.streamer = Streamer(self.train, self.cuda, self.backend)
        self.streamer.start()
        self._rng = np.random.default_rng(0)
        self._sent = 0

    def send(self) -> list[np.ndarray]:
        """One batch of random bytes; what was written."""
        while (leased := self.ring.lease()) is None:
            threading.Event().wait(0.001)
        buffer = BatchBuffer(self.ring, *leased)
        views = self.layout.views(buffer.root)
        for view in views:
            view[...] = self._rng.integers(0, 2 if view.dtype == bool else 250, view.shape).astype(
                view.dtype
            )
        self.train.put(self._sent, Batch(buffer, self.layout))
        self._sent += 1
        return [view.copy() for view in views]

    def arrival(self) -> Batch:
        found = self.cuda.get(SOON) or self.cuda.get(SOON)  # it is woken once
        assert isinstance(found, Batch), getattr(found, "error", found)
        return found

    def take(self) -> dict[str, torch.Tensor]:
        batch: dict[str, torch.Tensor] = self.streamer.receive(self.arrival())
        return batch

    def close(self) -> None:
        self.train.close()
        assert self.streamer.join(30.0)


@pytest.fixture
def line(cuda: torch.device) -> Iterator[Line]:
    line = Line(cuda)
    yield line
    line.close()
    assert line.backend.locked == 0
    vars(line).clear()  # pytest keeps the line, and nothing may be left of its ring


def same(batch: dict[str, torch.Tensor], written: list[np.ndarray]) -> bool:
    return all(
        np.array_equal(value.cpu().numpy(), w)
        for value, w in zip(batch.values(), written, strict=True)
    )


def test_what_arrives_is_what_was_written_and_index_stays_on_the_cpu(cuda):
    line = Line(cuda)
    try:
        for _ in range(50):
            written = line.send()
            batch = line.take()
            assert same(batch, written)
            assert batch["index"].device.type == "cpu"
            assert {batch[name].device for name in ("x", "y", "done")} == {cuda}
            assert (
                len({batch[name].untyped_storage().data_ptr() for name in ("x", "y", "done")}) == 1
            )
    finally:
        line.close()


def test_the_consumers_stream_waits_for_a_copy_that_is_late(line):
    line.backend.cycles = LONG
    for _ in range(4):
        written = line.send()
        assert same({name: value.clone() for name, value in line.take().items()}, written)


def test_a_consumer_on_a_stream_of_its_own_waits_too(line):
    line.backend.cycles = LONG
    with torch.cuda.stream(torch.cuda.Stream()):
        written = line.send()
        assert same({name: value.clone() for name, value in line.take().items()}, written)


def test_a_slot_is_not_used_again_while_its_copy_is_pending(line):
    line.backend.cycles = LONG
    # three times round the ring, as fast as slots come back
    written = [line.send() for _ in range(12)]
    for expected in written:
        assert same(line.take(), expected)


def test_memory_of_a_dropped_batch_is_not_used_again_under_a_pending_kernel(line):
    copies, expected = [], []
    for _ in range(12):
        expected.append(line.send())
        batch = line.take()
        torch.cuda._sleep(LONG // 4)
        copies.append({name: value.clone() for name, value in batch.items()})
        del batch
    assert all(same(copy, written) for copy, written in zip(copies, expected, strict=True))


def test_slots_are_page_locked_once_and_released(line):
    for _ in range(10):
        line.send()
        line.take()
    assert line.backend.locked == 1
    memory = torch.from_numpy(line.ring.segment.bytes())
    assert memory.is_pinned()
    line.close()
    assert line.backend.locked == 0
    assert not memory.is_pinned()


# torch says that with a warning
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_taking_a_batch_does_not_wait_for_the_device(line):
    line.send()
    first = line.take()
    (first["y"].sum() + first["x"].sum()).item()  # loading a kernel waits for the device
    line.send()
    arrival = line.arrival()
    arrival.device.event.synchronize()
    busy = torch.cuda.Event()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(LONG)
        busy.record()
        batch = line.streamer.receive(arrival)
        result = batch["y"].sum() + batch["x"].sum()
        assert not busy.query(), "the kernel before it is still running"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert result.isfinite().item()


def test_a_copy_runs_beside_the_consumers_kernels(line):
    line.send()
    line.take()
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    kernel = torch.cuda.Event()
    kernel.record()
    line.send()
    line.arrival().device.event.synchronize()
    assert not kernel.query()
    kernel.synchronize()


def test_a_refused_registration_leaves_no_error_behind(cuda, monkeypatch):
    backend = CudaBackend(cuda)
    backend.open()
    try:
        nowhere = np.zeros(8192, np.uint8)
        runtime = torch.cuda.cudart()
        code = int(runtime.cudaHostRegister(nowhere.ctypes.data, 4096, 1 << 20))  # no such flag
        assert code != 0

        class Refusing:
            cudaHostUnregister = staticmethod(runtime.cudaHostUnregister)

            @staticmethod
            def cudaHostRegister(address: int, size: int, flags: int) -> int:
                return int(runtime.cudaHostRegister(address, size, 1 << 20))

        monkeypatch.setattr(torch.cuda, "cudart", lambda: Refusing)
        assert backend.register(nowhere) is False
        assert (torch.ones(3, device=cuda) + 1).sum().item() == 6
    finally:
        torch.cuda.set_stream(torch.cuda.default_stream(cuda))


def test_loaders_leave_no_device_memory_behind(cuda):
    data = {"x": np.arange(4096, dtype=np.float32).repeat(64).reshape(4096, 64)}

    def run() -> None:
        with AsyncDataLoader(data, 256, cuda, timeout_s=60.0) as loader:
            for _ in range(20):
                next(loader)

    run()
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        run()
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before


def test_a_loader_feeds_a_learner_that_is_slow_and_one_that_is_fast(device):
    rows = np.arange(4096)
    data = {"x": rows[:, None].repeat(100, 1).astype(np.float32), "n": {"y": rows}}
    with AsyncDataLoader(data, 128, device, timeout_s=60.0) as loader:
        for step in range(100):
            batch = next(loader)
            if device.type == "cuda" and step % 10 == 0:
                torch.cuda._sleep(LONG // 10)
            x, y = batch["x"].clone(), batch["n"]["y"].clone()
            index = batch["index"]
            assert index.device.type == "cpu"
            del batch
            assert torch.equal(y.cpu(), index)
            assert torch.equal(x[:, 0].cpu(), index.float())


def test_descriptors_do_not_become_more_with_batches(cuda):
    """A driver may open some for itself; it must not be one for each batch or loader."""
    data = {"x": np.zeros((4096, 64), np.float32)}

    def run() -> int:
        for kind in (data, lambda n: {"x": data["x"][:n]}):
            with AsyncDataLoader(kind, 256, cuda, timeout_s=60.0) as loader:
                for _ in range(100):
                    next(loader)
        gc.collect()
        torch.cuda.synchronize()
        return len(os.listdir("/proc/self/fd"))

    run()
    first = run()
    assert max(run() for _ in range(3)) <= first


@pytest.mark.parametrize("own_stream", [False, True])
def test_a_learner_that_draws_its_batches_reads_each_however_late_its_kernels_are(cuda, own_stream):
    rows = np.arange(4096)
    streams = [torch.cuda.Stream(cuda), torch.cuda.current_stream(cuda)]
    found, expected = [], []
    with ReplayBuffer(4096, {"x": ((256,), "int64")}, seed=0) as buffer:
        ids = buffer.extend(x=rows[:, None].repeat(256, 1))
        with AsyncDataLoader(buffer, 64, cuda, timeout_s=60.0) as loader:
            for step in range(200):
                with torch.cuda.stream(streams[step % 3 % 2 if own_stream else 1]):
                    batch = next(loader)
                    if step % 20 == 0:
                        torch.cuda._sleep(LONG // 10)
                    found.append(batch["x"].sum(1))
                expected.append(batch["index"] - ids[0])
                del batch
            assert loader.stats().drawing_thread == "caller"
    torch.cuda.synchronize()
    for sums, numbers in zip(found, expected, strict=True):
        assert torch.equal(sums.cpu(), numbers * 256)


def test_a_batch_that_the_learner_draws_does_not_wait_for_its_kernels(cuda):
    with AsyncDataLoader(
        {"x": np.zeros((4096, 64), np.float32)}, 256, cuda, timeout_s=60.0
    ) as loader:
        for _ in range(5):
            next(loader)
        torch.cuda.synchronize()
        torch.cuda._sleep(LONG)
        busy = torch.cuda.Event()
        busy.record()
        for _ in range(20):
            next(loader)
        assert loader.stats().drawing_thread == "caller"
        assert not busy.query(), "the kernel before them is still running"


def test_closing_while_copies_are_pending_ends_in_time(line):
    line.backend.cycles = LONG
    for _ in range(3):
        line.send()
    start = time.monotonic()
    line.close()
    assert time.monotonic() - start < 10.0
    assert line.ring.free == line.ring.count


def test_a_backend_for_the_accelerator_is_found(device):
    backend = backend_for(device)
    assert isinstance(backend, CudaBackend) == (device.type == "cuda")
