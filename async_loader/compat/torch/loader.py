"""torch's DataLoader: arguments, checks and attributes are inherited from torch;
iteration is done by our pool.

Quirks that are kept, each with a test: ``iter`` draws the base seed from the global generator (or
from ``generator``), also without workers; without an order of their own items come as torch's
samplers draw them; without `persistent_workers` every pass has new worker processes; with them they
are seeded once; ``timeout`` without workers is an AssertionError; a worker's death and an expired
time limit are RuntimeErrors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils import data as torch_data
from torch.utils.data import _utils

from async_loader.compat.torch.order import GatherPass, KnownOrder, is_known
from async_loader.dataset import torch_collate
from async_loader.dataset.array_dataset import Columns, NoColumns, columns_of
from async_loader.dataset.batch_order import Batches, SamplerBatches, StreamBatches
from async_loader.dataset.dataset_work import (
    EpochInfo,
    GatherWork,
    MapWork,
    StreamWork,
    epoch_of,
    gather_workers,
)
from async_loader.dataset.epoch import Epoch, EpochProgress, can_pin, most_batches, pinned
from async_loader.errors import Timeout, WorkerDied
from async_loader.name_hints import describe
from async_loader.pipeline.engine import Engine
from async_loader.pipeline.workers.work import Kind

T_co = TypeVar("T_co", covariant=True)
"""Type of the dataset's items, as annotated by torch."""


class DataLoader(torch_data.DataLoader[T_co]):
    """``torch.utils.data.DataLoader`` with the same arguments, errors, order and random numbers.

    ``docs/guides/torch.md`` lists improvements and differences. Datasets of datapipes are left to
    torch.

    Raises
    ------
    ValueError, TypeError
        As torch: the checks are torch's own.
    """

    def __iter__(self) -> Any:
        """Start a pass over the dataset.

        Several passes may run at once, also with persistent workers.
        """
        if isinstance(self.dataset, torch_data.IterDataPipe | torch_data.MapDataPipe):
            return super().__iter__()
        return self._get_iterator()

    def _get_iterator(self) -> Any:
        if isinstance(self.dataset, torch_data.IterDataPipe | torch_data.MapDataPipe):
            return super()._get_iterator()
        if self.num_workers == 0 and self.timeout != 0:
            raise AssertionError(
                f"timeout is {self.timeout:g} and there are no workers to wait for: leave it out"
            )
        gathered = self._gathers()
        return self._begin({}) if gathered is None else gathered

    def _begin(self, start: dict[str, Any]) -> Pass:
        batches = self._batches()
        if "batches" in start:
            batches.load(start["batches"])
        progress = EpochProgress(start, None if start else self._before())
        seed, tasks = self._drawn(batches, progress.first, start)
        return Pass(self, self._team(batches, seed), batches, tasks, seed, progress)

    def _drawn(self, batches: Batches, first: int, start: dict[str, Any]) -> tuple[int, Any]:
        """Return the seed of a pass's workers and its tasks, drawn in torch's order."""
        seed = self._base_seed(start)
        return seed, None if self._iterable else batches.epoch(0, first)

    def _before(self) -> EpochProgress | None:
        """Where datasets are that go on in the next pass."""
        return None

    def _gathers(self) -> GatherPass | None:
        """A pass in which there is nothing to do but to gather rows, where it is such."""
        if self._tracks or self.persistent_workers or self.pin_memory or self._iterable:
            return None
        columns = self._columns()
        if columns is None:
            return None
        count, _ = gather_workers(columns.item_bytes, self.batch_size, self.num_workers)
        if count:
            return None
        batches = self._batches()
        if not batches.in_range:
            return None
        seed = self._base_seed({})
        tasks = batches.epoch(0, 0)
        return GatherPass(columns, tasks, partial(len, self), seed, self.num_workers)

    def _base_seed(self, start: dict[str, Any]) -> int:
        """Return the seeds of a pass's workers."""
        if self.__dict__.get("_engine") is not None:
            kept: int = self.__dict__["_seed"]  # its workers were seeded once
            return kept
        seed: int | None = start.get("base_seed")
        if seed is None:
            seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        return seed

    # -- what the arguments mean to us -------------------------------------------------------------

    @property
    def _iterable(self) -> bool:
        return isinstance(self.dataset, torch_data.IterableDataset)

    def _batches(self) -> Batches:
        if self._iterable:
            return StreamBatches(self.dataset, self.batch_size, drop=self.drop_last)
        if self._tracks or not is_known(self._index_sampler):
            return SamplerBatches(self._index_sampler, None, "keep")
        return KnownOrder(self._index_sampler, self.dataset, lists=not self._auto_collation)

    _tracks = False
    """Whether the states of datasets are kept for each batch."""

    def _team(self, batches: Batches, seed: int) -> Engine:
        """The workers: those of this loader when they persist, others for each pass."""
        kept: Engine | None = self.__dict__.get("_engine")
        if kept is not None and not kept.closed:
            return kept
        columns = self._columns()
        work, count = self._work(columns, batches), self.num_workers
        kind: Kind = "process"
        if columns is not None:
            count, kind = gather_workers(columns.item_bytes, self.batch_size, count)
        prefetch = (
            None if not self.num_workers else max(1, (self.prefetch_factor or 0) * self.num_workers)
        )
        seeding: Any = "birth" if self.persistent_workers else "iteration"
        context = self.multiprocessing_context if self.num_workers else None
        pool = Engine(
            work,
            count,
            kind=kind,
            context=context,
            prefetch=prefetch,
            seeding=seeding,
            transfer="pin" if self.pin_memory and self.num_workers else None,
        )
        if self.persistent_workers:
            self.__dict__.update(_engine=pool, _seed=seed)
        return pool

    def _columns(self) -> Columns | None:
        """Return the columns to gather in bulk. torch treats dicts and tuples as plain datasets
        of their values.
        """
        plain = (
            self._auto_collation
            and self.collate_fn is _utils.collate.default_collate
            and self.worker_init_fn is None
        )
        if not plain or isinstance(self.dataset, dict | tuple):
            return None
        try:
            return columns_of(self.dataset)
        except (NoColumns, IndexError):
            return None

    def _work(self, columns: Columns | None, batches: Batches) -> Any:
        collate: Callable[[Any], Any] = self.collate_fn
        if collate is _utils.collate.default_collate:
            collate = torch_collate.default_collate
        init, track = self.worker_init_fn, self._tracks
        if self._iterable:
            drop = self.drop_last
            return StreamWork(self.dataset, collate, self.batch_size, init, drop=drop, track=track)
        batched = self._auto_collation
        work = MapWork(self.dataset, collate, init, batched=batched, shards=(), track=track)
        return work if columns is None else GatherWork(columns, work, checked=batches.in_range)

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """End persistent workers; a loader that is dropped does so by itself. The next pass
        starts new ones.
        """
        pool = self.__dict__.pop("_engine", None)
        if pool is not None:
            pool.close()

    def __getstate__(self) -> dict[str, Any]:
        """The loader without its workers."""
        return {name: value for name, value in self.__dict__.items() if name != "_engine"}


