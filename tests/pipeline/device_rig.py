"""A streamer between a stub of the train queue and a consumer, all in one thread, so that a test
decides who moves.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from typing import Any

import numpy as np
from fake_device import FakeArray, FakeBackend, FakeResult, FakeStream

from async_loader import tree
from async_loader.batch_layout import BatchLayout
from async_loader.errors import Closed, Timeout
from async_loader.lifecycle import Deadline
from async_loader.pipeline.batch import Batch, Failure
from async_loader.pipeline.device.streamer import Streamer
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.schema import Schema
from async_loader.shm.batch_buffer import BatchBuffer
from async_loader.shm.slot_leases import SlotRing
from async_loader.source import END

SCHEMA = Schema.of(
    {
        "obs": {"pixels": ((3, 2), "uint8"), "speed": ((), "float32")},
        "done": ((), "bool"),
        "index": ((), "int64"),
    }
)


class Inbox:
    """The train queue, as the streamer sees it; never waits."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.seq = itertools.count()

    def get(self, deadline: Deadline) -> Any:
        if self.items:
            item = self.items[0] if self.items[0] is END else self.items.popleft()
            if isinstance(item, Batch):
                item.seq = next(self.seq)
            return item
        if deadline.left() == 0.0:
            raise Timeout("nothing there")
        raise Closed("the streamer would wait for ever here")


def new_ring(count: int = 3) -> SlotRing:
    return SlotRing(count, 4096, spare=1)


def filled(ring: SlotRing | None, rng: np.random.Generator, layout: BatchLayout) -> BatchBuffer:
    """Memory with random bytes in it; bools are bools."""
    leased = ring.lease() if ring is not None else None
    buffer = (
        BatchBuffer(None, -1, np.empty(layout.nbytes, np.uint8))
        if leased is None
        else BatchBuffer(ring, *leased)
    )
    for view in layout.views(buffer.root):
        view[...] = rng.integers(0, 2 if view.dtype == bool else 100, view.shape).astype(view.dtype)
    return buffer


class Rig:
    """What each batch was written as is kept, and compared with what the consumer's kernels
    read.
    """

    def __init__(self, kind: type[Streamer] = Streamer, slots: int = 3) -> None:
        self.fake, self.inbox, self.queue = FakeBackend(), Inbox(), TrainQueue()
        self.streamer = kind(self.inbox, self.queue, self.fake)
        self.ring = new_ring(slots)
        self.old_rings: list[SlotRing] = []
        self.consumers = [FakeStream("consumer"), FakeStream("another")]
        self.held: list[Any] = []
        self.wrong: list[str] = []
        self._expected: deque[list[np.ndarray]] = deque()
        self._reads: list[tuple[list[np.ndarray], FakeResult]] = []
        self._rng = np.random.default_rng(0)
        with self.fake.stream(self.fake.side):
            self.fake.open()

    # -- who moves ---------------------------------------------------------------------------------

    def make(self, rows: int = 4, form: str = "contiguous") -> None:
        """One more batch in the train queue, in a slot while there are any."""
        layout = BatchLayout.contiguous(SCHEMA, rows)
        buffer = filled(self.ring, self._rng, layout)
        self._expected.append([view.copy() for view in layout.views(buffer.root)])
        if form == "loose":
            self.inbox.items.append(Batch(buffer, tree=layout.rebuild(layout.views(buffer.root))))
        else:
            self.inbox.items.append(Batch(buffer, layout))

    def step(self) -> None:
        """As far as the streamer gets without waiting for the next batch."""
        with self.fake.stream(self.fake.side), contextlib.suppress(Closed):
            self.streamer.step()

    def send(self, rows: int = 4, form: str = "contiguous") -> None:
        self.make(rows, form)
        self.step()

    def receive(self, consumer: int = 0) -> None:
        """Take a batch and launch a kernel that reads all of it; hold the batch."""
        if self.queue.depth:
            self._read(self.queue.get(Deadline(0.0)), consumer)

    def draw(self, rows: int = 4, form: str = "contiguous", consumer: int = 0) -> None:
        """The consumer makes a batch itself and copies it, if none is under way."""
        if not self.inbox.items and not self.queue.depth:
            self.make(rows, form)
            with self.fake.stream(self.consumers[consumer]):
                sent = self.streamer.send_here(self.inbox.items.popleft())
            self._read(sent, consumer)

    def _read(self, item: Any, consumer: int) -> None:
        expected = self._expected.popleft()
        if isinstance(item, Failure):
            raise item.error
        with self.fake.stream(self.consumers[consumer]):
            batch = self.streamer.receive(item)
            leaves = list(tree.leaves(batch, SCHEMA.structure))
            on_device = [
                (leaf, e)
                for leaf, e in zip(leaves, expected, strict=True)
                if isinstance(leaf, FakeArray)
            ]
            self._reads.append(
                ([e for _, e in on_device], self.fake.launch(*(leaf for leaf, _ in on_device)))
            )
        if not np.array_equal(batch["index"].numpy(), expected[-1]):
            self.wrong.append("index")
        self.held.append(batch)

    def drop(self) -> None:
        if self.held:
            self.held.pop(0)

    def run_side(self, count: int = 99) -> None:
        self.fake.advance(self.fake.side, count)

    def run_consumer(self, consumer: int = 0, count: int = 99) -> None:
        self.fake.advance(self.consumers[consumer], count)

    def change_ring(self) -> None:
        self.old_rings.append(self.ring)
        self.ring = new_ring(self.ring.count)

    def finish(self) -> None:
        with self.fake.stream(self.fake.side):
            self.streamer.finish()

    # -- what became of it -------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Deliver what is under way, end, run everything, and say what was not right."""
        while self.inbox.items:
            self.step()
        self.finish()
        while self.queue.depth:
            self.receive()
        for stream in (*self.consumers, self.fake.default, self.fake.side):
            self.fake.drain(stream)
        for number, (expected, result) in enumerate(self._reads):
            if not all(
                np.array_equal(e, value) for e, value in zip(expected, result.values, strict=True)
            ):
                self.wrong.append(f"batch {number}")
        taken = [ring for ring in (self.ring, *self.old_rings) if ring.free != ring.count]
        kept = self.fake.registrations - self.fake.unregistrations
        return (
            self.wrong
            + self.fake.violations
            + ["slots are missing"] * len(taken)
            + ["pages are still locked"] * (kept > 0)
        )
