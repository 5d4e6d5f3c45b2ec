"""AsyncDataLoader: checks its arguments, builds the pipeline, and closes it. Does no work of its own."""

from __future__ import annotations

import os
import secrets
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from multiprocessing.context import BaseContext
from typing import Any, Literal

import numpy as np

from async_loader.errors import Closed, ConfigError
from async_loader.lifecycle import State, seconds, seconds_or_none
from async_loader.pipeline import live
from async_loader.pipeline.arguments import (
    callable_or_none,
    check_descriptors,
    context_of,
    one_of,
    refuse_start_in_child,
    refuse_unknown,
    whole,
)
from async_loader.pipeline.iterator import NOTHING, OnError
from async_loader.pipeline.pipeline import Pipeline, Settings
from async_loader.source import Applied, Foresighted, Source
from async_loader.sources.callable import CallableSource
from async_loader.sources.columns import ColumnsSource
from async_loader.stats import LoaderStats

CLOSE_TIMEOUT_S = 10.0
_UNDO_TIMEOUT_S = 5.0
"""For what a constructor that failed had started."""


class AsyncDataLoader:
    """Batches from a source, made ahead of time, on the device when the learner asks for them.

    Its contract is that of the loader it replaces. A callable ``data_source`` is called with ``batch_size``. With
    ``num_workers`` 0 or 1 only the main worker (a thread) processes what it returns and puts the batch into the async
    train queue. With more, the main worker divides a job into pieces of ``chunk_size`` and pushes every piece into the
    job queue; worker processes take them, run them, and the processed data ends in the async train queue. If ``device``
    is not the CPU, batches move on to the cuda queue. `close` sets ``end_flag``; all threads and processes clear and
    close their queues, then are joined.

    Parameters
    ----------
    data_source : callable | dict of arrays | Source
        A callable ``f(batch_size)`` that returns batch_size sample dicts, batch_size zero-argument callables (jobs, each
        returns one sample), a ready batch (a dict of arrays, of any shape), or ``async_loader.END``; or a dict of equally
        long arrays (nested as you like), sampled uniformly with replacement; or any `Source`, such as a ReplayBuffer.
    batch_size : int
        Samples per batch.
    device : str | torch.device
        "cpu", or an accelerator ("cuda", "cuda:1"): batches then arrive there, but for ``index``, which stays on the CPU.
    chunk_size : int | None
        Samples per piece; must divide batch_size. Default: the whole batch in one piece, which means the fewest messages
        and the highest throughput; smaller pieces shorten the way of a single batch. A collate_fn sees the whole batch
        in one piece whatever this says.
    collate_fn : callable | None
        Gets the list of samples of a batch, in order. Default: DI-engine's rules, see `async_loader.pipeline.collate`.
    num_workers : int
        Extra processes from 2 on; 0 and 1 use none.
    prefetch : int | None
        Batches made ahead. Default 2 * max(1, num_workers).
    in_order : bool
        Deliver in the order of the jobs. False trades that for latency.
    timeout : float | None
        Seconds after which ``next`` raises Timeout (and may be called again). None never raises, but warns once after
        10 s with the stage that everyone waits for.
    seed : int | None
        Same seed, same batches, also with workers: generators in workers are seeded per batch and chunk.
    worker_init_fn : callable | None
        Called with the worker's number in each worker before it takes jobs.
    context : str | multiprocessing context | None
        "fork", "spawn", "forkserver"; default as in torch, that is, of this Python.
    on_error : {"raise", "skip", "fatal"}
        What a failed batch does: this ``next`` raises and the following ones go on; it is counted and passed over; or
        the loader is Broken from then on.
    layout : {"contiguous", "packed"}
        Contiguous fields, or views on rows as they are stored (one read per row; strided tensors).
    slot_bytes : int | None
        Fixed size of a batch slot in shared memory; default fits the batches.

    Raises
    ------
    ConfigError
        For arguments that cannot work, before anything starts.
    OutOfMemory, ResourceLimit
        When slots or descriptors cannot be had.

    Notes
    -----
    A batch's tensors are views on a shared-memory slot, which returns to the ring when the last of them dies.
    ``tensor.share_memory_()`` and sending it through a torch queue move the data out of the slot; arrays made from it
    before then dangle. ``torch.save`` of one field writes the whole slot: save a ``clone()``.
    """

    def __init__(
        self,
        data_source: Callable[[int], Any] | Mapping[str, Any] | Source,
        batch_size: int,
        device: Any = "cpu",
        chunk_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        *,
        prefetch: int | None = None,
        in_order: bool = True,
        timeout: float | None = None,
        seed: int | None = None,
        worker_init_fn: Callable[[int], Any] | None = None,
        context: str | BaseContext | None = None,
        on_error: OnError = "raise",
        layout: Literal["contiguous", "packed"] = "contiguous",
        slot_bytes: int | None = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown("AsyncDataLoader", unknown, AsyncDataLoader.__init__)
        refuse_start_in_child()
        self.batch_size = whole("batch_size", batch_size, 1)
        self.num_workers = whole("num_workers", num_workers, 0)
        self.chunk_size = _chunk(chunk_size, self.batch_size)
        self.device = str(device)
        one_of("on_error", on_error, ("raise", "skip", "fatal"))
        one_of("layout", layout, ("contiguous", "packed"))
        one_of("in_order", in_order, (True, False))
        settings = Settings(
            batch_size=self.batch_size,
            chunk_size=self.chunk_size,
            num_workers=self.num_workers,
            prefetch=2 * max(1, self.num_workers) if prefetch is None else whole("prefetch", prefetch, 1),
            in_order=in_order,
            timeout_s=seconds_or_none("timeout", timeout),
            seed=secrets.randbits(63) if seed is None else whole("seed", seed, 0),
            on_error=on_error,
            packed=layout == "packed",
            slot_bytes=None if slot_bytes is None else whole("slot_bytes", slot_bytes, 1),
            collate_fn=callable_or_none("collate_fn", collate_fn),
            worker_init_fn=callable_or_none("worker_init_fn", worker_init_fn),
            context=context_of(context),
        )
        check_descriptors(self.num_workers)
        self._source = as_source(data_source, seed)
        if isinstance(self._source, Foresighted):
            self._source.note_ahead(self.batch_size, settings.prefetch)
        self._pipeline = pipeline = Pipeline(self._source, settings, _backend(device))
        self._iterator = pipeline.iterator
        try:
            self._dropped = weakref.finalize(self, pipeline.abandon)
            self._dropped.atexit = False
            live.add(pipeline)
            pipeline.start()
        except BaseException:  # also Ctrl-C behind the last line of start()
            pipeline.close(_UNDO_TIMEOUT_S)
            raise

    def __iter__(self) -> AsyncDataLoader:
        return self

    def __next__(self) -> Any:
        """The next batch: a dict (nested as the samples were) of tensors ``[batch_size, ...]``.

        Raises
        ------
        StopIteration
            The source has ended, or the loader is closed.
        Timeout
            Nothing came within ``timeout``.
        WouldDeadlock
            The buffer is empty and the only thread that could fill it is this one.
        WorkerDied
            Within a second of a worker's death, ahead of what is queued.
        BaseException
            What a job, the collate_fn or the source raised, with the worker's traceback as its cause.
        """
        iterator = self._iterator
        try:
            iterator.hold()
        except Closed:
            if os.getpid() != self._pipeline.pid:
                raise
            raise StopIteration from None
        try:  # see NOTE [handed out once] in iterator.py
            return iterator.held
        finally:
            iterator.held = NOTHING

    @property
    def end_flag(self) -> bool:
        """Whether the loader was told to end."""
        return self._pipeline.end.is_set()

    def update_priorities(self, index: Any, priority: Any) -> Applied:
        """New priorities for rows by id, where the source has any.

        Parameters
        ----------
        index : int64 array or tensor [n]
            ``batch["index"]``.
        priority : array or tensor [n]

        Raises
        ------
        Unsupported
            When the source has no priorities.
        """
        from async_loader import tensors

        ids, values = (tensors.to_numpy(x) if tensors.is_tensor(x) else np.asarray(x) for x in (index, priority))
        return self._source.feedback(ids.astype(np.int64, copy=False), values.astype(np.float64, copy=False))

    def stats(self) -> LoaderStats:
        """What each stage has done, and which of them everyone waits for."""
        return self._pipeline.stats()

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """End everything: idempotent, from any thread, and back within ``timeout`` seconds.

        Batches that were not taken are dropped; those of a feeder's queue table go back to it at once. Workers get half a
        second to finish a job, then they are killed. Only a data source that blocks for ever is left behind, in a daemon
        thread, with a warning that names it.
        """
        limit = seconds("timeout", timeout)
        self._dropped.detach()
        self._pipeline.close(limit)

    def __enter__(self) -> AsyncDataLoader:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close. After an error the batch that was taken last does not count as used; see `Leasing`."""
        self._dropped.detach()
        self._pipeline.close(CLOSE_TIMEOUT_S, used=kind is None)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        pipeline = getattr(self, "_pipeline", None)
        if finalizing() or pipeline is None:  # at the end, when modules are being taken apart, all loaders were closed
            return
        if pipeline.life.state in (State.RUNNING, State.BROKEN) and os.getpid() == pipeline.pid:
            text = f"{self!r} was dropped without close(): close it, or use it in a with block"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        state = self._pipeline.life.state.value if hasattr(self, "_pipeline") else "unbuilt"
        return f"<AsyncDataLoader batch_size={self.batch_size} num_workers={self.num_workers} device={self.device} {state}>"


def as_source(data_source: Any, seed: int | None) -> Source:
    """Whatever the user has, as a Source."""
    if isinstance(data_source, Mapping):
        return ColumnsSource(data_source, seed)
    if isinstance(data_source, Source):
        if isinstance(data_source, type):
            raise ConfigError(f"data_source is the class {data_source.__qualname__}: give an instance")
        return data_source
    if callable(data_source):
        return CallableSource(data_source)
    raise ConfigError(
        f"data_source is {type(data_source).__name__}: give a callable(batch_size), a dict of equally long arrays, "
        "or a Source such as ReplayBuffer"
    )


def _backend(device: Any) -> Any:
    if str(device) == "cpu" or getattr(device, "type", None) == "cpu":
        return None
    from async_loader.pipeline.device import backend_for

    return backend_for(device)


def _chunk(chunk_size: int | None, batch_size: int) -> int:
    if chunk_size is None:
        return batch_size
    size = whole("chunk_size", chunk_size, 1)
    if batch_size % size:
        fitting = [n for n in range(1, batch_size + 1) if batch_size % n == 0]
        near = min(fitting, key=lambda n: abs(n - size))
        raise ConfigError(f"chunk_size {size} does not divide batch_size {batch_size}: the nearest that does is {near}")
    return size
