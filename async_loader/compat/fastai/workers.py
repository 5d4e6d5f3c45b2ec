"""The work of a DataLoader's workers,
and the check whether workers can be reused for another epoch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from async_loader.compat.torch.loader import as_torchs
from async_loader.errors import Timeout, WorkerDied
from async_loader.pipeline.engine import Engine
from async_loader.pipeline.workers.work import WorkContext

_OF_AN_EPOCH = {"rng", "it", "_idxs", "_workers"}
"""Attributes that every epoch sends, or that do not matter to a worker."""
_PLAIN = (bool, int, float, str, type(None), torch.device)


@dataclass(slots=True)
class Epoch:
    """Data that differs between epochs.

    Attributes
    ----------
    idxs : iterable
        Result of get_idxs in the learner's process, once for all workers.
    rng : random.Random | None
    """

    idxs: Any
    rng: Any


class WorkerStreams:
    """The batches of one worker, made by the loader's own methods from its share of the indices.

    Parameters
    ----------
    loader : DataLoader
        A copy for the workers; each epoch uses its own copy, as loops may be nested.
    epoch : Epoch | None
        The only epoch. Forked workers inherit it, so it need not be picklable.
    """

    def __init__(self, loader: Any, epoch: Epoch | None = None) -> None:
        self.loader = loader
        self._only = epoch

    @property
    def dataset(self) -> Any:
        """The object that torch's get_worker_info returns."""
        return self.loader.fake_l

    def begin(self, here: WorkContext) -> Iterator[Any]:
        """Start in fastai's order: number and share, seeds, wif, and then the samples."""
        loader, epoch = self.loader, self._only or here.state
        self.loader = loader.copy_for_workers()
        loader.num_workers, loader.offs = here.workers, here.worker
        if epoch.rng is not None:
            loader.rng = epoch.rng
        loader._idxs = epoch.idxs
        seed_everything(here.seed)
        loader.fake_l.worker_init_fn(here.worker)
        batches: Iterator[Any] = iter(loader.create_batches(loader.sample()))
        return batches


def seed_everything(seed: int) -> None:
    """Seed the three global generators like fastai."""
    random.seed(seed)
    np.random.seed(seed % (2**32 - 1))
    torch.manual_seed(seed)


class Workers:
    """The worker processes of one loader, for one epoch or for all.

    Parameters
    ----------
    loader : DataLoader
    number : int
    only : Epoch | None
        The workers end with this epoch.
    """

    def __init__(self, loader: Any, number: int, only: Epoch | None = None) -> None:
        self._known = _look(loader)
        self._only = only
        self._engine = Engine(WorkerStreams(loader.copy_for_workers(), only), number, seeding=None)

    def fit(self, loader: Any, number: int) -> bool:
        """Whether new workers would behave the same: the loader has the same attributes. The
        contents of the dataset are not compared.
        """
        now, engine = _look(loader), self._engine
        if engine.closed or engine.workers != number or now.keys() != self._known.keys():
            return False
        return all(_same(now[name], known) for name, known in self._known.items())

    def batches(self, epoch: Epoch, seed: int, timeout_s: float) -> Iterator[Any]:
        """The batches of an epoch, one from each worker in turn, with errors as fastai's callers
        know them; then workers of this epoch alone end.
        """
        iteration = self._engine.streams(
            state=None if self._only is epoch else epoch,
            seed=seed,
            prefetch=2 * self._engine.workers,
            timeout_s=timeout_s or None,
        )
        try:
            yield from iteration
        except (WorkerDied, Timeout) as error:
            raise as_torchs(error, timeout_s) from error
        finally:
            iteration.close()
            if self._only is not None:
                self.close()

    def close(self) -> None:
        self._engine.close()


def _look(loader: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(loader).items() if name not in _OF_AN_EPOCH}


def _same(now: Any, known: Any) -> bool:
    if now is known:
        return True
    return type(now) is type(known) and isinstance(now, _PLAIN) and bool(now == known)
