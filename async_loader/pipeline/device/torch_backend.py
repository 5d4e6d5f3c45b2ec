"""Accelerators through torch.accelerator. torch is imported inside functions only."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from async_loader import tensors
from async_loader.batch_layout import Region
from async_loader.pipeline.device.backend import Bytes

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("async_loader")
_ALIGNED = 64


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
            _log.warning(
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
