"""What the streamer asks of a device, and torch's answer to it. Decides nothing about slots, order
or lifetimes.

torch is imported inside functions only.

# NOTE [registered memory and torch]
Slots are page-locked with cudaHostRegister, which torch's caching host allocator does not know: it
protects its own blocks from reuse until their copies are done, and not these. The caller that
copies from a slot holds its lease until the copy's event is done.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from async_loader import tensors
from async_loader.batch_layout import Region
from async_loader.errors import ConfigError

if TYPE_CHECKING:
    import torch

log = logging.getLogger("async_loader")

Bytes = npt.NDArray[np.uint8]

_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every CUDA context of the process
_ALREADY_REGISTERED = 712  # cudaErrorHostMemoryAlreadyRegistered
_LARGEST_REGISTRATION = 16 << 30
_ALIGNED = 64


@runtime_checkable
class DeviceBackend(Protocol):
    """A device with streams. What a block, an array or an event is, is the backend's own affair.

    Thread rule: `wait` and `protect` are called in the consumer's thread, everything else in the
    streamer's. See also `DirectBackend`.
    """

    def open(self) -> None:
        """Make the side stream, and make it the current stream of this thread. Called once,
        first.
        """

    def register(self, memory: Bytes, unit: int) -> bool:
        """Page-lock ``memory``, which is copied from in pieces of ``unit`` bytes. ``False``: could
        not; never raises.

        Cost: about 0.1 s a GB, once.
        """

    def unregister(self, memory: Bytes) -> None:
        """Undo `register`. No copy from it may be pending."""

    def upload(self, root: Bytes, nbytes: int) -> Any:
        """A new block on the device, and its copy from the first ``nbytes`` of ``root``, both on
        the side stream.

        Does not wait. The caller keeps ``root`` unchanged until an event recorded later is done.
        """

    def upload_leaf(self, tensor: torch.Tensor) -> Any:
        """As `upload`, for one CPU tensor of any dtype and shape: the block is the array."""

    def arrays(self, block: Any, regions: Sequence[Region]) -> list[Any]:
        """One device array per region, on the memory of ``block``, which they keep."""

    def record(self) -> Any:
        """An event behind everything that the side stream was given so far."""

    def done(self, event: Any) -> bool:
        """Whether the event has happened. Does not wait."""

    def synchronize(self, event: Any) -> None:
        """Wait in this thread until the event has happened."""

    def wait(self, event: Any) -> None:
        """Let this thread's current stream wait for the event; the thread itself does not."""

    def protect(self, block: Any) -> None:
        """Tell the device's allocator that this thread's current stream uses the block."""


@runtime_checkable
class DirectBackend(Protocol):
    """A backend whose methods for the streamer's thread, but for `open`, may be called in the
    consumer's as well: those that copy or record within `aside`. Both threads may call them at the
    same time.
    """

    def aside(self) -> AbstractContextManager[Any]:
        """Make the side stream the current one of this thread within the block. After `open`."""


@runtime_checkable
class StagingBackend(DirectBackend, Protocol):
    """A backend that can copy small batches on the consumer's own stream. All of this is called in
    the consumer's thread.
    """

    def upload_here(
        self, root: Bytes, nbytes: int, regions: Sequence[Region]
    ) -> tuple[Any, list[Any]]:
        """As `upload` and `arrays`, on this thread's current stream; ``root`` may change as soon as
        this returns. At most `STAGED_BYTES`.
        """

    def current(self) -> Any:
        """This thread's current stream."""

    def follow(self, stream: Any) -> None:
        """Let this thread's current stream wait for all that ``stream`` was given so far."""


def backend_for(device: Any) -> DeviceBackend:
    """The backend of a device.

    Parameters
    ----------
    device : str | torch.device | DeviceBackend
        An accelerator that torch has ("cuda", "cuda:1", "xpu"); "fake" or a backend of your own for
        tests.

    Raises
    ------
    ConfigError
        When torch does not know the device, or this machine does not have it.
    """
    if isinstance(device, DeviceBackend):
        return device
    if str(device) == "fake":
        from async_loader.testing.fake_device import FakeBackend

        return FakeBackend()
    found = _find(device)
    return CudaBackend(found) if found.type == "cuda" else TorchBackend(found)


def _find(device: str | torch.device) -> torch.device:
    import torch

    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device {device!r} is nothing that torch knows: use 'cpu', 'cuda', 'cuda:0' ..."
        ) from error
    present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if present is None or present.type != wanted.type:
        has = "no accelerator" if present is None else repr(present.type)
        raise ConfigError(
            f"device {str(wanted)!r} is not available, torch has {has} here: use device='cpu'"
        )
    count = torch.accelerator.device_count()
    if wanted.index is not None and wanted.index >= count:
        raise ConfigError(
            f"device {str(wanted)!r} is not available, there are {count}: use an index below "
            f"{count}"
        )
    return wanted


