"""A model of a device with streams in this process.

Operations run as late as the device's rules allow.

Use it in place of a loader's device: ``AsyncDataLoader(source, 64, device=FakeBackend())``, or
``device="fake"``. Its arrays are read with ``.cpu()`` or `FakeBackend.launch`, which go through the
consumer's current stream as kernels on a real device do. The model is strict about these rules:

* A copy runs when its stream is advanced, by a test or by a waiting thread, and reads page-locked
  memory then.
* Page-locked slots are filled with 0xDB when their lease ends; new device memory holds 0xDB too.
* The allocator reuses a dropped block at once. Only `protect` delays that, until the work that the
  protected stream had at that moment is done.
* Each thread has its own current stream. All threads begin with the same default stream.
* Errors that the bytes do not show (a copy from memory that is no longer page-locked, a stream that
  waits for itself) are listed in `FakeBackend.violations`.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors
from async_loader.batch_layout import Region
from async_loader.pipeline.device.cuda_backend import CudaBackend

if TYPE_CHECKING:
    import torch


POISON = 0xDB

Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True, eq=False)
class FakeEvent:
    """Occurs when ``stream`` reaches it."""

    stream: FakeStream
    happened: bool = False


@dataclass(slots=True, eq=False)
class _Op:
    """One operation of a stream. With ``after``, not before that event."""

    run: Callable[[], None]
    after: FakeEvent | None = None


@dataclass(slots=True, eq=False)
class FakeStream:
    """Operations in order."""

    name: str
    ops: deque[_Op] = field(default_factory=deque)

    def __repr__(self) -> str:
        return f"<FakeStream {self.name}: {len(self.ops)} pending>"


@dataclass(slots=True, eq=False, weakref_slot=True)
class FakeBlock:
    """A block of device memory; free again when the last reference to it dies."""

    memory: Bytes
    users: list[FakeStream]


@dataclass(slots=True, eq=False)
class FakeResult:
    """The data that a kernel has read once it ran: one array for each of its arguments."""

    event: FakeEvent
    values: list[npt.NDArray[Any]] = field(default_factory=list)


class FakeArray:
    """An array on the fake device.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype | str
        A name if numpy has no such dtype.
    device : str
        "fake".
    backend : FakeBackend
    """

    device = "fake"

    def __init__(
        self, backend: FakeBackend, block: FakeBlock, region: Region, odd_dtype: str = ""
    ) -> None:
        self.block = block
        self.region = region
        self.shape = region.shape
        self.dtype: Any = odd_dtype or region.dtype
        self.backend = backend
        self._odd = odd_dtype

    def __len__(self) -> int:
        return self.shape[0]

    def data_ptr(self) -> int:
        """Return the address of the first element, as a tensor's does."""
        address: int = self.block.memory.ctypes.data
        return address + self.region.offset

    def element_size(self) -> int:
        """Return the bytes of an element."""
        return self.region.dtype.itemsize

    def stride(self) -> tuple[int, ...]:
        """Return the steps from element to element of each axis, in elements."""
        view = _view(self.block.memory, self.region)
        return tuple(step // view.itemsize for step in view.strides)

    def __repr__(self) -> str:
        return f"<FakeArray {list(self.shape)} {self.dtype}>"

    def numpy(self) -> npt.NDArray[Any]:
        """Return the values after all pending work of this thread's current stream.

        Waits, like a device.
        """
        result = self.backend.launch(self)
        self.backend.synchronize(result.event)
        return result.values[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def cpu(self) -> torch.Tensor:
        """Like `numpy`, as a tensor."""
        values = self.numpy()
        return (
            tensors.from_parts((values, self.shape), self._odd)
            if self._odd
            else tensors.to_tensor(values)
        )


@dataclass(slots=True, eq=False)
class _Mapping:
    """Page-locked memory, and the pending copies from it."""

    memory: Bytes
    pending: int = 0
    registered: bool = True

    def slice(self, address: int, nbytes: int) -> Bytes | None:
        """Return the same bytes on the mapping, so that a lease on them is not kept alive."""
        start = address - self.memory.ctypes.data
        return (
            self.memory[start : start + nbytes]
            if 0 <= start <= self.memory.nbytes - nbytes
            else None
        )


class FakeBackend(CudaBackend):
    """A backend; the module's docstring lists the rules of the model. Any thread.

    Attributes
    ----------
    default : FakeStream
        The current stream of every thread that has not set another.
    side : FakeStream
        The stream of the streamer.
    violations : list of str
        Operations that would be errors on a device. Any entry is a bug.
    host_syncs : Counter
        Number of waits for the device by thread name.
    copies, pageable_copies, registrations, unregistrations : int
    """

    def __init__(self) -> None:
        self.default = FakeStream("default")
        self.side = FakeStream("side")
        self.violations: list[str] = []
        self.host_syncs: Counter[str] = Counter()
        self.copies = self.pageable_copies = 0
        self.registrations = self.unregistrations = 0
        self._mappings: list[_Mapping] = []
        self._free: list[tuple[Bytes, list[FakeEvent]]] = []
        self._dropped: deque[tuple[Bytes, list[FakeStream]]] = deque()
        self._local = threading.local()
        self._lock = threading.RLock()

    def __str__(self) -> str:
        return "fake"

    # -- streams, for the consumer and for tests ---------------------------------------------------

    def current_stream(self) -> FakeStream:
        """Return the current stream of the calling thread."""
        found: FakeStream = getattr(self._local, "stream", self.default)
        return found

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[FakeStream]:
        """Set the current stream of the calling thread within the block."""
        before = self.current_stream()
        self._local.stream = stream
        try:
            yield stream
        finally:
            self._local.stream = before

    def launch(self, *arrays: FakeArray) -> FakeResult:
        """Queue a kernel on the current stream that reads the arrays when it runs.

        It keeps no array alive.
        """
        reads = [(array.block.memory, array.region) for array in arrays]
        with self._lock:
            stream = self.current_stream()
            result = FakeResult(FakeEvent(stream))
            stream.ops.append(
                _Op(lambda: result.values.extend(_read(memory, region) for memory, region in reads))
            )
            self._push_event(result.event)
        return result

    def advance(self, stream: FakeStream, count: int = 1) -> int:
        """Run the next ``count`` operations, or those before the first that has to wait;
        return how many ran.
        """
        with self._lock:
            for ran in range(count):
                if not stream.ops or (
                    stream.ops[0].after is not None and not stream.ops[0].after.happened
                ):
                    return ran
                stream.ops.popleft().run()
        return count

    def drain(self, stream: FakeStream) -> None:
        """Run all pending operations of the stream, and those that it waits for."""
        with self._lock:
            while stream.ops:
                after = stream.ops[0].after
                if after is not None:
                    self._reach(after)
                self.advance(stream)

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike) -> FakeArray:
        """Return a new array, for example for a loader's ``into``."""
        kind = np.dtype(dtype)
        with self._lock:
            block = self._allocate(math.prod(shape) * kind.itemsize)
        return FakeArray(self, block, Region("", kind, tuple(shape), 0))

    # -- CudaBackend, in the streamer's thread ---------------------------------------------------

    def open(self) -> None:
        self._local.stream = self.side

    def register(self, memory: Bytes) -> bool:
        with self._lock:
            self.registrations += 1
            if self._mapping_of(memory.ctypes.data, memory.nbytes) is not None:
                self.violations.append("memory was page-locked twice")
            self._mappings.append(_Mapping(memory))
        return True

    def unregister(self, memory: Bytes) -> None:
        with self._lock:
            self.unregistrations += 1
            for mapping in self._mappings:
                if mapping.memory.ctypes.data == memory.ctypes.data:
                    break
            else:
                self.violations.append("memory was released that is not page-locked")
                return
            if mapping.pending:
                self.violations.append(
                    f"page-locked memory was released under {mapping.pending} pending copies"
                )
            mapping.registered = False
            self._mappings.remove(mapping)

    def upload(self, root: Bytes, nbytes: int) -> FakeBlock:
        with self._lock:
            mapping = self._mapping_of(root.ctypes.data, root.nbytes)
            slot = None if mapping is None else mapping.slice(root.ctypes.data, root.nbytes)
            if slot is not None:
                weakref.finalize(root, _poison, os.getpid(), slot).atexit = False
            return self._copy(root[:nbytes])

    def upload_leaf(self, tensor: torch.Tensor) -> FakeArray:
        array, odd = tensors.to_parts(tensor)
        values, shape = array if odd else (array, array.shape)
        source = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        with self._lock:
            block = self._copy(source)
        # The bytes of a dtype unknown to numpy are read unchanged.
        region = Region("", values.dtype, (source.nbytes,) if odd else shape, 0)
        leaf = FakeArray(self, block, region, odd)
        leaf.shape = tuple(shape)
        return leaf

    def arrays(self, block: FakeBlock, regions: Sequence[Region]) -> list[Any]:
        return [FakeArray(self, block, region) for region in regions]

    def record(self, stream: FakeStream | None = None) -> FakeEvent:
        with self._lock:
            return self._push_event(FakeEvent(stream or self.side))

    def aside(self) -> contextlib.AbstractContextManager[FakeStream]:
        return self.stream(self.side)

    def upload_here(
        self, root: Bytes, nbytes: int, regions: Sequence[Region]
    ) -> tuple[FakeBlock, list[Any]]:
        with self._lock:
            stream = self.current_stream()
            if stream is self.side:
                self.violations.append("a batch was copied on the side stream as the consumer's")
            if self._mapping_of(root.ctypes.data, root.nbytes) is not None:
                self.violations.append("a batch in page-locked memory was copied as if staged")
            block = self._copy(root[:nbytes], stream)
            # The allocator gives such memory to the same stream again, or waits as for `protect`.
            block.users.append(stream)
        return block, self.arrays(block, regions)

    def done(self, event: FakeEvent) -> bool:
        return event.happened

    def synchronize(self, event: FakeEvent) -> None:
        with self._lock:
            self.host_syncs[threading.current_thread().name] += 1
            self._reach(event)

    # -- CudaBackend, in the consumer's thread ---------------------------------------------------

    def wait(self, event: FakeEvent) -> None:
        with self._lock:
            stream = self.current_stream()
            if stream is event.stream:
                self.violations.append(
                    f"stream {stream.name!r} waits for itself: it is not the consumer's"
                )
            stream.ops.append(_Op(_nothing, event))

    def protect(self, block: FakeBlock | FakeArray) -> None:
        with self._lock:
            stream = self.current_stream()
            if stream is self.side:
                self.violations.append(
                    "a block was protected for the side stream, to which it belongs anyway"
                )
            users = block.block.users if isinstance(block, FakeArray) else block.users
            if stream not in users:
                users.append(stream)

    # -- CudaBackend, in the consumer's thread ----------------------------------------------------

    def holds(self, value: object) -> bool:
        return isinstance(value, FakeArray) and value.backend is self

    def current(self) -> FakeStream:
        return self.current_stream()

    def follow(self, stream: FakeStream) -> None:
        with self._lock:
            self.wait(self._push_event(FakeEvent(stream)))

    def write(self, pairs: list[tuple[FakeArray, FakeArray | torch.Tensor]]) -> None:
        for target, values in pairs:
            self._write(target, values)

    def _write(self, target: FakeArray, values: FakeArray | torch.Tensor) -> None:
        """Queue a copy on the current stream, which keeps neither array alive. A tensor on the CPU
        is read at once.
        """
        if not isinstance(values, FakeArray):
            self._write_staged(target, tensors.to_numpy(values).copy())
            return
        to, at, source, region = (
            target.block.memory,
            target.region,
            values.block.memory,
            values.region,
        )

        def copy() -> None:
            np.copyto(_view(to, at), _view(source, region), casting="no")

        with self._lock:
            self.current_stream().ops.append(_Op(copy))

    def _write_staged(self, target: FakeArray, staged: npt.NDArray[Any]) -> None:
        to, at = target.block.memory, target.region
        with self._lock:
            self.copies += 1
            self.pageable_copies += 1
            self.current_stream().ops.append(_Op(lambda: np.copyto(_view(to, at), staged)))

    # -- inside ------------------------------------------------------------------------------------

    def _push_event(self, event: FakeEvent) -> FakeEvent:
        def happen() -> None:
            event.happened = True

        event.stream.ops.append(_Op(happen))
        return event

    def _reach(self, event: FakeEvent) -> None:
        while not event.happened:
            after = event.stream.ops[0].after
            if after is not None:
                self._reach(after)
            self.advance(event.stream)

    def _mapping_of(self, address: int, nbytes: int) -> _Mapping | None:
        return next((m for m in self._mappings if m.slice(address, nbytes) is not None), None)

    def _copy(self, source: Bytes, stream: FakeStream | None = None) -> FakeBlock:
        """Copy to the device.

        Page-locked memory is read when the copy runs; other memory at once, as CUDA does.
        """
        block = self._allocate(source.nbytes)
        target = block.memory[: source.nbytes]
        mapping = self._mapping_of(source.ctypes.data, source.nbytes)
        self.copies += 1
        if mapping is None:
            self.pageable_copies += 1
            staged = source.copy()
            (stream or self.side).ops.append(_Op(lambda: np.copyto(target, staged)))
            return block
        mapping.pending += 1
        late = mapping.slice(source.ctypes.data, source.nbytes)
        assert late is not None
        self.side.ops.append(_Op(lambda: self._copy_late(mapping, late, target)))
        return block

    def _copy_late(self, mapping: _Mapping, source: Bytes, target: Bytes) -> None:
        mapping.pending -= 1
        if mapping.registered:
            np.copyto(target, source)
        else:
            target[:] = POISON
            self.violations.append(
                f"a copy of {source.nbytes} bytes read memory that is no longer page-locked"
            )

    def _allocate(self, nbytes: int) -> FakeBlock:
        """Return the block that was dropped last,
        if it is large enough and no known work uses it.
        """
        while self._dropped:
            memory, users = self._dropped.popleft()
            self._free.append((memory, [self._push_event(FakeEvent(stream)) for stream in users]))
        for number in reversed(range(len(self._free))):
            memory, guards = self._free[number]
            if memory.nbytes >= nbytes and all(guard.happened for guard in guards):
                del self._free[number]
                break
        else:
            memory = np.full(nbytes, POISON, np.uint8)
        block = FakeBlock(memory, [])
        # The finalizer takes no lock: it runs in whichever thread drops the last reference.
        weakref.finalize(block, self._dropped.append, (memory, block.users)).atexit = False
        return block


def _nothing() -> None:
    """Do nothing: the operation of a stream that has waited."""


def _view(memory: Bytes, region: Region) -> npt.NDArray[Any]:
    return np.ndarray(region.shape, region.dtype, memory, region.offset)


def _read(memory: Bytes, region: Region) -> npt.NDArray[Any]:
    return _view(memory, region).copy()


def _poison(pid: int, slot: Bytes) -> None:
    if os.getpid() == pid:
        slot[:] = POISON