class Pass(Iterator[Any]):
    """One pass over the dataset, the result of `iter`."""

    def __init__(
        self,
        loader: DataLoader[Any],
        pool: Engine,
        batches: Batches,
        tasks: Any,
        seed: int,
        epoch_progress: EpochProgress,
    ) -> None:
        self._loader = loader
        self._engine = None if loader.persistent_workers else pool
        self.base_seed = seed
        self._num_workers = loader.num_workers
        self._timeout = loader.timeout
        state = EpochInfo(epoch_of(loader.dataset), dict(epoch_progress.untold))
        pin = loader.pin_memory and can_pin()
        # as in torch, with workers there is a thread that pins
        ahead = pin and self._num_workers > 0
        how: Any = {"state": state, "seed": seed, "in_order": loader.in_order}
        how["timeout_s"] = float(loader.timeout) if loader.timeout else None
        if ahead:
            how["transfer"] = pool.pinning(pinned)
        most = None
        if loader._iterable:
            iteration = pool.streams(turn=epoch_progress.turn, **how)
            sized = None if loader._IterableDataset_len_called is None else batches
            most = most_batches(sized, loader.batch_size, pool.streaming)
        else:
            first = epoch_progress.first
            iteration = pool.iterate(tasks, static=loader.in_order, first=first, **how)
        self._workers = pool.processes
        """The worker processes at the start of the pass, under torch's name for them."""
        self.epoch: Epoch[Any] = Epoch(
            iteration,
            batches,
            0,
            epoch_progress,
            pinned if pin and not ahead else None,
            most=most,
        )

    def __iter__(self) -> Pass:
        return self

    def __len__(self) -> int:
        """Number of batches.

        TypeError for an iterable dataset, as in torch: ``list(iter(loader))`` calls this.
        """
        if self._loader._iterable:
            raise TypeError(
                f"a pass over the iterable dataset {describe(self._loader.dataset)} has no len(): "
                "how long it is shows at its end"
            )
        return len(self._loader)

    def __next__(self) -> Any:
        try:
            return self.epoch.__next__()
        except StopIteration:
            self._end()
            raise
        except (WorkerDied, Timeout) as error:
            raise as_torchs(error, self._timeout) from error

    def _end(self) -> None:
        pool, self._engine = self._engine, None
        if pool is not None:
            pool.close()

    def close(self) -> None:
        """Cancel tasks in progress, and end the workers if they belong to this pass."""
        self.epoch.close()
        self._end()


def as_torchs(error: Timeout | WorkerDied, timeout_s: float) -> RuntimeError:
    """Return torch's exception for a dead worker or a batch that did not arrive in time."""
    if isinstance(error, WorkerDied):
        return RuntimeError(f"DataLoader worker (pid(s) {error.pid}) exited unexpectedly: {error}")
    return RuntimeError(f"DataLoader timed out after {timeout_s:g} seconds: {error}")
