"""Importance weights of a batch that several shards have given, as one table would weigh it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from async_loader.replay.samplers import Prioritized
from async_loader.replay.samplers.schedule import schedule


class Whole(NamedTuple):
    """The items of all shards together.

    Attributes
    ----------
    items : int
    mass : float
        The sum of what their probabilities are in proportion to.
    least : float | None
        The least of these, where the sampler knows it.
    """

    items: int
    mass: float
    least: float | None


class Importance:
    """Weights (N * P(i)) ** -beta, normalised, with N and P over all shards (Schaul et al. 2016,
    section 3.4).

    Parameters
    ----------
    sampler : Prioritized
        With the settings of the shards' own.
    learners : int
        That draw batches: a schedule of beta counts those of all.
    """

    def __init__(self, sampler: Prioritized, learners: int) -> None:
        self._schedule, self._normalize = schedule("beta", sampler.beta), sampler.normalize
        self._learners, self._draws = learners, 0

    def weigh(self, mass: npt.NDArray[np.float32], whole: Whole) -> None:
        """Write the weights of the rows of one batch over their masses."""
        beta = self._schedule.at(self._draws)
        self._draws += self._learners
        if not whole.mass > 0 or not mass.size:
            mass[...] = 1.0
            return
        drawn: Any = mass.astype(np.float64)
        there = drawn > 0
        base = float(drawn[there].min()) if there.any() else 1.0
        if self._normalize == "buffer" and whole.least is not None:
            base = min(base, whole.least)
        elif self._normalize == "none":
            base = whole.mass / max(1, whole.items)
        drawn[~there] = base
        mass[...] = (base / drawn) ** beta
