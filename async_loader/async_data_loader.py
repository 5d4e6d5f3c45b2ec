"""AsyncDataLoader: checks its arguments, builds the pipeline and closes it."""

from __future__ import annotations

import os
import secrets
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import BaseContext
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from async_loader import process_hooks, tensors, tree
from async_loader.batch_format import BatchFormat, checked, finisher
from async_loader.errors import CannotSend, Closed, ConfigError, Unsupported, require
from async_loader.lifecycle import seconds, seconds_or_none
from async_loader.name_hints import explain_wrong_attributes, explain_wrong_names
from async_loader.pipeline.batches.output_buffers import OutputBuffers
from async_loader.pipeline.iterator import OnError
from async_loader.pipeline.source_engine import SourceEngine
from async_loader.pipeline.workers.thread_pool import gathering_threads
from async_loader.pipeline.workers.work import WorkerType
from async_loader.public_names import set_public_names
from async_loader.source import Applied, Foresighted, Resumable, Source, Updating, finishes
from async_loader.sources.columns import CallableSource, ColumnsSource
from async_loader.stats import LoaderStats
from async_loader.table import Table, is_table
from async_loader.validation import (
    callable_or_none,
    context_of,
    one_of,
    refuse_start_in_child,
    seed_of,
    whole,
)

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeVar

    B = TypeVar("B", default=dict[str, Any])
else:
    from typing import TypeVar

    B = TypeVar("B")

__all__ = ["AsyncDataLoader"]
set_public_names(globals())

CLOSE_TIMEOUT_S = 10.0
_STATE_VERSION = 1
_UNDO_TIMEOUT_S = 5.0
"""Time to end the parts that a failed constructor had started."""


