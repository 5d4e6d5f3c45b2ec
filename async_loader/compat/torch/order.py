"""The order of torch's samplers: the same draws from the same generators,
without Python code for each item.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from async_loader.dataset.batch_order import SamplerBatches, generator_state


class Drawn(SamplerBatches):
    """The batches of indices of a torch sampler.

    Attributes
    ----------
    in_range : bool
        The tasks are arrays of indices that need no bounds check.

    Parameters
    ----------
    index_sampler : iterable
        Whole batches of indices, or single ones.
    dataset : object
        The dataset that the indices refer to.
    first : bool
        Draw the order by `draw`, before the base seed, like torchdata's random sampler;
        otherwise with the first batch, like torch's, which draws once more at the end.
    lists : bool
        A batch of indices is a list, passed to the dataset unchanged.
    """

    def __init__(
        self,
        index_sampler: Any,
        dataset: Any,
        *,
        first: bool = False,
        lists: bool = False,
    ) -> None:
        super().__init__(index_sampler, None, "keep")
        self._sizes = type(index_sampler) is BatchSampler
        self._torchs = index_sampler.sampler if self._sizes else index_sampler
        self._known = _is_known(self._torchs)
        self._random = type(self._torchs) is RandomSampler
        self._first = first and self._known and self._random
        self.in_range = self._known and self._sizes and self._torchs.data_source is dataset
        self._lists = lists
        self._seed: int | None = None
        self._before: Any = None
        self._index: Any = None

    def draw(self) -> None:
        """Do the steps that precede drawing the base seed, possibly from the same generator."""
        if self._first:
            self._resume()
            self._index = self._drawn()
        elif self._known:
            self._resume()
        else:
            self.restore()

    def redraws_from(self, generator: object) -> bool:
        """Whether `epoch` draws the order of a loaded state again, from this generator, which then
        has to be in the state from which the epoch drew it.
        """
        drawn = self._index is not None
        return not drawn and generator is not None and generator is self._generator

    def _resume(self) -> None:
        loaded = self._loaded
        if loaded is not None:
            self._seed = loaded.get("seed")
            self.restore()
        self._before = generator_state(self._generator)

    def _drawn(self) -> Any:
        n = len(self._torchs.data_source)
        return (
            torch.randperm(n, generator=self._drawing()).numpy() if self._random else np.arange(n)
        )

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        if not self._known:
            return super().epoch(number, start)
        if self._index is None:
            self._resume()
        return self._known_tasks(start)

    def _known_tasks(self, start: int) -> Iterator[Any]:
        first = self._index is not None
        index = self._index if first else self._drawn()
        self._index = None
        # a generator of the user continues from there; one of this pass alone is not seen
        more = self._random and not first and self._torchs.generator is not None
        if not self._sizes:
            yield from index[start:].tolist()
        else:
            size, n = self._sampler.batch_size, len(index)
            stop = n - n % size if self._sampler.drop_last else n
            for at in range(start * size, stop, size):
                batch = index[at : at + size]
                if more and len(batch) < size:
                    # torch's batch sampler reaches the sampler's end before it gives this batch
                    self._draw_once_more(n)
                    more = False
                yield batch.tolist() if self._lists else batch
        if more:
            self._draw_once_more(len(index))

    def _draw_once_more(self, n: int) -> None:
        """Advance the generator as torch's sampler does at its end; the user's draws follow."""
        torch.randperm(n, generator=self._drawing())

    @property
    def _draws_globally(self) -> bool:
        return not self._known and super()._draws_globally

    def _drawing(self) -> torch.Generator:
        """Return the sampler's generator, or one seeded from the global generator at the first
        batch, as the sampler does.
        """
        if self._torchs.generator is not None and self._seed is None:
            own: torch.Generator = self._torchs.generator
            return own
        if self._seed is None:
            self._seed = int(torch.empty((), dtype=torch.int64).random_().item())
        return torch.Generator().manual_seed(self._seed)

    def state(self, *, upto: int = 0, finished: bool = False) -> Any:
        if not self._known:
            return super().state(upto=upto, finished=finished)
        state = {**self._now(), "generator": self._before, "seed": self._seed}
        if finished:
            return {**state, "generator": generator_state(self._generator), "seed": None}
        if self._random and self._seed is None:
            self._drawing()
        return {**state, "seed": self._seed}


def _is_known(sampler: Any) -> bool:
    """Whether this is one of torch's own samplers, unchanged,
    so that its order can be computed in bulk.
    """
    if type(sampler) is SequentialSampler:
        return True
    if type(sampler) is not RandomSampler or sampler.replacement:
        return False
    n = len(sampler.data_source)
    generator = sampler.generator
    return (
        n > 0
        and sampler.num_samples == n
        and (generator is None or type(generator) is torch.Generator)
    )
