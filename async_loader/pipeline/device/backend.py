"""What the streamer asks of a device, and which backend a device has. Decides nothing about slots,
order or lifetimes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from async_loader.batch_layout import Region
from async_loader.errors import ConfigError

if TYPE_CHECKING:
    import torch

Bytes = npt.NDArray[np.uint8]
Pairs: TypeAlias = list[tuple[Any, Any]]


@runtime_checkable
class BufferWriter(Protocol):
    """Writes into arrays of one device, in the order of the consumer's stream. The consumer's
    thread.
    """

    def holds(self, value: Any) -> bool:
        """Whether ``value`` is an array on this device."""

    def current(self) -> Any:
        """This thread's current stream."""

    def follow(self, stream: Any) -> None:
        """Let this thread's current stream wait for all that ``stream`` was given so far."""

    def write(self, pairs: Pairs) -> None:
        """Copy (target, values) each, of the same shape and dtype, on the current stream."""


@runtime_checkable
class DeviceBackend(BufferWriter, Protocol):
    """A device with streams. What a block, an array or an event is, is the backend's own affair.

    Thread rule: `wait`, `protect` and `upload_here` are called in the consumer's thread, `open` in
    the streamer's, and everything else in both, also at the same time: by the consumer within
    `aside` what copies or records.
    """

    def open(self) -> None:
        """Make the side stream, and make it the current stream of this thread. Called once,
        first.
        """

    def aside(self) -> AbstractContextManager[Any]:
        """Make the side stream the current one of this thread within the block. After `open`."""

    def register(self, memory: Bytes) -> bool:
        """Page-lock ``memory``. ``False``: could not; never raises.

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

    def upload_here(
        self, root: Bytes, nbytes: int, regions: Sequence[Region]
    ) -> tuple[Any, list[Any]]:
        """As `upload` and `arrays`, on this thread's current stream; ``root`` may change as soon as
        this returns. At most `STAGED_BYTES`.
        """

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


BY_NAME: dict[object, Callable[[], DeviceBackend]] = {}
"""Makers of other devices than torch's, for tests."""


def backend_for(device: Any) -> DeviceBackend:
    """The backend of a device.

    Parameters
    ----------
    device : str | torch.device | DeviceBackend
        "cuda", "cuda:1" (also of ROCm, which torch names alike), or a backend of your own.

    Raises
    ------
    ConfigError
        When torch does not know the device, or this machine does not have it.
    """
    if isinstance(device, DeviceBackend):
        return device
    if device in BY_NAME:
        return BY_NAME[device]()
    import torch

    from async_loader.pipeline.device.cuda_backend import CudaBackend

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
