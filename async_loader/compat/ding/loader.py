"""DI-engine's AsyncDataLoader: its signature, checks and quirks,
on top of `async_loader.AsyncDataLoader`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from async_loader import async_data_loader, tree
from async_loader.compat.ding.collate import default_collate, is_tree_tensor
from async_loader.errors import SchemaError
from async_loader.pipeline.batches.collate import is_ignored
from async_loader.source import Source
from async_loader.sources.columns import EXPECTED, CallableSource

log = logging.getLogger("async_loader")


class AsyncDataLoader(async_data_loader.AsyncDataLoader):
    """An endless stream of batches, made ahead of time.

    Kept from DI-engine:

    - ``next`` never raises StopIteration: after `close`, and after a source has ended, it returns
      None, repeatedly.
    - ``chunk_size`` that does not divide ``batch_size`` is an AssertionError, a negative
      ``num_workers`` a ValueError.
    - ``data_source`` is called in a thread of this process, one call at a time, ahead of the
      learner, and may return fewer or more entries than ``batch_size``.
    - ``collate_fn`` may return any object, which is delivered unchanged and not copied. On a device
      tuples and namedtuples become lists, arrays and strings stay as they are, and other objects
      are a TypeError.
    - ``__del__`` closes, and may be called by hand.

    Intended differences: ``next`` raises errors (in DI-engine they hang it), samples of a batch are
    in order, and the generators of workers are seeded. The guide for this package has the whole
    list.

    Parameters
    ----------
    data_source : callable | dict of arrays | Source
        ``f(batch_size)`` that returns a list of sample dicts, or of zero-argument callables (jobs)
        that return one sample each.
    batch_size : int
    device : str | torch.device
        Device of the batches.
    chunk_size : int | None
        Jobs that a worker takes at once; must divide batch_size. None reads back as 1; a worker
        then takes a whole batch at once, which is faster.
    collate_fn : callable | None
        Called with the list of samples of a batch. Default: `default_collate`.
    num_workers : int
        Worker processes if 2 or more. 0 and 1 use a thread of this process.
    **options
        ``prefetch``, ``in_order``, ``timeout_s``, ``seed``, ``worker_init_fn``,
        ``multiprocessing_context`` and so on, as in `async_loader.AsyncDataLoader`.

    Attributes
    ----------
    data_source, batch_size, device, chunk_size, collate_fn, num_workers
        As given.
    use_cuda : bool
    queue_maxsize : int
        Batches made ahead.
    end_flag : bool
        Whether the loader was closed.
    """

    def __init__(
        self,
        data_source: Callable[[int], Any] | Mapping[str, Any] | Source,
        batch_size: int,
        device: Any,
        chunk_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        **options: Any,
    ) -> None:
        _check_chunk(batch_size, chunk_size)
        self.data_source = data_source
        self.use_cuda = "cuda" in str(device)
        self.collate_fn = collate_fn or default_collate
        self._moved = str(device) != "cpu"
        by_default = self.collate_fn is default_collate
        source: Any = data_source
        samples = callable(source) and not isinstance(source, Mapping | Source)
        self._flat = by_default and samples and options.get("into") is None
        super().__init__(
            EntriesSource(source) if samples else source,
            batch_size,
            device,
            chunk_size,
            None if by_default else KeepingCollate(self.collate_fn, self._moved),
            num_workers,
            **options,
        )
        self.chunk_size = 1 if chunk_size is None else self.chunk_size
        self.queue_maxsize = options.get("prefetch") or 2 * max(1, self.num_workers)
        log.info("Using %d workers to load data", self.num_workers)

    def __iter__(self) -> AsyncDataLoader:
        return self

    def __next__(self) -> Any:
        """Return the next batch; None if the loader is closed or its source has ended.

        Raises
        ------
        BaseException
            The exception of a job, the collate_fn or the data_source; the following calls continue.
        """
        try:
            batch = super().__next__()
        except StopIteration:
            return None
        if self._flat:
            batch = tree.transform(batch, _flat, leave=is_ignored)
        if self._moved:
            return arrived(batch, self.device)
        return batch.value if isinstance(batch, Kept) else batch

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Close. May be called by hand, and then again by the collector."""
        if not finalizing() and hasattr(self, "_engine"):
            self.close()
            log.debug("Del AsyncDataLoader")