class TorchBackend:
    """Any accelerator of torch, through torch.accelerator, torch.Stream and torch.Event. Copies are
    pageable.

    Parameters
    ----------
    device : torch.device
        Without an index: the one that is current in the calling thread.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device if device.index is not None else self._current(device)
        self._side: Any = None
        self._views: BlockViews | None = None
        self._warned = False

    def __str__(self) -> str:
        return str(self.device)

    def _current(self, device: torch.device) -> torch.device:
        import torch

        return torch.empty(0, device=device).device

    def open(self) -> None:
        import torch

        self._side = torch.Stream(device=self.device)
        # also makes its device the current one of this thread
        torch.accelerator.set_stream(self._side)

    def register(self, memory: Bytes, unit: int) -> bool:
        self._warn(f"{self.device.type} offers no way to page-lock shared memory")
        return False

    def _warn(self, reason: str) -> None:
        """Once. Through the log: a warning that is made an error would end the streamer's
        thread.
        """
        if not self._warned:
            self._warned = True
            log.warning(
                "batches are copied to %s from pageable memory, which is slower: %s",
                self.device,
                reason,
            )

    def unregister(self, memory: Bytes) -> None:
        """Nothing was registered."""

    def upload(self, root: Bytes, nbytes: int) -> torch.Tensor:
        import torch

        host = torch.from_numpy(root if len(root) == nbytes else root[:nbytes])
        # Whole multiples of the largest item, so that the block can be seen as any dtype.
        room = -(-nbytes // _ALIGNED) * _ALIGNED
        block = torch.empty(room, dtype=torch.uint8, device=self.device)
        (block if room == nbytes else block[:nbytes]).copy_(host, non_blocking=True)
        return block

    def upload_leaf(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=True)

    def arrays(self, block: torch.Tensor, regions: Sequence[Region]) -> list[torch.Tensor]:
        views = self._views
        if views is None or views.regions is not regions:
            views = self._views = BlockViews.of(regions)
        return views.on(block)

    def record(self) -> Any:
        return self._side.record_event()

    @contextmanager
    def aside(self) -> Iterator[None]:
        import torch

        accelerator = torch.accelerator
        outer, before = accelerator.current_stream(), accelerator.current_stream(self.device)
        accelerator.set_stream(self._side)
        try:
            # as in the streamer's thread: what is made here may be used in training
            with torch.inference_mode(False):
                yield
        finally:
            accelerator.set_stream(before)
            accelerator.set_stream(outer)  # and its device

    def done(self, event: torch.Event) -> bool:
        return bool(event.query())

    def synchronize(self, event: torch.Event) -> None:
        event.synchronize()

    def wait(self, event: torch.Event) -> None:
        self._consumers().wait_event(event)

    def protect(self, block: torch.Tensor) -> None:
        block.record_stream(self._consumers())

    # -- the caller's tensors: see `BufferWriter` --------------------------------------------------

    def holds(self, value: Any) -> bool:
        return tensors.is_tensor(value) and value.device == self.device

    def current(self) -> Any:
        return self._consumers()

    def follow(self, stream: Any) -> None:
        self._consumers().wait_stream(stream)

    def write(self, target: torch.Tensor, values: torch.Tensor) -> None:
        self.write_each([(target, values)])

    def write_each(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """As `write`, of each target and its values."""
        import torch

        alike: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for target, value in pairs:
            # torch copies lists of neither conjugates nor negatives
            if value.device.type == "cpu" or target.is_conj() or target.is_neg():
                target.copy_(value.detach(), non_blocking=True)
                continue
            into, of = alike.setdefault(target.dtype, ([], []))
            into.append(target)
            of.append(value.detach() if value.requires_grad else value)
        # as the optimizers of torch do it: one kernel for the tensors of a dtype
        for into, of in alike.values():
            torch._foreach_copy_(into, of, non_blocking=True)

    def _consumers(self) -> Any:
        """The current stream of this thread on our device, which need not be this thread's
        current device.
        """
        import torch

        return torch.accelerator.current_stream(self.device)


class CudaBackend(TorchBackend):
    """CUDA (and ROCm, which torch names alike): page-locked slots, and waits that sleep instead of
    spinning.

    Streams and events are those of torch.cuda throughout: the two families must not be mixed within
    one call, and ``torch.Event`` ignores ``blocking``, without which `synchronize` burns the core
    on which the learner may run.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._registered: dict[int, list[int]] = {}
        self._waits: Any = None
        self._woken: Any = None

    def _current(self, device: torch.device) -> torch.device:
        import torch

        # Do not start CUDA here: the workers may be forked after this.
        cuda = _cuda()
        return torch.device(device.type, cuda.current_device() if cuda.is_initialized() else 0)

    def open(self) -> None:
        cuda = _cuda()
        cuda.set_device(self.device)
        self._side = cuda.Stream(device=self.device)
        self._waits = cuda.Stream(device=self.device)
        self._woken = cuda.Event(blocking=True)
        cuda.set_stream(self._side)

    def record(self) -> Any:
        event = _cuda().Event()
        event.record(self._side)
        return event

    def synchronize(self, event: Any) -> None:
        """Sleep, by an event that was made for it: the driver keeps a descriptor for each."""
        if not event.query():
            self._waits.wait_event(event)
            self._woken.record(self._waits)
            self._woken.synchronize()

    @contextmanager
    def aside(self) -> Iterator[None]:
        import torch

        with torch.inference_mode(False), _cuda().stream(self._side):
            yield

    def upload_here(
        self, root: Bytes, nbytes: int, regions: Sequence[Region]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        import torch

        inferring = torch.is_inference_mode_enabled()
        with torch.inference_mode(False) if inferring else nullcontext():
            block = self.upload(root, nbytes)
            return block, self.arrays(block, regions)

    def wait(self, event: Any) -> None:
        event.wait(self._consumers())

    def _consumers(self) -> Any:
        return _cuda().current_stream(self.device)

    # -- page-locking ------------------------------------------------------------------------------

    def register(self, memory: Bytes, unit: int) -> bool:
        done: list[int] = []
        try:
            for start, size in pieces(memory.nbytes, unit):
                address = memory.ctypes.data + start
                code = int(self._runtime().cudaHostRegister(address, size, _PORTABLE))
                if code not in (0, _ALREADY_REGISTERED):
                    raise OSError(f"cudaHostRegister of {size} bytes failed with CUDA error {code}")
                if code == 0:
                    done.append(address)
                else:
                    self._drain()  # page-locked by other code, which also undoes it
        except Exception as error:  # whatever it is, the copies work without
            self._release(done)
            self._drain()
            self._warn(str(error))
            return False
        self._registered[memory.ctypes.data] = done
        return True

    def unregister(self, memory: Bytes) -> None:
        self._release(self._registered.pop(memory.ctypes.data, []))

    def _release(self, addresses: Sequence[int]) -> None:
        codes = [int(self._runtime().cudaHostUnregister(address)) for address in addresses]
        if any(codes):
            self._drain()
            log.warning(
                "page-locked memory could not be released: CUDA errors %s", sorted(set(codes) - {0})
            )

    def _drain(self) -> None:
        """Take away the error that a failed runtime call leaves behind in this thread.

        The next launch would report it as its own; so this launches something, and lets that report
        it.
        """
        import torch

        try:
            torch.empty(1, device=self.device).fill_(0)
        except RuntimeError:
            log.debug("a pending CUDA error was drained", exc_info=True)

    def _runtime(self) -> Any:
        return _cuda().cudart()


def _cuda() -> Any:
    import torch

    return torch.cuda


def pieces(nbytes: int, unit: int, largest: int = _LARGEST_REGISTRATION) -> list[tuple[int, int]]:
    """Start and size of registrations that cover ``nbytes``.

    Huge single registrations fail, as do empty ones, and a copy must not cross from one into the
    next: so they are cut between units.
    """
    size = max(1, largest // max(unit, 1)) * max(unit, 1)
    return [(start, min(size, nbytes - start)) for start in range(0, nbytes, size)]


@dataclass(frozen=True, slots=True)
class BlockViews:
    """How the tensors of a batch lie on a block of bytes; made once for batches that are alike.

    Attributes
    ----------
    regions : sequence of Region
        Contiguous, or strided as the region says.
    dtypes : list of torch.dtype
    views : list of (int, shape, strides, offset)
        For each region its place in ``dtypes``; strides and offset count items.
    """

    regions: Sequence[Region]
    dtypes: list[Any]
    views: list[tuple[int, tuple[int, ...], list[int], int]]

    @classmethod
    def of(cls, regions: Sequence[Region]) -> BlockViews:
        dtypes: list[Any] = []
        views = []
        for region in regions:
            dtype, item = _torch_dtype(region.dtype), region.dtype.itemsize
            if dtype not in dtypes:
                dtypes.append(dtype)
            strides = (
                _contiguous(region.shape)
                if region.strides is None
                else [stride // item for stride in region.strides]
            )
            views.append((dtypes.index(dtype), region.shape, strides, region.offset // item))
        return cls(regions, dtypes, views)

    def on(self, block: torch.Tensor) -> list[torch.Tensor]:
        """Tensors on a block of bytes, one per region.

        Parameters
        ----------
        block : uint8 tensor [n]
            n is a multiple of 16.
        """
        import torch

        typed = [block.view(dtype) for dtype in self.dtypes]
        as_strided = torch.as_strided
        # `data`: else autograd would take a change of one field in place for a change of all
        return [
            as_strided(typed[number], shape, strides, offset).data
            for number, shape, strides, offset in self.views
        ]


def _contiguous(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * max(shape[axis], 1)
    return strides


_TORCH: dict[np.dtype[Any], Any] = {}


def _torch_dtype(dtype: np.dtype[Any]) -> Any:
    known = _TORCH.get(dtype)
    if known is None:
        known = _TORCH[dtype] = tensors.to_tensor(np.empty(0, dtype)).dtype
    return known
