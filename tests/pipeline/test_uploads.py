"""How batches reach a device: one copy for each, from page-locked memory, wherever they come
from.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
from fake_device import FakeBackend

from async_loader import AsyncDataLoader, ReplayBuffer
from async_loader.batch_layout import BatchLayout
from async_loader.feeder import connect
from async_loader.schema import Schema
from async_loader.shm.batch_buffer import BatchBuffer, ReadySlot
from async_loader.shm.slot_leases import SlotRing
from async_loader.source import Ready

ROWS, BATCH = 400, 20
PIXELS = (80, 60)  # a batch is large enough to be lent where it lies
FIELDS = {"pixels": (PIXELS, "uint8"), "number": "int64"}


def steps() -> dict[str, np.ndarray]:
    numbers = np.arange(ROWS)
    return {
        "pixels": np.full((ROWS, *PIXELS), (numbers % 250)[:, None, None], np.uint8),
        "number": numbers,
    }


class Lent:
    """A source of ready batches that stay valid."""

    def __init__(self) -> None:
        self.drawn = 0

    def plan(self, batch_size, patience):
        rows = slice(self.drawn, self.drawn + batch_size)
        self.drawn = (self.drawn + batch_size) % ROWS
        return Ready({name: column[rows].copy() for name, column in steps().items()}, lent=True)

    def reader(self):
        return None

    def update_priorities(self, index, priority):
        raise NotImplementedError


class InSlots:
    """A source whose batches lie in slots of its own ring."""

    def __init__(self) -> None:
        self.drawn = 0
        self.layout = BatchLayout.contiguous(Schema.of(FIELDS), BATCH)
        self.ring = SlotRing(12, self.layout.nbytes, 3)

    def plan(self, batch_size, patience):
        leased = self.ring.lease()
        assert leased is not None, "slots do not come back"
        slot, root = leased
        batch = self.layout.rebuild(self.layout.views(root))
        for name, column in steps().items():
            batch[name][:] = column[self.drawn : self.drawn + batch_size]
        self.drawn = (self.drawn + batch_size) % ROWS
        return ReadySlot(
            batch, lent=True, buffer=BatchBuffer(self.ring, slot, root), layout=self.layout
        )

    def reader(self):
        return None

    def update_priorities(self, index, priority):
        raise NotImplementedError


def local_table(stack: ExitStack, **settings):
    buffer = ReplayBuffer(ROWS, FIELDS, **settings)
    buffer.extend(**steps())
    stack.callback(buffer.close)
    return buffer


def feeder_table(stack: ExitStack, **settings):
    client = stack.enter_context(connect("embedded", tables={"replay": ROWS}))
    with client.table("replay").writer(schema=FIELDS) as writer:
        writer.extend(steps())
    return client.table("replay").source(**settings)


SOURCES = {
    "local table": local_table,
    "local table, rows drawn once": lambda stack: local_table(stack, max_times_sampled=2),
    "feeder table, shared memory": lambda stack: feeder_table(stack, transport="shm"),
    "feeder table, socket": lambda stack: feeder_table(stack, transport="tcp"),
    "ready batches": lambda stack: Lent(),
    "batches in slots of the source": lambda stack: InSlots(),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_batch_is_one_upload_from_page_locked_memory(source):
    fake = FakeBackend()
    with ExitStack() as stack:
        loader = stack.enter_context(
            AsyncDataLoader(source(stack), BATCH, device=fake, timeout_s=60)
        )
        for _ in range(8):
            batch = next(loader)
            number, pixels = batch["number"].cpu(), batch["pixels"].cpu()
            assert (pixels == (number % 250)[:, None, None]).all()
        loader.close()
        assert (fake.copies >= 8, fake.pageable_copies, fake.violations) == (True, 0, [])
        assert fake.copies == loader.stats().copy.batches


@pytest.mark.parametrize("device", ["cpu", "fake"])
def test_a_batch_that_a_source_has_in_a_slot_is_not_copied_on_its_way_and_the_slot_comes_back(
    device,
):
    source, fake = InSlots(), FakeBackend()
    with AsyncDataLoader(
        source, BATCH, device=fake if device == "fake" else "cpu", timeout_s=60
    ) as loader:
        for _ in range(3 * source.ring.count):  # far more than there are slots
            batch = next(loader)
            assert (batch["pixels"].cpu() == (batch["number"].cpu() % 250)[:, None, None]).all()
            del batch
        assert loader.stats().slots == 0  # none of the loader's own
    assert source.ring.free == source.ring.count


@pytest.mark.slow
def test_a_batch_of_a_feeder_on_this_machine_is_copied_to_the_device_from_where_it_was_written():
    fake = FakeBackend()
    with ExitStack() as stack:
        source = feeder_table(stack, transport="shm")
        with AsyncDataLoader(source, BATCH, device=fake, timeout_s=60) as loader:
            for _ in range(100):  # far more than there are slots
                batch = next(loader)
                number, pixels = batch["number"].cpu(), batch["pixels"].cpu()
                assert (pixels == (number % 250)[:, None, None]).all()
            assert loader.stats().slots == 0  # none of the loader's own
        assert (fake.pageable_copies, fake.violations) == (0, [])