@explain_wrong_attributes
class AsyncDataLoader(Generic[B]):
    """Load batches from a source ahead of time, onto the device, before the learner asks for them.

    The contract is that of the loader it replaces. A callable ``data_source`` is called with
    ``batch_size``. With ``num_workers`` 0 or 1 only the main worker (a thread) processes the result
    and puts the batch into the async train queue. With more, the main worker divides a job into
    chunks of ``chunk_size`` and pushes every chunk into the job queue; worker processes take and
    run them, and the processed data ends in the async train queue. If ``device`` is not the CPU,
    batches move on to the cuda queue. `close` sets ``end_flag``; all threads and processes clear
    and close their queues, then are joined.

    Threads: one consumer at a time calls ``next``; `update_priorities`, `update`, `stats` and
    `close` may be called by any.

    Parameters
    ----------
    data_source : callable | dict of arrays | Table | Source
        A callable ``f(batch_size)`` that returns batch_size sample dicts, batch_size zero-argument
        callables (jobs, each returns one sample), a ready batch (a dict of arrays, of any shape),
        or ``async_loader.END``; or a dict of arrays of equal length (nested at will), sampled
        uniformly with replacement; or a table, from which the loader makes a source
        (``table.source(seed=seed)``); or any other `Source`, such as ``table.source(view=...)``.
    batch_size : int, optional
        Samples per batch. Left out for a source that has a ``batch_size``, as that of `Rollouts`.
    device : str | torch.device
        "cpu", or an accelerator ("cuda", "cuda:1"): batches are copied there, except ``index``,
        which stays on the CPU.
    chunk_size : int | None
        Samples per chunk; must divide batch_size. Default: the whole batch is one chunk, which
        needs the fewest messages and has the highest throughput; smaller chunks lower the latency
        of a single batch. A collate_fn and a transform always see the whole batch.
    collate_fn : callable | None
        Called with the list of samples of a batch, in order, also with the rows of a batch that
        comes complete. Default: DI-engine's rules, see
        `async_loader.pipeline.batches.collate`.
    num_workers : int, optional
        Worker processes or threads if 2 or more; 0 and 1 use none. By default none; but threads for
        rows of a table or of columns, where a batch is large and cores are many: one for 2 MiB and
        for 4 cores, 4 at most, if there is neither a collate_fn nor a transform.
    transform : callable | None
        ``f(batch) -> batch``, called once for each whole batch where it is made: in its worker, or
        in the producer thread. It gets a (nested) dict of numpy arrays ``[batch_size, ...]``, which
        it may write into, and returns a dict of arrays or tensors: fields may be changed, added and
        left out; a number becomes an array without dimensions. Behind a collate_fn it gets what
        that returned. If it has a parameter ``rng``, it also gets a `numpy.random.Generator` of
        this batch, the same with and without workers.
        Batches that come complete (a ready batch of a callable, a feeder's table) are transformed
        in the producer thread also where there are workers. See `async_loader.targets`.
    worker_type : {"process", "thread"}
        Kind of the workers. Threads share the data and start at once; a job in a thread competes
        for Python's lock with the learner, cannot be ended by `close`, and leaves the global random
        generators alone. Each makes a whole batch.
    prefetch : int | None
        Batches made ahead. Default 2 * max(1, num_workers). Without workers, batches of a table or
        of columns that cost less than a hand-over between threads are not made ahead, but by the
        thread that calls ``next``: see ``drawing_thread`` of `stats`. With 0 that is always so: a
        batch then has what the table held at that call, whatever the machine was doing.
    in_order : bool
        Deliver in the order of the jobs. False gives lower latency.
    timeout_s : float | None
        Seconds after which ``next`` raises Timeout (and may be called again); 0 tries once. None
        and inf never raise, but None warns once after 10 s and names the stage that holds up the
        others.
    seed : int | None
        The same seed gives the same batches, also with workers: generators in worker processes are
        seeded per batch and chunk, and a table's source draws by it.
    worker_init_fn : callable | None
        Called with the worker's number in each worker before it takes jobs.
    multiprocessing_context : str | multiprocessing context | None
        "fork", "spawn", "forkserver"; default as in torch: the default of this Python version.
    on_error : {"raise", "skip", "fatal"}
        Effect of a failed batch: this ``next`` raises and the following ones continue; it is
        counted and skipped; or the loader is Broken from then on.
    batch_format : {"torch", "numpy", "tensordict"}
        Tensors in a (nested) dict; arrays on the same memory, on the CPU only; or a
        ``tensordict.TensorDict`` with ``batch_size=[batch_size]``.
    slot_bytes : int | None
        Fixed size of a batch slot in shared memory; default fits the batches.
    into : dict of tensors | list of dicts of tensors | None
        Tensors of yours into which batches are copied, each of the shape ``[batch_size, ...]`` and
        dtype of its field, nested as the batch is: their addresses stay, as a CUDA graph needs it.
        A batch is a new dict with these same tensors; fields that are not given come beside them,
        in tensors of their own. Of n dicts the k-th batch fills dict ``k % n``, and it is
        overwritten by the n-th ``next`` after that, never before. They must be on ``device``
        (``index`` on the CPU), without gradients, and must not overlap. ``next`` raises SchemaError
        for a batch that does not fit.

    Raises
    ------
    ConfigError
        For arguments that cannot work, before anything starts.
    OutOfMemory, ResourceLimit
        If slots or descriptors cannot be allocated.

    Notes
    -----
    A batch's tensors are views on a shared-memory slot, which returns to the ring when the last of
    them dies. ``tensor.share_memory_()`` and sending it through a torch queue move the data out of
    the slot; arrays made from the tensor before that dangle. ``torch.save`` of one field writes the
    whole slot: save a ``clone()``.
    """

    @explain_wrong_names
    def __init__(
        self,
        data_source: Callable[[int], Any] | Mapping[str, Any] | Source | Table,
        batch_size: int | None = None,
        device: str | torch.device = "cpu",
        chunk_size: int | None = None,
        collate_fn: Callable[[list[Any]], B] | None = None,
        num_workers: int | None = None,
        *,
        transform: Callable[..., Any] | None = None,
        worker_type: WorkerType = "process",
        prefetch: int | None = None,
        in_order: bool = True,
        timeout_s: float | None = None,
        seed: int | None = None,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        on_error: OnError = "raise",
        batch_format: BatchFormat = "torch",
        slot_bytes: int | None = None,
        into: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        require("torch")
        refuse_start_in_child()
        self._seed = secrets.randbits(63) if seed is None else seed_of(seed)
        self._source, self._made_it = as_source(data_source, seed), is_table(data_source)
        if batch_size is None:
            batch_size = getattr(self._source, "batch_size", None)
        self.batch_size = whole("batch_size", batch_size, 1)
        self.chunk_size = _chunk(chunk_size, self.batch_size)
        self.device = _device(device)
        one_of("on_error", on_error, ("raise", "skip", "fatal"))
        one_of("worker_type", worker_type, ("process", "thread"))
        one_of("in_order", in_order, (True, False))
        if num_workers is None:
            functions = (collate_fn, transform, worker_init_fn)
            plain = prefetch != 0 and all(one is None for one in functions)
            num_workers = _gathering_threads(self._source, self.batch_size) if plain else 0
            worker_type = "thread" if num_workers else worker_type
        self.num_workers = whole("num_workers", num_workers, 0)
        limit, finish = seconds_or_none("timeout_s", timeout_s), _finish(batch_format, self.device)
        ahead = 2 * max(1, self.num_workers) if prefetch is None else whole("prefetch", prefetch, 0)
        self._where, self._before = (device, into, batch_format), 0
        output = self._output()
        if finishes(self._source) is not None:
            _check_shapes(into, batch_format)
        if isinstance(self._source, Foresighted):
            self._source.note_ahead(self.batch_size, max(1, ahead))
        self._settings: dict[str, Any] = {
            "batch_size": self.batch_size,
            "chunk_size": self.chunk_size,
            "num_workers": self.num_workers,
            "worker_type": worker_type,
            "prefetch": ahead,
            "in_order": in_order,
            "timeout_s": limit,
            "on_error": on_error,
            "slot_bytes": None if slot_bytes is None else whole("slot_bytes", slot_bytes, 1),
            "collate_fn": callable_or_none("collate_fn", collate_fn),
            "transform": callable_or_none("transform", transform),
            "worker_init_fn": callable_or_none("worker_init_fn", worker_init_fn),
            "context": context_of(multiprocessing_context),
            "finish": finish,
        }
        self._start(0, *output)

    def _output(self) -> tuple[Any, OutputBuffers | None]:
        """Make what brings batches to where they are wanted, and the caller's tensors for them."""
        device, into, batch_format = self._where
        backend = _backend(device)
        return backend, _buffers(into, backend, batch_format)

    def _start(self, first: int, backend: Any, buffers: OutputBuffers | None) -> None:
        """Build the engine, whose first batch has this number, and start it."""
        self._engine = engine = SourceEngine(
            self._source,
            backend,
            seed=self._seed,
            buffers=buffers,
            first=first,
            **self._settings,
        )
        self._batches = engine.iterator
        try:
            self._dropped = weakref.finalize(self, engine.core.abandon)
            self._dropped.atexit = False
            process_hooks.add(engine.core)
            engine.start()
        except BaseException:  # also Ctrl-C behind the last line of start()
            engine.core.close(_UNDO_TIMEOUT_S)
            raise

    def __iter__(self) -> AsyncDataLoader[B]:
        return self

    def __next__(self) -> B:
        """Return the next batch: a dict (nested like the samples) of tensors ``[batch_size, ...]``.

        Raises
        ------
        StopIteration
            The source has ended, or the loader is closed.
        Timeout
            No batch was ready within ``timeout_s``.
        WouldDeadlock
            The buffer is empty and only the calling thread could fill it: at once, whatever
            ``timeout_s`` is.
        WorkerDied
            Within a second of a worker's death, ahead of queued batches.
        BaseException
            The exception of a job, the collate_fn, the transform or the source, with the worker's
            traceback as its cause.
        """
        iterator = self._batches
        begun = perf_counter()
        try:
            batch: B = next(iterator)
            return batch
        finally:
            iterator.meter.waited(begun)

    @property
    def end_flag(self) -> bool:
        """Whether the loader was told to end."""
        return self._engine.core.ending

    @property
    def closed(self) -> bool:
        """Whether `close` was called. A loader whose source has ended is not closed by that."""
        return self._engine.core.state in ("closing", "closed")

    @explain_wrong_names
    def update_priorities(self, index: Any, priority: Any) -> Applied:
        """Set the priorities of rows by id, if the source has priorities.

        Parameters
        ----------
        index : int64 array or tensor [n]
            ``batch["index"]``.
        priority : array or tensor with n elements
            0 or more, for example ``td_error.abs()``.

        Raises
        ------
        ConfigError
            For an index that is not of integers.
        Unsupported
            If the source has no priorities.
        """
        ids, values = tensors.to_ids(index), tensors.to_array(priority)
        return self._source.update_priorities(ids, values.astype(np.float64, copy=False))

    def update(self, index: Any, /, **fields: Any) -> Applied:
        """Set some fields of rows by id, if the source can be changed: see `Table.update`.

        Parameters
        ----------
        index : int64 array or tensor [n]
            ``batch["index"]``.
        **fields : array or tensor [n, ...]

        Raises
        ------
        ConfigError
            For an index that is not of integers.
        Unsupported
            If the rows of the source cannot be changed.
        """
        source = self._source
        if not isinstance(source, Updating):
            raise Unsupported(
                f"the rows of a {type(source).__name__} cannot be changed: use a table"
            )
        values = {name: _arrays(value) for name, value in fields.items()}
        return source.update(tensors.to_ids(index), **values)

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream of batches is: what was handed out counts, what was made ahead
        does not. JSON can hold it, if it can hold the state of a callable or of your own source.

        A ``source`` of None says that there is nothing to go on from: see `load_state_dict`. With
        ``in_order=False``, batches that came before their turn come again.
        """
        state = self._engine.state()
        state["batches"] += self._before
        return {"version": _STATE_VERSION, "seed": self._seed, **state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a `state_dict` was taken, in this process or another: `next` gives the batch
        that would have come then, from data that has not changed.

        The loader has to be made as it was. Its workers are started anew, and what was made ahead
        is dropped.

        A table draws as it would have with a ``seed``, or a sampler of the source's own; without,
        and of a queue, the table goes on as it is, or as it was saved. A callable is asked for its
        state, if it has ``state_dict`` and ``load_state_dict``.

        Raises
        ------
        ConfigError
            The state is of something else, or the source has no `Resumable` state.
        Closed
            The loader is closed.
        """
        known = isinstance(state, Mapping) and state.get("version") == _STATE_VERSION
        known = known and {"seed", "source"} <= state.keys()
        if not known or type(state.get("batches")) is not int:
            raise ConfigError(
                f"the state is no state_dict of an AsyncDataLoader of version {_STATE_VERSION}: "
                "give what state_dict() returned"
            )
        if self.closed:
            raise Closed("the loader is closed: make another, and load the state there")
        of_source, source = state["source"], self._source
        if of_source is None:  # what was drawn ahead may be in no other place
            self._before += state["batches"] - self.state_dict()["batches"]
            return
        if not isinstance(source, Resumable):
            raise ConfigError(
                f"the state is of another source, and a {type(source).__name__} has none: make the "
                "loader as it was then"
            )
        first, here = self._engine.iteration.position, self._engine.state()["source"]
        self._dropped.detach()
        self._engine.core.close(CLOSE_TIMEOUT_S, used=True)
        try:
            source.load_state_dict(of_source)
            first, self._seed, self._before = state["batches"], state["seed"], 0
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            if here is not None:  # a part of the other state may be in place
                source.load_state_dict(here)
            raise ConfigError(
                f"the state does not fit this {type(source).__name__} ({error}): make the loader "
                "as it was then"
            ) from error
        finally:
            self._start(first, *self._output())

    def stats(self) -> LoaderStats:
        """Return the counters of each stage, and the stage that is the bottleneck."""
        return self._engine.stats()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close the loader and end its threads and processes within ``timeout_s``.

        Idempotent; any thread.

        Batches that were not taken are dropped; those of a feeder's queue table return to it at
        once. Workers get half a second to finish a job, then they are killed. A data source that
        never returns is left in a daemon thread, with a warning that names it.
        """
        self._end(seconds("timeout_s", timeout_s), used=True)

    def _end(self, timeout_s: float, used: bool) -> None:
        self._dropped.detach()
        self._engine.core.close(timeout_s, used=used)
        if self._made_it:  # a feeder keeps memory for it
            source: Any = self._source
            getattr(source, "drop", source.close)()  # without a wait, where it can

    def __enter__(self) -> AsyncDataLoader[B]:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close. After an exception the last batch does not count as used; see `Leasing`."""
        self._end(CLOSE_TIMEOUT_S, used=kind is None)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        engine = getattr(self, "_engine", None)
        # at interpreter shutdown all loaders have been closed already
        if finalizing() or engine is None:
            return
        if engine.core.state in ("running", "broken") and os.getpid() == engine.core.pid:
            text = f"{self!r} was dropped without close(): close it, or use it in a with block"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        state = self._engine.core.state if hasattr(self, "_engine") else "unbuilt"
        return (
            f"<AsyncDataLoader batch_size={self.batch_size} num_workers={self.num_workers} "
            f"device={self.device} {state}>"
        )

    def __reduce__(self) -> Any:
        raise CannotSend(
            "an AsyncDataLoader stays in its process: make one where its batches are used"
        )


def as_source(data_source: object, seed: int | None) -> Source:
    """Convert a ``data_source`` argument to a Source.

    Raises
    ------
    ConfigError
        For anything else, such as a dataset, a class or a client.
    """
    if isinstance(data_source, type):
        raise ConfigError(f"data_source is the class {data_source.__qualname__}: give an instance")
    if isinstance(data_source, Mapping):
        if any(is_table(key) or isinstance(key, Source) for key in data_source):
            raise ConfigError(
                "data_source is a dict with tables as keys: say Mixture({table: share, ...})"
            )
        return ColumnsSource(data_source, seed)
    if is_table(data_source):
        return data_source.source(seed=seed)
    if hasattr(type(data_source), "group_schema"):
        rollouts: Any = data_source
        made: Source = rollouts.source()
        return made
    if isinstance(data_source, Source):
        return data_source
    if callable(data_source):
        return CallableSource(data_source)
    kind = type(data_source).__name__
    if not isinstance(data_source, str) and (
        hasattr(data_source, "__getitem__") or hasattr(data_source, "__iter__")
    ):
        raise ConfigError(
            f"data_source is a {kind}, a dataset: say async_loader.DataLoader(dataset, "
            "batch_size), which reads it in epochs; "
            "AsyncDataLoader draws from a callable, a dict of arrays or a table, without end"
        )
    raise ConfigError(
        f"data_source is a {kind}: give a callable(batch_size), a dict of equally long arrays, a "
        "table such as ReplayBuffer or connect(address).table(name), or a Source"
    )


def _check_shapes(into: object, batch_format: BatchFormat) -> None:
    """Refuse what needs batches of equal shapes, and fields of equal lengths."""
    if into is not None or batch_format == "tensordict":
        what = f"batch_format={batch_format!r}" if into is None else "into="
        raise ConfigError(
            f"{what} and whole='ragged': episodes without padding have other lengths in each "
            "batch, so say whole=True"
        )


def _arrays(value: object) -> Any:
    if isinstance(value, Mapping):
        return tree.transform(value, tensors.to_array)
    return tensors.to_array(value)


def _gathering_threads(source: Source, batch_size: int) -> int:
    reader = source.reader()
    schema = None if reader is None else reader.schema
    return 0 if schema is None else gathering_threads(schema.nbytes * batch_size)


def _device(device: object) -> str:
    if isinstance(device, bool | int | float) or device is None:
        raise ConfigError(f"device={device!r}: give a name such as 'cuda:1', or a torch.device")
    return str(device)


def _finish(batch_format: BatchFormat, device: str) -> Callable[[Any], Any] | None:
    if checked(batch_format) == "numpy" and device != "cpu":
        raise ConfigError(
            f"batch_format='numpy' and device={device!r}: arrays are on the CPU, so leave device "
            "out or say batch_format='torch'"
        )
    return finisher(batch_format)


def _buffers(into: object, backend: Any, batch_format: BatchFormat) -> OutputBuffers | None:
    if into is None:
        return None
    if batch_format != "torch":
        raise ConfigError(
            f"into= and batch_format={batch_format!r}: batches come in the tensors that are given, "
            "so leave batch_format out"
        )
    return OutputBuffers(into, backend)


def _backend(device: str | torch.device) -> Any:
    if str(device) == "cpu" or getattr(device, "type", None) == "cpu":
        return None
    from async_loader.pipeline.device.cuda_backend import backend_for

    return backend_for(device)


def _chunk(chunk_size: int | None, batch_size: int) -> int:
    if chunk_size is None:
        return batch_size
    size = whole("chunk_size", chunk_size, 1)
    if batch_size % size:
        raise ConfigError(f"chunk_size {size} does not divide batch_size {batch_size}")
    return size
