"""Which steps make the next batch, uniformly. Knows ids only: no rows, no memory."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

_AHEAD = 16_384


class Uniform:
    """Every live step with the same probability, with replacement.

    Cost: O(count), 4 us for 256 ids. Any thread; threads that share one get interleaved parts of its sequence.

    Parameters
    ----------
    seed : int | sequence of int | SeedSequence | None
        The generator is made at the first draw: a reader that never redraws never pays for it.
    """

    __slots__ = ("_ahead", "_lock", "_rng", "_seed")

    def __init__(self, seed: int | tuple[int, ...] | np.random.SeedSequence | None) -> None:
        self._seed = seed
        self._rng: np.random.Generator | None = None
        self._ahead: npt.NDArray[np.float64] = np.empty(0)
        self._lock = threading.Lock()

    def draw(self, first: int, end: int, count: int) -> npt.NDArray[np.int64]:
        """``count`` ids of ``first`` to ``end - 1``; there must be one.

        Returns
        -------
        int64 array [count]
        """
        # Scaling 53 random bits takes half the time of Generator.integers (3.5 against 7.3 us for 256) and is off
        # uniform by less than (end - first) / 2**53. The largest random() below 1 rounds to below end - first.
        ids = (self._uniforms(count) * (end - first)).astype(np.int64)
        ids += first
        return ids

    def _uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """The next numbers of the sequence, made many at a time.

        The generator lets go of the GIL, and beside a learner that wants it getting it back takes up to 5 ms.
        """
        with self._lock:
            if len(self._ahead) < count:
                if self._rng is None:
                    self._rng = np.random.default_rng(self._seed)
                    more = count  # whoever draws once, as a reader that draws again, pays for no more
                else:
                    more = max(count, _AHEAD)
                self._ahead = np.concatenate((self._ahead, self._rng.random(more)))
            taken, self._ahead = self._ahead[:count], self._ahead[count:]
            return taken
