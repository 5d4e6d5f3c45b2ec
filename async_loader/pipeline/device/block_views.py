"""The tensors of a batch, as views of one block on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from async_loader import tensors
from async_loader.batch_layout import Region

if TYPE_CHECKING:
    import torch


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
