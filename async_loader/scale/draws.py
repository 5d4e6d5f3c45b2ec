"""Which shard a batch is of, and what weighs its rows: arithmetic over live totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import Unsupported
from async_loader.feeder.plain_values import sampler_from
from async_loader.feeder.wire import TotalsReply
from async_loader.replay.samplers import Fifo, Prioritized, Uniform
from async_loader.replay.samplers.priority_rules import schedule


class Draws:
    """How a table's sampler draws, over several shards with the same settings.

    Parameters
    ----------
    settings : dict | None
        The sampler, as in a configuration; ``None``: of a class that those do not know.
    learners : int
        That draw batches: a schedule of beta counts the draws of all.
    leased : bool
        Whether the tables give each item once.

    Attributes
    ----------
    in_turn : bool
        Shards give what they have, as it comes; else each in proportion to its total.

    Raises
    ------
    Unsupported
        For samplers whose draws from several shards are not those from one table.
    """

    def __init__(
        self, settings: dict[str, Any] | None, learners: int = 1, leased: bool = False
    ) -> None:
        sampler = None if settings is None else sampler_from(settings)
        self._learners, self._batches = learners, 0
        self.in_turn = leased or isinstance(sampler, Fifo)
        self._sampler: Prioritized | None = None
        if isinstance(sampler, Prioritized):
            self._sampler, self._beta = sampler, schedule("beta", sampler.beta)
        elif not isinstance(sampler, Fifo) and not (
            isinstance(sampler, Uniform) and sampler.repeats
        ):
            raise Unsupported(
                f"the sampler of this table is {sampler!r}, and the source of a cluster draws by "
                "Uniform(), Prioritized or Fifo: give one of them, or use client.shard(name)"
            )

    def shares(self, totals: Sequence[TotalsReply]) -> npt.NDArray[np.float64] | None:
        """Return the probability of each shard; ``None`` if there is nothing to draw from."""
        weights = np.array([one.mass or 0.0 for one in totals])
        if self._sampler is None or not weights.sum() > 0:
            weights = np.array([float(one.items) for one in totals])
        return weights / weights.sum() if weights.sum() > 0 else None

    def weigh(
        self, mass: npt.NDArray[np.float32], totals: Sequence[TotalsReply]
    ) -> npt.NDArray[np.float32]:
        """Return the weights of the rows of one batch, of these masses.

        ``(N * P(i)) ** -beta``, normalised, with N and P over all shards (Schaul et al. 2016,
        section 3.4).
        """
        whole = sum(one.mass or 0.0 for one in totals)
        if self._sampler is None:
            return mass
        beta = self._beta.at(self._batches)
        self._batches += self._learners
        drawn = mass.astype(np.float64)
        base = float(drawn[drawn > 0].min(initial=np.inf))
        if not np.isfinite(base) or not whole > 0:
            return np.ones_like(mass)
        least = [one.least for one in totals if one.least is not None]
        if self._sampler.normalize == "buffer" and least:
            base = min(base, *least)
        elif self._sampler.normalize == "none":
            base = whole / max(1, sum(one.items for one in totals))
        drawn[drawn <= 0] = base
        weights: npt.NDArray[np.float32] = ((base / drawn) ** beta).astype(np.float32)
        return weights
