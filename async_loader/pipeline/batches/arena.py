"""Memory for the batch that is being made: within its slot, in a worker process that was given one;
elsewhere such as an earlier batch has left, when it is large (new pages cost more than what is
written into them).

What a door makes here need not be copied afterwards. Does not know what a batch is.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors
from async_loader.shm.array_pool import ArrayPool

if TYPE_CHECKING:
    import torch

_ALIGN = 64
_current = threading.local()
_blocks = ArrayPool()


def aligned(nbytes: int) -> int:
    """Round up to where the next piece begins."""
    return -(-nbytes // _ALIGN) * _ALIGN


class Arena:
    """Hands out pieces of a slot, one behind the other, from ``used`` on."""

    def __init__(self, root: npt.NDArray[np.uint8], used: int = 0) -> None:
        self.root = root
        self.address: int = root.__array_interface__["data"][0]
        self.used = aligned(used)
        self.wanted = 0
        """Bytes that would have sufficed for what `place` had no room for."""

    def take(self, nbytes: int) -> int | None:
        """The offset of ``nbytes`` free bytes, ``None`` if fewer are free."""
        if self.used + nbytes > len(self.root):
            return None
        offset, self.used = self.used, aligned(self.used + nbytes)
        return offset

    def offset_of(self, array: npt.NDArray[Any]) -> int | None:
        """Where the array lies in the slot; ``None`` if it does not, or not in one piece."""
        offset: int = array.__array_interface__["data"][0] - self.address
        inside = 0 <= offset <= len(self.root) - array.nbytes
        return offset if inside and array.nbytes and array.flags.c_contiguous else None

    def place(self, buffers: Sequence[memoryview]) -> list[tuple[int, int]] | None:
        """(offset, nbytes) of every buffer; those that lie elsewhere are copied in. ``None``
        when they do not fit.
        """
        table, missing = [], 0
        for buffer in buffers:
            outside = np.frombuffer(buffer, np.uint8) if buffer.nbytes else np.empty(0, np.uint8)
            offset = self.offset_of(outside)
            if offset is None:
                offset = self.take(buffer.nbytes)
                if offset is None:
                    missing += aligned(buffer.nbytes)
                    continue
                self.root[offset : offset + buffer.nbytes] = outside
            table.append((offset, buffer.nbytes))
        if missing:
            self.wanted = self.used + missing
            return None
        return table


@contextmanager
def within(arena: Arena | None) -> Iterator[None]:
    """`empty` takes from this arena, in this thread; from none where it is ``None``: for what
    outlives the batch, as whatever a dataset makes may do.
    """
    before, _current.arena = current(), arena
    try:
        yield
    finally:
        _current.arena = before


def current() -> Arena | None:
    """What `empty` takes from, in this thread."""
    return getattr(_current, "arena", None)


def empty(shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An uninitialised array for a part of the batch that is being made.

    In a worker process its memory is used again for a later batch: put it into the batch that this
    task returns, keep it nowhere else.
    """
    arena = current()
    kind = np.dtype(dtype)
    if kind.hasobject:
        return np.empty(shape, kind)
    if arena is None:
        return _blocks.array(tuple(shape), kind)
    offset = arena.take(math.prod(shape) * kind.itemsize)
    return (
        np.empty(shape, kind)
        if offset is None
        else np.ndarray(tuple(shape), kind, arena.root, offset)
    )


def stack(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """As ``numpy.stack`` for arrays of one shape and dtype, in `empty` memory.

    Raises
    ------
    ValueError
        As numpy does, when shapes differ.
    """
    first = arrays[0]
    if any(a.shape != first.shape or a.dtype != first.dtype for a in arrays):
        return np.stack(arrays)
    out = empty((len(arrays), *first.shape), first.dtype)
    if first.ndim:
        # One concatenation of the items' first axes: np.stack makes a view of every item, which
        # costs more than the copy.
        np.concatenate(
            arrays, out=out.reshape(len(arrays) * first.shape[0], *first.shape[1:]), casting="no"
        )
    else:
        out[...] = arrays
    return out


def stack_tensors(items: Sequence[Any]) -> Any:
    """As ``torch.stack`` for tensors, in `empty` memory. Raises as torch does."""
    import torch

    first = items[0]
    kind = tensors.numpy_dtype(first.dtype)
    if kind is None or type(first) is not torch.Tensor or not _plain(items, first):
        return torch.stack(list(items))
    return torch.stack(list(items), out=torch.from_numpy(empty((len(items), *first.shape), kind)))


def _plain(items: Sequence[Any], first: torch.Tensor) -> bool:
    """Whether torch would make a strided CPU tensor of the first one's dtype of them, without a
    gradient.
    """
    import torch

    if (
        first.layout is not torch.strided
        or first.device.type != "cpu"
        or any(t.is_nested for t in items)
    ):
        return False  # a nested one has no shape that could be asked for
    return all(
        t.dtype == first.dtype and not t.requires_grad and t.shape == first.shape for t in items
    )
