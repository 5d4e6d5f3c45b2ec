"""The order of torch's samplers: the same draws from the same generators, without a step of Python for each item."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from async_loader.epochs.order import Sampled


class Drawn(Sampled):
    """What an index sampler of torch gives, batch by batch.

    Attributes
    ----------
    in_range : bool
        The tasks are arrays of indices that need not be checked.

    Parameters
    ----------
    index_sampler : iterable
        Whole batches of indices, or single ones.
    dataset : object
        Whose indices they are.
    track : bool
        Keep the sampler's state for each batch.
    """

    def __init__(self, index_sampler: Any, dataset: Any, *, track: bool) -> None:
        super().__init__(index_sampler, None, "keep", track=track)
        self._cut = _is_ours(index_sampler)
        self.in_range = self._cut and index_sampler.sampler.data_source is dataset
        self._seed: int | None = None

    def _tasks(self) -> Iterator[Any]:
        if not self._cut:
            yield from super()._tasks()
            return
        batches: Any = self._sampler
        size, n = batches.batch_size, len(batches.sampler.data_source)
        random = type(batches.sampler) is RandomSampler
        generator = self._drawing() if random else None
        index = torch.randperm(n, generator=generator).numpy() if random else np.arange(n)
        stop = n - n % size if batches.drop_last else n
        for at in range(0, stop, size):
            yield index[at : at + size]
        if random:
            torch.randperm(n, generator=generator)  # as torch does, at the end: a generator of the user's goes on from there

    @property
    def _draws_globally(self) -> bool:
        return not self._cut and super()._draws_globally

    def _drawing(self) -> torch.Generator:
        """The sampler's generator, or one seeded from the global generator, at the first batch, as the sampler does it."""
        sampler: Any = self._sampler.sampler  # type: ignore[attr-defined]
        if sampler.generator is not None:
            own: torch.Generator = sampler.generator
            return own
        if self._seed is None:
            self._seed = int(torch.empty((), dtype=torch.int64).random_().item())
        return torch.Generator().manual_seed(self._seed)

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        self._seed = None if self._loaded is None else self._loaded.get("seed")
        return super().epoch(number, start)

    def state(self, *, finished: bool) -> Any:
        state = dict(super().state(finished=finished))
        if not finished:
            if self._cut and self._seed is None and type(self._sampler.sampler) is RandomSampler:  # type: ignore[attr-defined]
                self._drawing()
            state["seed"] = self._seed
        return state


def _is_ours(index_sampler: Any) -> bool:
    """Whether torch's own samplers were left as they are, so that we know what they would give."""
    if type(index_sampler) is not BatchSampler:
        return False
    sampler = index_sampler.sampler
    if type(sampler) is SequentialSampler:
        return True
    if type(sampler) is not RandomSampler or sampler.replacement:
        return False
    n = len(sampler.data_source)
    generator = sampler.generator
    return n > 0 and sampler.num_samples == n and (generator is None or type(generator) is torch.Generator)