def _flat(column: Any) -> Any:
    """Return a column of samples of shape (1,) as [B], as `default_collate` makes it."""
    return column.reshape(-1) if getattr(column, "shape", ())[1:] == (1,) else column


def _check_chunk(batch_size: Any, chunk_size: Any) -> None:
    """Check integers that must fit each other; the loader refuses other types."""
    if not isinstance(batch_size, int) or not isinstance(chunk_size, int) or chunk_size < 1:
        return
    if chunk_size > batch_size or batch_size % chunk_size:
        raise AssertionError(f"{batch_size}/{chunk_size}: chunk_size must divide batch_size")


class EntriesSource(CallableSource):
    """A callable whose entries, more or fewer than batch_size, make a larger or smaller batch."""

    def check_count(self, count: int, batch_size: int) -> None:
        if not count:
            raise SchemaError(f"{self.name} returned an empty list: {EXPECTED}")


_ON_HOST = "index"
"""The field that the pipeline leaves on the CPU, for replay tables; DI-engine moves every field."""


@dataclass(slots=True)
class Kept:
    """A wrapper that hides a value from the pipeline, which sees neither container,
    array nor tensor.
    """

    value: Any


@dataclass(slots=True)
class KeepingCollate:
    """A user's collate_fn whose result is delivered unchanged.

    Parameters
    ----------
    collate_fn : callable
    moved : bool
        Batches go to a device: then tensors stay visible, and only values that stay on the CPU are
        hidden.
    """

    collate_fn: Callable[[list[Any]], Any]
    moved: bool

    def __call__(self, samples: list[Any]) -> Any:
        result = self.collate_fn(samples)
        return for_device(result) if self.moved else Kept(result)


def for_device(value: Any) -> Any:
    """Convert a result as DI-engine does before a move: tuples and namedtuples become lists,
    arrays stay on the CPU.

    Raises
    ------
    TypeError
        For objects that are neither containers nor tensors, arrays, numbers, strings or None.
    """
    if isinstance(value, torch.Tensor):
        return value if value.device.type == "cpu" else Kept(value)
    if isinstance(value, bool | int | float | str | bytes | None):
        return value
    if isinstance(value, np.ndarray):
        return Kept(value.copy())
    if isinstance(
        value, np.generic | torch.nn.Module | torch.distributions.Distribution
    ) or is_tree_tensor(value):
        return Kept(value)
    if isinstance(value, Mapping):
        return {key: for_device(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [for_device(item) for item in value]
    raise TypeError(
        f"the collate_fn returned {type(value).__qualname__}, which cannot be moved to a device: "
        "return tensors, arrays, "
        "numbers, strings, None, or lists and dicts of these"
    )


def arrived(batch: Any, device: str) -> Any:
    """Convert a batch from the cuda queue to the form of DI-engine's."""
    if (
        isinstance(batch, Mapping)
        and isinstance(batch.get(_ON_HOST), torch.Tensor)
        and device != "fake"
    ):
        batch = {**batch, _ON_HOST: batch[_ON_HOST].to(device, non_blocking=True)}
    return _lists(batch, device)


def _lists(value: Any, device: str) -> Any:
    if isinstance(value, Kept):
        inner = value.value
        return (
            inner.to(device)
            if is_tree_tensor(inner) or isinstance(inner, torch.nn.Module | torch.Tensor)
            else inner
        )
    if isinstance(value, Mapping):
        return {key: _lists(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_lists(item, device) for item in value]
    return value
