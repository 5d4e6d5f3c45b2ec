"""DataLoader: checks its arguments, and puts an order, a work and a pool together. Does no work
of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Generic, Never, overload

import numpy as np

from async_loader import tree
from async_loader.dataset import torch_collate
from async_loader.dataset.array_dataset import Columns, Items, NoColumns, columns_of, is_columns
from async_loader.dataset.batch_order import (
    Batches,
    IndexBatches,
    LastBatch,
    SamplerBatches,
    StreamBatches,
    check_last,
)
from async_loader.dataset.dataset_work import (
    EpochInfo,
    GatherWork,
    MapWork,
    StreamWork,
    epoch_of,
    gather_workers,
)
from async_loader.dataset.epoch import Epoch, EpochProgress, can_pin, most_batches, pinned
from async_loader.errors import ConfigError, require
from async_loader.lifecycle import ClosedAtExit, seconds, seconds_or_none
from async_loader.name_hints import describe, explain_wrong_attributes, explain_wrong_names
from async_loader.pipeline.device.cuda_backend import CudaBackend, backend_for
from async_loader.pipeline.device.streamer import PinnedMemory, Streamer
from async_loader.pipeline.device.transfer_thread import StreamerInput, TransferThread
from async_loader.pipeline.engine import Engine
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.work import Kind, WorkerType
from async_loader.public_names import set_public_names
from async_loader.source import Source
from async_loader.stats import LearnerMeter, LoaderStats, StageStats, bottleneck
from async_loader.table import Table
from async_loader.validation import callable_or_none, one_of, seed_of, whole

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeVar

    class DefaultBatch: ...

    B = TypeVar("B", default=DefaultBatch)
    D = TypeVar("D", default=object, covariant=True)
else:
    from typing import TypeVar, TypeVarTuple, Unpack

    B, D = TypeVar("B"), Unpack[TypeVarTuple("D")]  # so DataLoader[B] is enough at run time too

__all__ = ["DataLoader"]
set_public_names(globals())

CLOSE_TIMEOUT_S = 10.0

_STATE_VERSION = 2


@explain_wrong_attributes
class DataLoader(ClosedAtExit, Generic[B, D]):
    """Batches of a dataset, epoch by epoch, with the next ones made ahead by workers that live as
    long as the loader.

    Threads: one consumer at a time for each iteration; `stats` and `close` may be called by any.

    Parameters
    ----------
    dataset : object
        With ``__getitem__`` and ``__len__`` (map-style): a list, an array, a tensor, any such
        object; with ``__getitems__`` it is asked for a whole batch at once. A dict or a tuple of
        arrays, tensors or lists of one length: columns, an item is a dict or a tuple with one entry
        of each. With ``__iter__`` alone (iterable): each worker process iterates over its copy, and
        finds its share by ``torch.utils.data.get_worker_info()``.
    batch_size : int | None
        ``None``: items as they are, as tensors.
    shuffle : bool
        Anew in each epoch, by a generator of its own: the order depends on ``seed`` and the epoch's
        number alone.
    sampler : iterable of indices | None
    batch_sampler : iterable of lists of indices | None
        A list of lists is a batch in shards: what comes is a list of batches.
    last_batch : {"keep", "drop", "roll_over"}
        What is done with fewer than ``batch_size`` items at the end: "roll_over" begins the next
        epoch with them.
    num_workers : int
        0: the work is done by `next`.
    worker_type : {"process", "thread"}
        What they are. Threads share the dataset.
    prefetch : int | None
        Batches under way at most, over all workers. Default 2 * num_workers.
    in_order : bool
        Deliver in the order of the batches; otherwise what is finished first.
    timeout_s : float | None
        Seconds after which `next` raises Timeout; it may be called again. 0: try once. None, inf:
        never.
    collate_fn : callable | None
        A list of items to a batch. Default: as ``torch.utils.data.default_collate``; samples
        that do not fit each other raise errors that name the field.
    worker_init_fn : callable | None
        Called with its number in each worker before its first batch; with workers, batches are then
        not gathered in bulk.
    multiprocessing_context : str | multiprocessing context | None
        "fork", "spawn", "forkserver"; default as in torch, that is, of this Python.
    seed : int | None
        Same seed, same order; and the same values of the global random generators in worker
        processes, which are seeded for each batch, whichever worker makes it.
    device : str | torch.device
        An accelerator: batches then arrive there.
    pin_memory : bool
        Page-locked tensors.
    bulk : bool | None
        Whether batches are gathered in bulk, without Python for each item; possible for arrays with
        the default collation. None: where it can be had. True: or ConfigError, with the reason for
        each part. False: never.

    Raises
    ------
    ConfigError
        For arguments that cannot work, before anything starts.

    Notes
    -----
    Several iterations may be under way at once, also one inside the other; they share the workers.
    An error of a dataset is raised by `next` with its own type and the worker's traceback, and the
    next call goes on with the next batch.
    """

    @explain_wrong_names
    def __init__(
        self,
        dataset: D,
        batch_size: int | None = 1,
        *,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        last_batch: LastBatch = "keep",
        num_workers: int = 0,
        worker_type: WorkerType = "process",
        prefetch: int | None = None,
        in_order: bool = True,
        timeout_s: float | None = None,
        collate_fn: Callable[[Any], B] | None = None,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        seed: int | None = None,
        device: str | torch.device = "cpu",
        pin_memory: bool = False,
        bulk: bool | None = None,
    ) -> None:
        require("torch")
        _check_order(batch_size, shuffle, sampler, batch_sampler, last_batch)
        for name, value, allowed in (
            ("worker_type", worker_type, ("process", "thread")),
            ("in_order", in_order, (True, False)),
            ("pin_memory", pin_memory, (True, False)),
            ("bulk", bulk, (None, True, False)),
        ):
            one_of(name, value, allowed)
        self.dataset = dataset
        self.batch_size = (
            None
            if batch_size is None or batch_sampler is not None
            else whole("batch_size", batch_size, 1)
        )
        self.num_workers = whole("num_workers", num_workers, 0)
        self.seed = secrets.randbits(62) if seed is None else seed_of(seed)
        self.in_order = in_order
        self.device = device
        self._pages = PinnedMemory()
        self._backend, self._finish = _delivery(device, pin_memory, ahead=self.num_workers > 0)
        self.batch_sampler = batch_sampler
        self._timeout_s = seconds_or_none("timeout_s", timeout_s)
        self._drop = last_batch == "drop"
        self._batched = self.batch_size is not None or batch_sampler is not None
        self._dataset_epoch: int | None = None
        self._epoch = 0
        self._start: dict[str, Any] | None = None
        self._latest: Epoch[Any] | None = None
        self._meter = LearnerMeter()
        items = Items(dataset) if is_columns(dataset) else dataset
        if not hasattr(items, "__getitem__") and not hasattr(items, "__iter__"):
            given = type(dataset).__name__
            if isinstance(dataset, Table | Source):
                raise ConfigError(
                    f"the dataset is a {given}, which has no epochs: say AsyncDataLoader(table, "
                    "batch_size)"
                )
            raise ConfigError(
                f"the dataset is a {given}: give an object with __getitem__ or __iter__"
            )
        self._iterable = not hasattr(items, "__getitem__") or _is_torch_iterable(items)
        self._collate = callable_or_none("collate_fn", collate_fn)
        init = callable_or_none("worker_init_fn", worker_init_fn)
        self._columns = self._find_columns(bulk, init)
        self._batches = self._order(items, shuffle, sampler, batch_sampler, last_batch)
        collate = self._collate or (torch_collate.default_collate if self._batched else _converted)
        work: Any = MapWork(items, collate, init, batched=self._batched)
        if self._iterable:
            work = StreamWork(items, collate, self.batch_size, init, drop=self._drop)
        kind: Kind = worker_type
        count = self.num_workers
        if self._columns is not None:
            work = GatherWork(self._columns, work, checked=self._batches.in_range)
            count, kind = gather_workers(self._columns.item_bytes, self.batch_size, count)
        ahead = prefetch if prefetch is None else whole("prefetch", prefetch, 1)
        follows: Any = (
            None
            if self._backend is None
            else "device"
            if isinstance(self._backend, CudaBackend)
            else "pin"
        )
        self._engine = Engine(
            work,
            count,
            kind=kind,
            context=multiprocessing_context,
            prefetch=ahead,
            seed=self.seed,
            seeding="task",
            transfer=follows,
        )

    # -- what the arguments mean -------------------------------------------------------------------

    def _order(
        self,
        items: Any,
        shuffle: bool,
        sampler: Iterable[Any] | None,
        batch_sampler: Iterable[Any] | None,
        last: LastBatch,
    ) -> Batches:
        if self._iterable:
            _check_iterable(shuffle, sampler, batch_sampler, last)
            return StreamBatches(items, self.batch_size, drop=self._drop)
        if batch_sampler is not None:
            return SamplerBatches(batch_sampler, None, last)
        if sampler is not None:
            return SamplerBatches(sampler, self.batch_size, last)
        _check_length(items)
        sized = items if self._columns is None else self._columns
        return IndexBatches(sized, self.batch_size, last, self.seed, shuffle=shuffle)

    def _find_columns(self, bulk: bool | None, init: Callable[[int], Any] | None) -> Columns | None:
        """What to gather in bulk; ``None``: item by item."""
        if bulk is False:
            return None
        by_item = (
            self._collate is not None
            or not self._batched
            or (init is not None and self.num_workers > 0)
        )
        try:
            if not by_item:
                return columns_of(self.dataset)
            reason = "it needs batch_size, the default collation and no worker_init_fn"
        except NoColumns as error:
            reason = f"dataset: {error}"
        if bulk:
            raise ConfigError(f"bulk is True and cannot be had ({reason}): leave it out")
        return None

    # -- epochs ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches in the next epoch.

        Raises
        ------
        TypeError
            When the dataset or the sampler has no length.
        """
        return self._batches.length(None if self._start is None else self._start["batches"])

    @overload
    def __iter__(self: DataLoader[DefaultBatch, Never]) -> Iterator[Any]: ...  # a dataset of Any
    @overload
    def __iter__(
        self: DataLoader[DefaultBatch, tuple[np.ndarray[Any, Any] | torch.Tensor, ...]],
    ) -> Iterator[list[torch.Tensor]]: ...
    @overload
    def __iter__(self: DataLoader[DefaultBatch, dict[str, Any]]) -> Iterator[dict[str, Any]]: ...
    @overload
    def __iter__(self: DataLoader[DefaultBatch, object]) -> Iterator[Any]: ...
    @overload
    def __iter__(self) -> Iterator[B]: ...
    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch: the next one, or the one that was loaded by `load_state_dict`."""
        start = dict(self._start or {})
        number = self._epoch
        if "batches" in start:
            self._batches.load(start["batches"])
        before = None
        if not start and self._latest is not None and self._latest.finished:
            before = self._latest.progress
        epoch_progress = EpochProgress(start, before)
        told = self._dataset_epoch if self._dataset_epoch is not None else epoch_of(self.dataset)
        state = EpochInfo(told, dict(epoch_progress.untold))
        seed = _mixed(self.seed, number)
        how: Any = {
            "state": state,
            "seed": seed,
            "in_order": self.in_order,
            "timeout_s": self._timeout_s,
        }
        if self._backend is not None:
            device = isinstance(self._backend, CudaBackend)
            how["transfer"] = self._streamer if device else self._engine.pinning(self._backend)
        most = None
        if self._iterable:
            batches = self._engine.streams(turn=epoch_progress.turn, **how)
            most = most_batches(self._batches, self.batch_size, self._engine.streaming)
        else:
            first = epoch_progress.first
            batches = self._engine.iterate(self._batches.epoch(number, first), first=first, **how)
        epoch: Epoch[Any] = Epoch(
            batches, self._batches, number, epoch_progress, self._finish, self._meter, most
        )
        # At the end, as a whole: a signal, or an error, before it leaves the epoch to the next
        # call.
        self._latest, self._start, self._epoch = epoch, None, number + 1
        return epoch

    def _streamer(self, batches: StreamerInput, output: TrainQueue) -> TransferThread:
        """The thread behind the train queue. A streamer has a stream of its own where we make
        the backend of the device.
        """
        backend = self._backend
        if backend is not self.device and isinstance(backend, CudaBackend):
            backend = backend_for(self.device)
        return Streamer(batches, output, backend, pages=self._pages, host_fields=())

    def set_epoch(self, epoch: int) -> None:
        """The number of the next epoch: for the order, and for the sampler's and the dataset's
        ``set_epoch`` where they have one.

        The dataset's copies in worker processes are told when that epoch begins. One whose own
        ``set_epoch`` was called here instead is followed as well, if it keeps the number under
        ``epoch`` or ``_epoch``.

        After `load_state_dict` of a state within an epoch, the number of that epoch keeps the
        position, and any other number begins at the front.
        """
        self._epoch = whole("epoch", epoch, 0)
        start = self._start
        if start is not None and start["epoch"] != self._epoch:
            self._start = {**start, "epoch": self._epoch} if start.get("finished") else None
        self._batches.set_epoch(self._epoch)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(self._epoch)
            self._dataset_epoch = self._epoch

    @property
    def epoch(self) -> int:
        """The number of the next epoch."""
        return self._epoch

    # -- going on elsewhere ------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the latest epoch is, counted in batches that it has given; those made ahead do not
        count. JSON can hold it when the states of the dataset and the sampler, if they have any,
        are such.
        """
        state = {
            "version": _STATE_VERSION,
            "seed": self.seed,
            "epoch": self._epoch,
            "yielded": 0,
            "batches": None,
        }
        if self._start is not None:
            state.update(self._start)
        elif self._latest is None:
            state["batches"] = self._batches.state(finished=True)
        else:
            state.update(self._latest.state())
            if self._latest.finished:
                state["epoch"] = self._epoch
        if self._iterable:
            state["workers"] = max(1, self._engine.workers)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on where this state was taken, in this process or another.

        Raises
        ------
        ConfigError
            The state is of another kind of loader, or of an iterable dataset with another number of
            workers.
        """
        known = isinstance(state, dict) and state.get("version") == _STATE_VERSION
        if not known or not {"seed", "epoch", "yielded", "batches"} <= state.keys():
            raise ConfigError(
                f"the state is no state_dict of a DataLoader of version {_STATE_VERSION}: give "
                "what state_dict() returned"
            )
        workers = max(1, self._engine.workers)
        if self._iterable != ("workers" in state) or type(state["batches"]) is not type(
            self._batches.state()
        ):
            raise ConfigError(
                "the state is of a loader of another kind: only one of the two has an iterable "
                "dataset, a sampler, or last_batch='roll_over'"
            )
        if state.get("workers", workers) != workers:
            raise ConfigError(
                f"the state is of {state['workers']} workers, this loader has {workers}: "
                "streams cannot be dealt out anew, use the same num_workers"
            )
        self.seed = state["seed"]
        self._batches.seed(self.seed)
        self._epoch = state["epoch"]
        self._start = dict(state)

    def stats(self) -> LoaderStats:
        """What each stage has done since the loader was made, and which of them the others wait
        for.

        ``source`` is all zero: the order is made within ``next``. Without workers the work is done
        there too: then ``workers`` is what the caller waits for. ``copy`` is that of the latest
        epoch.
        """
        learner = self._meter.snapshot(0)
        workers = self._engine.stage()
        if workers is None:  # the consumer does it, while it waits
            workers = StageStats(
                learner.batches, learner.batches, learner.wait_s, learner.busy_s, 0
            )
        nothing = StageStats()
        copy = nothing if self._latest is None else self._latest.iteration.stage() or nothing
        ring = self._engine.ring
        return LoaderStats(
            source=nothing,
            workers=workers,
            copy=copy,
            learner=learner,
            slots=0 if ring is None else ring.count,
            slots_lent=0 if ring is None else ring.lent,
            copied_out=0,
            skipped=0,
            workers_replaced=self._engine.replaced,
            drawing_thread="caller",
            bottleneck=bottleneck(nothing, workers, copy, learner, one_thread=False),
            durations=tuple(self._meter.durations),
        )

    # -- the end -----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._engine.closed

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """End the workers; idempotent. A loader that is dropped does so by itself."""
        self._engine.close(seconds("timeout_s", timeout_s))

    def __repr__(self) -> str:
        how = "gathered in bulk" if self._columns is not None else f"num_workers={self.num_workers}"
        return f"<DataLoader of {describe(self.dataset)}, batch_size={self.batch_size}, {how}>"


def _check_order(
    batch_size: int | None, shuffle: object, sampler: object, batch_sampler: object, last: str
) -> None:
    one_of("shuffle", shuffle, (True, False))
    one_of("last_batch", last, ("keep", "drop", "roll_over"))
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or last != "keep":
            raise ConfigError(
                "batch_sampler decides what batch_size, shuffle, sampler and last_batch would: "
                "leave them out"
            )
    elif sampler is not None and shuffle:
        raise ConfigError("sampler decides the order: leave shuffle out")
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is not None and not hasattr(value, "__iter__"):
            raise ConfigError(
                f"{name} is {type(value).__name__}: give something that can be iterated over, once "
                "for each epoch"
            )
    check_last(last, batch_size)


def _check_iterable(shuffle: bool, sampler: object, batch_sampler: object, last: str) -> None:
    if shuffle or sampler is not None or batch_sampler is not None or last == "roll_over":
        raise ConfigError(
            "the dataset is iterable and decides its order itself: leave shuffle, sampler, "
            "batch_sampler and last_batch='roll_over' out"
        )


def _delivery(
    device: object, pin_memory: bool, *, ahead: bool
) -> tuple[Any, Callable[[Any], Any] | None]:
    """What a streamer does to batches ahead of time, and what is done to each in the consumer's
    thread.
    """
    if str(device) != "cpu":
        return backend_for(device), None
    if not pin_memory or not can_pin():
        return None, None
    return (pinned, None) if ahead else (None, pinned)


def _check_length(items: Any) -> None:
    try:
        len(items)
    except TypeError:
        text = (
            f"the dataset ({type(items).__name__}) has no length: give a sampler or a batch_sampler"
        )
        raise ConfigError(text) from None


def _is_torch_iterable(items: object) -> bool:
    """Torch's IterableDataset has a `__getitem__` of its own, which raises."""
    torch_data: Any = tree.loaded("torch.utils.data")
    return torch_data is not None and isinstance(items, torch_data.IterableDataset)


def _converted(item: object) -> Any:
    from torch.utils.data import _utils

    convert: Any = _utils.collate.default_convert
    return convert(item)


def _mixed(seed: int, epoch: int) -> int:
    return int(
        np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0] >> np.uint64(2)
    )
