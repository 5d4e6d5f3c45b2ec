"""What the streamer asks of a device. Decides nothing about slots, order or lifetimes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from async_loader.batch_layout import Region
from async_loader.pipeline.batches.output_buffers import BufferWriter

if TYPE_CHECKING:
    import torch

Bytes = npt.NDArray[np.uint8]


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
