"""torchdata's StatefulDataLoader: a DataLoader that saves its position and resumes from it.

Quirks that are kept, each with a test: ``shuffle`` has a generator of its own, seeded when the
loader is made; `state_dict` before the first pass starts one; `load_state_dict` applies to the next
pass, for which there are new workers; an empty state is that of a loader that delivered no batch;
the number of workers must match, which ``iter`` checks (AssertionError).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import IterDataPipe, MapDataPipe, RandomSampler

from async_loader.compat.torch.loader import DataLoader, Pass, T_co
from async_loader.compat.torch.order import Shuffled, is_known
from async_loader.dataset.batch_order import Batches, generator_state, set_generator
from async_loader.dataset.epoch import EpochProgress

_VERSION = 2

_ENDED = "_iterator_finished"
"""Added to a state by accelerate, which takes one batch more than it delivers:
no batch of the pass is left.
"""


class StatefulDataLoader(DataLoader[T_co]):
    """``torchdata.stateful_dataloader.StatefulDataLoader``.

    Samplers, datasets and iterators of both that have ``state_dict`` and ``load_state_dict`` are
    saved by those, with the states after the delivered batches, not after those made ahead.
    Others are advanced to the same position.

    Parameters
    ----------
    *args, **kwargs
        See `DataLoader`.
    snapshot_every_n_steps : int
        Accepted but not used: a state is exact after every batch.
    """

    _tracks = True

    def __init__(self, *args: Any, snapshot_every_n_steps: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self._start: dict[str, Any] = {}
        self._held: Pass | None = None
        self._latest: Pass | None = None
        shuffle = args[2] if len(args) > 2 else kwargs.get("shuffle")
        sampler: Any = self.sampler
        self._shuffles = bool(shuffle) and type(sampler) is RandomSampler
        if self._shuffles and sampler.generator is None:
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
            sampler.generator = torch.Generator().manual_seed(seed)

    def _get_iterator(self) -> Any:
        if isinstance(self.dataset, IterDataPipe | MapDataPipe):
            return super()._get_iterator()
        held, self._held = self._held, None
        if held is not None:
            return held
        start, self._start = self._start, {}
        ended = bool(start.pop(_ENDED, False)) and not start.get("finished")
        try:
            self._latest = self._begin(start)
            if ended:
                for _ in self._latest:
                    continue
                self._latest = self._begin({})
        except BaseException:
            self._start = {**start, _ENDED: ended} if ended else start
            raise
        return self._latest

    def _begin(self, start: dict[str, Any]) -> Pass:
        if start:
            workers = start["num_workers"]
            if workers != self.num_workers:
                text = (
                    f"the state is of {workers} workers, this loader has {self.num_workers}: "
                    "num_workers must match"
                )
                raise AssertionError(text)
        return super()._begin(start)

    def _drawn(self, batches: Batches, first: int, start: dict[str, Any]) -> tuple[int, Any]:
        generator, mine = self.generator, start.get("generator")
        if not isinstance(batches, Shuffled):
            set_generator(generator, mine)
            batches.restore()
            return super()._drawn(batches, first, start)
        # an order that was drawn before is drawn again, maybe from this generator
        if start.get("finished"):
            batches.restore()
            set_generator(generator, mine)
        tasks = batches.epoch(0, first)
        if not start.get("finished"):
            set_generator(generator, mine)
        return self._base_seed(start), tasks

    def _batches(self) -> Batches:
        if self._iterable or not self._shuffles or not is_known(self._index_sampler):
            return super()._batches()
        return Shuffled(self._index_sampler, self.dataset, lists=not self._auto_collation)

    def _before(self) -> EpochProgress | None:
        latest = self._latest
        if latest is None or not latest.epoch.finished:
            return None
        # other workers begin with this process's dataset
        return latest.epoch.progress if self.persistent_workers or not self.num_workers else None

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the latest pass.

        JSON can hold it if it can hold the states of dataset and sampler.
        """
        if isinstance(self.dataset, IterDataPipe | MapDataPipe):
            raise TypeError("datapipes go through torch's own iterators, which have no state")
        if self._start:
            return dict(self._start)
        if self._latest is None:
            self._held = self._get_iterator()
        latest = self._latest
        assert latest is not None
        state: dict[str, Any] = {
            "version": _VERSION,
            "num_workers": self.num_workers,
            "base_seed": latest.base_seed,
        }
        state.update(latest.epoch.state(), generator=generator_state(self.generator))
        if latest.epoch.finished:
            if not self.persistent_workers:  # persistent workers are seeded once
                state["base_seed"] = None
            if self.num_workers and not self.persistent_workers:
                # the next pass has new workers, which begin with this process's dataset
                state.pop("streams", None)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from this state in the next pass; a pass in progress is not affected.

        Raises
        ------
        ValueError
            If it is not a state of this class.
        """
        if state_dict != {} and (
            not isinstance(state_dict, dict) or state_dict.get("version") != _VERSION
        ):
            raise ValueError(f"this is no state_dict of a StatefulDataLoader of version {_VERSION}")
        self._start, self._held, self._latest = dict(state_dict), None, None
        self.__dict__.pop("_engine", None)  # a pass that is under way keeps its workers

    def __getstate__(self) -> dict[str, Any]:
        """Return the loader's state without its workers and passes."""
        return {**super().__getstate__(), "_held": None, "_latest": None}
