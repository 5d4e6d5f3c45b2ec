"""CUDA (and ROCm, which torch names alike): streams and events of torch.cuda, and page-locked
slots. And which backend a device has.

torch is imported inside functions only.

# NOTE [registered memory and torch]
Slots are page-locked with cudaHostRegister, which torch's caching host allocator does not know: it
protects its own blocks from reuse until their copies are done, and not these. The caller that
copies from a slot holds its lease until the copy's event is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors
from async_loader.batch_layout import Region
from async_loader.errors import ConfigError

if TYPE_CHECKING:
    import torch

Bytes = npt.NDArray[np.uint8]
_log = logging.getLogger("async_loader")
_ALIGNED = 64
_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every CUDA context of the process


@dataclass(frozen=True, slots=True)
class BlockViews:
    """How the tensors of a batch lie on a block of bytes; made once for batches that are alike.

    Attributes
    ----------
    regions : sequence of Region
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
            dtype, shape = tensors.to_tensor(np.empty(0, region.dtype)).dtype, region.shape
            if dtype not in dtypes:
                dtypes.append(dtype)
            strides = [1] * len(shape)
            for axis in range(len(shape) - 1, 0, -1):
                strides[axis - 1] = strides[axis] * max(shape[axis], 1)
            offset = region.offset // region.dtype.itemsize
            views.append((dtypes.index(dtype), shape, strides, offset))
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


