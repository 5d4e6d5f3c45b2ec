"""A replay buffer as the loader sees it: plans batches of ids, waiting until there is something to draw. Reads no row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError, Unsupported
from async_loader.lifecycle import Bell, Patience
from async_loader.replay.reader import ReplayReader
from async_loader.replay.sampler import Uniform
from async_loader.source import Applied, Rows

if TYPE_CHECKING:
    from async_loader.replay.buffer import ReplayBuffer


class ReplaySource:
    """Uniform batches out of a buffer, once it holds ``min_size`` steps. Made by `ReplayBuffer.source`.

    Parameters
    ----------
    buffer : ReplayBuffer
    min_size : int
        Steps that `plan` waits for.
    sampler : Uniform

    Raises
    ------
    ConfigError
        If ``min_size`` is below 1 or above the capacity.
    """

    def __init__(self, buffer: ReplayBuffer, min_size: int, sampler: Uniform) -> None:
        if not 1 <= min_size <= buffer.capacity:
            raise ConfigError(f"min_size={min_size}: it must be 1 to {buffer.capacity}, the buffer's capacity")
        self._buffer = buffer
        self._min_size = min_size
        self._sampler = sampler

    def plan(self, batch_size: int, patience: Patience) -> Rows:
        """``batch_size`` ids of live steps, with replacement. Waits until the buffer holds ``min_size`` steps."""
        if len(self._buffer) < self._min_size:
            self._wait(patience)
        return Rows(self._buffer.draw(batch_size, self._sampler)[1])

    def _wait(self, patience: Patience) -> None:
        bell = Bell()
        with self._buffer.ringing(bell):
            while reason := self.waiting_for():
                patience.wait(bell, reason)
                bell.clear()  # before looking again: what is added from here on rings it again

    def reader(self) -> ReplayReader | None:
        """See `ReplayBuffer.reader`."""
        return self._buffer.reader()

    def feedback(self, index: npt.NDArray[np.int64], priority: npt.NDArray[np.float64]) -> Applied:
        """Raises Unsupported: uniform sampling has no priorities."""
        raise Unsupported("this replay buffer samples uniformly and has no priorities to update: leave update_priorities out")

    def waiting_for(self) -> str | None:
        """What `plan` is waiting for, in numbers; ``None`` when it need not wait."""
        held = len(self._buffer)
        if held >= self._min_size:
            return None
        return f"steps: the replay buffer holds {held} of the {self._min_size} that sampling needs, add more"
