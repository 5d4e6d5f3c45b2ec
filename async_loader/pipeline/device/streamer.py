"""The streamer: copies batches to a device.

# NOTE [lifetime of a slot on its way to the device]
enqueue copy ─▶ record event ─▶ (in flight: the lease is held) ─▶ event done ─▶ lease dropped
The copy runs later than the call that asked for it, and reads the slot when it runs. So the lease
stays here until the event is done, whatever happens to the batch meanwhile; and pages are given
back to the system only after that.

# NOTE [lifetime of a block on the device]
The block belongs to the side stream, the consumer's kernels run on the consumer's. Before they
start, that stream waits for the event; and the allocator is told of it, or it would hand the block
to the next copy as soon as the batch is dropped, while kernels that were launched before still read
it. Both are done in the consumer's thread, because the current stream is a notion of each thread.

# NOTE [copies by the consumer]
A batch that the consumer has drawn itself is copied by it too, on the side stream like all others,
so that the copy does not wait for the consumer's kernels and its slot is soon free. It does not
wait until slots are free: where they are short, a batch lies in memory that is not page-locked. The
slots of these copies are given back when the next batch is copied, by whichever thread.
A batch of `STAGED_BYTES` at most that lies in no slot is copied on the consumer's current stream,
whose kernels follow the copy anyway, and its memory is read before the call returns: nothing is in
flight, and there is no event.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from async_loader import tensors, tree
from async_loader.batch_layout import BatchLayout
from async_loader.errors import Broken, Closed
from async_loader.pipeline.batch import Batch, DeviceCopy, Failure
from async_loader.pipeline.batches.collate import is_ignored
from async_loader.pipeline.device.cuda_backend import Bytes, CudaBackend
from async_loader.pipeline.device.transfer_thread import InFlight, StreamerInput, TransferThread
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.shm.batch_buffer import STAGED_BYTES, BatchBuffer
from async_loader.shm.slot_leases import SlotRing

MAX_IN_FLIGHT = 2
"""Copies under way: one that runs and one behind it keep the copy engine busy; more would only hold
slots.
"""


class PinnedMemory:
    """Page-locks memory for the first streamer that asks, and gives it back with the last: one that
    has ended must not take the pages from under the copies of another. Any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = Counter[int]()

    def register(self, backend: CudaBackend, memory: Bytes) -> bool:
        """As `CudaBackend.register`."""
        address = memory.ctypes.data
        with self._lock:
            if not self._users[address] and not backend.register(memory):
                return False
            self._users[address] += 1
            return True

    def unregister(self, backend: CudaBackend, memory: Bytes) -> None:
        """The counterpart of a `register` that returned True."""
        address = memory.ctypes.data
        with self._lock:
            self._users[address] -= 1
            if not self._users[address]:
                del self._users[address]
                backend.unregister(memory)