class CudaBackend:
    """A device of CUDA. What a block, an array or an event is, is its own affair.

    Thread rule: `wait`, `protect` and `upload_here` are called in the consumer's thread, `open` in
    the streamer's, and everything else in both, also at the same time: by the consumer within
    `aside` what copies or records.

    Streams and events are those of torch.cuda throughout: those of torch.accelerator must not be
    mixed with them, and ignore ``blocking``, without which `synchronize` burns the core on which
    the learner may run.

    Parameters
    ----------
    device : torch.device
        Without an index: the one that is current in the calling thread.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        # Do not start CUDA here: the workers may be forked after this.
        cuda = _cuda()
        current = cuda.current_device() if cuda.is_initialized() else 0
        self.device = torch.device("cuda", current) if device.index is None else device
        self._side: Any = None
        self._waits: Any = None
        self._woken: Any = None
        self._views: BlockViews | None = None
        self._warned = False

    def __str__(self) -> str:
        return str(self.device)

    def open(self) -> None:
        """Make the side stream, and make it the current stream of this thread. Called once,
        first.
        """
        cuda = _cuda()
        cuda.set_device(self.device)
        self._side = cuda.Stream(device=self.device)
        self._waits = cuda.Stream(device=self.device)
        self._woken = cuda.Event(blocking=True)
        cuda.set_stream(self._side)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Make the side stream the current one of this thread within the block. After `open`."""
        import torch

        # as in the streamer's thread: what is made here may be used in training
        with torch.inference_mode(False), _cuda().stream(self._side):
            yield

    # -- copies ------------------------------------------------------------------------------------

    def upload(self, root: Bytes, nbytes: int) -> torch.Tensor:
        """A new block on the device, and its copy from the first ``nbytes`` of ``root``, both on
        the side stream.

        Does not wait. The caller keeps ``root`` unchanged until an event recorded later is done.
        """
        import torch

        host = torch.from_numpy(root if len(root) == nbytes else root[:nbytes])
        # Whole multiples of the largest item, so that the block can be seen as any dtype.
        room = -(-nbytes // _ALIGNED) * _ALIGNED
        block = torch.empty(room, dtype=torch.uint8, device=self.device)
        (block if room == nbytes else block[:nbytes]).copy_(host, non_blocking=True)
        return block

    def upload_leaf(self, tensor: torch.Tensor) -> torch.Tensor:
        """As `upload`, for one CPU tensor of any dtype and shape: the block is the array."""
        return tensor.to(self.device, non_blocking=True)

    def upload_here(
        self, root: Bytes, nbytes: int, regions: Sequence[Region]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """As `upload` and `arrays`, on this thread's current stream; ``root`` may change as soon as
        this returns. At most `STAGED_BYTES`.
        """
        import torch

        inferring = torch.is_inference_mode_enabled()
        with torch.inference_mode(False) if inferring else nullcontext():
            block = self.upload(root, nbytes)
            return block, self.arrays(block, regions)

    def arrays(self, block: torch.Tensor, regions: Sequence[Region]) -> list[torch.Tensor]:
        """One device array per region, on the memory of ``block``, which they keep."""
        views = self._views
        if views is None or views.regions is not regions:
            views = self._views = BlockViews.of(regions)
        return views.on(block)

    def record(self) -> Any:
        """An event behind everything that the side stream was given so far."""
        event = _cuda().Event()
        event.record(self._side)
        return event

    def done(self, event: Any) -> bool:
        """Whether the event has happened. Does not wait."""
        return bool(event.query())

    def synchronize(self, event: Any) -> None:
        """Sleep, by an event that was made for it: the driver keeps a descriptor for each."""
        if not event.query():
            self._waits.wait_event(event)
            self._woken.record(self._waits)
            self._woken.synchronize()

    def wait(self, event: Any) -> None:
        """Let this thread's current stream wait for the event; the thread itself does not."""
        event.wait(self.current())

    def protect(self, block: torch.Tensor) -> None:
        """Tell the device's allocator that this thread's current stream uses the block."""
        block.record_stream(self.current())

    # -- the caller's tensors, in the consumer's thread --------------------------------------------

    def holds(self, value: Any) -> bool:
        """Whether ``value`` is an array on this device."""
        return tensors.is_tensor(value) and value.device == self.device

    def current(self) -> Any:
        """This thread's current stream."""
        return _cuda().current_stream(self.device)

    def follow(self, stream: Any) -> None:
        """Let this thread's current stream wait for all that ``stream`` was given so far."""
        self.current().wait_stream(stream)

    def write(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copy (target, values) each, of the same shape and dtype, on the current stream."""
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

    # -- page-locking ------------------------------------------------------------------------------

    def register(self, memory: Bytes) -> bool:
        """Page-lock ``memory``. ``False``: could not; never raises.

        Cost: about 0.1 s a GB, once.
        """
        address = memory.ctypes.data
        try:
            code = int(_cuda().cudart().cudaHostRegister(address, memory.nbytes, _PORTABLE))
            if not code:
                return True
            self._drain()
            error = f"cudaHostRegister of {memory.nbytes} bytes failed with CUDA error {code}"
        except Exception as failed:  # whatever it is, the copies work without
            error = str(failed)
        if not self._warned:
            self._warned = True
            # a warning that is made an error would end the streamer's thread
            _log.warning(
                "batches are copied to %s from pageable memory, which is slower: %s",
                self.device,
                error,
            )
        return False

    def unregister(self, memory: Bytes) -> None:
        """Undo `register`. No copy from it may be pending."""
        code = int(_cuda().cudart().cudaHostUnregister(memory.ctypes.data))
        if code:
            self._drain()
            _log.warning("page-locked memory could not be released: CUDA error %d", code)

    def _drain(self) -> None:
        """Take away the error that a failed runtime call leaves behind in this thread.

        The next launch would report it as its own; so this launches something, and lets that report
        it.
        """
        import torch

        try:
            torch.empty(1, device=self.device).fill_(0)
        except RuntimeError:
            _log.debug("a pending CUDA error was drained", exc_info=True)


def _cuda() -> Any:
    import torch

    return torch.cuda


BY_NAME: dict[object, Callable[[], CudaBackend]] = {}
"""Makers of other devices than torch's, for tests."""


def backend_for(device: Any) -> CudaBackend:
    """The backend of a device.

    Parameters
    ----------
    device : str | torch.device | CudaBackend
        "cuda", "cuda:1" (also of ROCm, which torch names alike), or a backend of your own.

    Raises
    ------
    ConfigError
        When torch does not know the device, or this machine does not have it.
    """
    if isinstance(device, CudaBackend):
        return device
    if str(device) in BY_NAME:
        return BY_NAME[str(device)]()
    import torch

    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device {device!r} is nothing that torch knows: use 'cpu', 'cuda', 'cuda:0' ..."
        ) from error
    count = torch.cuda.device_count()
    if wanted.type != "cuda" or (wanted.index or 0) >= count:
        raise ConfigError(
            f"device {str(wanted)!r} is not available, there are {count} of CUDA: use "
            "device='cpu', or the index of one that is there"
        )
    return CudaBackend(wanted)