class Streamer(TransferThread):
    """To a device, on a side stream.

    Parameters
    ----------
    backend : CudaBackend
    pages : PinnedMemory | None
        Shared with other streamers that copy from the same ring.
    host_fields : set of str
        Top-level fields that stay on the CPU.
    covers : callable
        Whether all fields of a layout are copied into tensors of the caller's.
    """

    def __init__(
        self,
        train_queue: StreamerInput,
        output: TrainQueue,
        backend: CudaBackend,
        pages: PinnedMemory | None = None,
        host_fields: Collection[str] = ("index",),
        covers: Callable[[BatchLayout], bool] = lambda layout: False,
    ) -> None:
        super().__init__(train_queue, output)
        self._backend = backend
        self._pages = pages or PinnedMemory()
        self._host_fields, self._covers = host_fields, covers
        # Rings that were seen, and the memory to give back; ``None`` when it could not be
        # page-locked.
        self._rings: dict[int, tuple[SlotRing, Bytes | None]] = {}
        self._by_consumer: deque[InFlight] = deque()
        self._turn = threading.Lock()  # of the consumer's copies, and of the end
        self._meeting = threading.Lock()
        self._over = False

    def open(self) -> None:
        self._backend.open()

    def _send(self, batch: Batch) -> Batch | Failure:
        self._free_done(self._in_flight)
        if self._by_consumer:
            with self._turn:
                self._free_done(self._by_consumer)
        while len(self._in_flight) >= MAX_IN_FLIGHT:
            self._free_oldest()
        error = self._start(batch, self._in_flight)
        return batch if error is None else Failure(error, lease=batch.lease)

    def _start(self, batch: Batch, in_flight: deque[InFlight]) -> Exception | None:
        """Enqueue the copy of a batch, which lets go of its host memory; return what failed."""
        try:
            value, blocks = self._copy(batch)
        except Exception as error:  # of this batch alone, as far as can be known
            self._hold(batch.detach(), in_flight)  # a part of it may have been enqueued
            return error
        batch.value = value
        batch.device = DeviceCopy(blocks, self._hold(batch.detach(), in_flight))
        return None

    def _copy(self, batch: Batch) -> tuple[Any, tuple[Any, ...]]:
        """Enqueue the copies of one batch: what the consumer will get, and the blocks behind it."""
        layout, buffer = batch.layout, batch.buffer
        if buffer is not None and buffer.ring is not None:
            self.meet(buffer.ring)
        if layout is None or buffer is None:
            return self._copy_tree(batch)
        # all of it in one transfer; the arrays are views of one block
        block = self._backend.upload(buffer.root, layout.nbytes)
        values = self._backend.arrays(block, layout.regions)
        return self._value(layout, buffer, values), (block,)

    def _value(self, layout: BatchLayout, buffer: BatchBuffer, values: list[Any]) -> Any:
        for number, region in enumerate(layout.regions):
            if region.name in self._host_fields:
                view = np.ndarray(region.shape, region.dtype, buffer.root, region.offset)
                values[number] = tensors.to_tensor(view.copy())
        return layout.rebuild(values)

    def _copy_tree(self, batch: Batch) -> tuple[Any, tuple[Any, ...]]:
        """Tensor by tensor; what is no dense tensor on the CPU goes on as it is."""
        # The tensors made here stay with the batch, and then in flight, for as long as they are
        # copied from.
        batch.tree = tree.transform(batch.tree, tensors.as_tensor, leave=is_ignored)
        structure = tree.structure_of(batch.tree)
        values, blocks = [], []
        for name, value in zip(
            tree.names(structure), tree.leaves(batch.tree, structure), strict=True
        ):
            if name in self._host_fields or any(map(is_ignored, name.split("."))):
                values.append(tensors.copied(value))
            elif (
                tensors.is_tensor(value)
                and value.device.type == "cpu"
                and value.layout is tensors.loaded_torch().strided
            ):
                blocks.append(self._backend.upload_leaf(value))
                values.append(blocks[-1])
            else:
                values.append(
                    value.copy()
                    if isinstance(value, np.ndarray) and batch.buffer is not None
                    else value
                )
        rebuild = tree.rebuild_batch if type(batch.tree) is tree.Fields else tree.rebuild
        return rebuild(structure, values), tuple(blocks)

    def _hold(self, host: object, in_flight: deque[InFlight]) -> Any:
        """Keep what the copies read until the event behind them is done.

        See NOTE [lifetime of a slot ...].
        """
        copy = InFlight(None, host)
        in_flight.append(copy)  # first: when recording fails the copies may run all the same
        copy.event = self._backend.record()
        return copy.event

    def _free_done(self, in_flight: deque[InFlight]) -> None:
        while in_flight and in_flight[0].event and self._backend.done(in_flight[0].event):
            in_flight.popleft()

    def _free_oldest(self) -> None:
        """Wait for the oldest copy; the end of a wait is the end of its lease."""
        self._backend.synchronize(self._in_flight[0].event)
        self._in_flight.popleft()

    # -- rings -------------------------------------------------------------------------------------

    def meet(self, ring: SlotRing) -> None:
        """Page-lock a ring that is new, and release the pages of an old one after its last use."""
        if id(ring) in self._rings:
            return
        with self._meeting:
            if id(ring) in self._rings:
                return
            for old in [key for key, known in self._rings.items() if _idle(known[0])]:
                self._give_back(self._rings.pop(old)[1])
            memory = ring.memory
            pinned = self._pages.register(self._backend, memory)
            self._rings[id(ring)] = (ring, memory if pinned else None)

    def _give_back(self, memory: Bytes | None) -> None:
        if memory is not None:
            self._pages.unregister(self._backend, memory)

    def finish(self) -> None:
        """Synchronise, then give pages back, then drop the leases; in this order.

        When the first fails the device is lost and may still read the slots: they stay held.
        """
        with self._turn:
            self._over = True
        for copy in (*self._in_flight, *self._by_consumer):
            if copy.event is None:
                raise Broken(
                    "a copy was started that nothing can be told about: its slot stays taken"
                )
            self._backend.synchronize(copy.event)
        while self._rings:
            self._give_back(self._rings.popitem()[1][1])
        self._in_flight.clear()
        self._by_consumer.clear()

    # -- the consumer's thread ---------------------------------------------------------------------

    def receive(self, batch: Batch) -> Any:
        """The value, safe for whatever this thread's current stream is given from now on.

        Does not wait.
        """
        assert batch.device is not None
        copy = batch.device
        if copy.event is not None:
            self._await(copy)
            self._protect(copy)
        return batch.value

    def send_here(self, batch: Batch) -> Batch | Failure:
        """As `_send`, of what the consumer has drawn: see NOTE [copies by the consumer].

        Raises
        ------
        Closed, Broken
            The streamer has ended, or the device cannot be used any more.
        """
        error = None
        with self._turn:
            if self._over:
                self.output.check()
                raise Closed("the loader is closed")
            if not self._stage(batch):
                try:
                    self._free_done(self._by_consumer)
                    with self._backend.aside():
                        error = self._start(batch, self._by_consumer)
                except Exception as broken:
                    self._break(broken)
                    self.output.check()
                    raise
        self.meter.batches += 1
        return batch if error is None else Failure(error, lease=batch.lease)

    def _stage(self, batch: Batch) -> bool:
        """Copy a batch on the consumer's stream; return whether that could be done.

        Nothing is in flight then. One for the caller's tensors is copied into them later, and not
        here: two copies would take a third longer.
        """
        layout, buffer = batch.layout, batch.buffer
        if layout is None or buffer is None or buffer.ring is not None:
            return False
        if layout.nbytes > STAGED_BYTES:
            return False
        if self._covers(layout):
            batch.value = layout.rebuild(list(map(tensors.to_tensor, layout.views(buffer.root))))
            batch.device = DeviceCopy((), None)
            batch.detach()
            return True
        try:
            block, values = self._backend.upload_here(buffer.root, layout.nbytes, layout.regions)
            batch.value = self._value(layout, buffer, values)
        except Exception:  # the other way finds out whether it is of this batch alone
            return False
        batch.device = DeviceCopy((block,), None)
        batch.detach()
        return True

    def _await(self, copy: DeviceCopy) -> None:
        self._backend.wait(copy.event)

    def _protect(self, copy: DeviceCopy) -> None:
        for block in copy.blocks:
            self._backend.protect(block)


def _idle(ring: SlotRing) -> bool:
    """Whether no batch lies in it.

    A ring in use may be idle for a moment too: then it is page-locked again.
    """
    return ring.free + ring.retired >= ring.count
