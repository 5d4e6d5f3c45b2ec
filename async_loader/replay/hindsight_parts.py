"""A view of hindsight goals whose functions another process calls: what it shows in their place.

# NOTE [parts]
A feeder runs no function of a user. Its table chooses the goals, and batches carry what the rewards
are computed from, as fields behind those of the steps. Their names begin with `PREFIX`:

================= ============================ ================================================
``goal``          ``[batch, *goal]``           the new goal
``steps``         int64 ``[batch]``            k, the steps of the return
``achieved``      ``[batch, n_steps, *goal]``  what each of the k steps achieved
``info:I``        ``[batch, n_steps, ...]``    field I of `Hindsight.info` of each of them
``each:J``        ``[batch, n_steps - 1, ...]`` field J of the batch, of returns of 1, 2, ... steps
================= ============================ ================================================

All of them are 0 in rows whose goal was not replaced, and behind the k steps. ``reward`` is that of
the stored goals. Only ``compute_terminated`` ends a return early: so ``each:J`` is there with it
alone, for the fields that show the last step of a return, or what followed it, but for goals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from async_loader.errors import Unsupported
from async_loader.replay.hindsight_view import Hindsight
from async_loader.schema import Field

PREFIX = "hindsight:"
GOAL, STEPS, ACHIEVED = f"{PREFIX}goal", f"{PREFIX}steps", f"{PREFIX}achieved"
INFO, EACH = f"{PREFIX}info:", f"{PREFIX}each:"


def _elsewhere(achieved: object, desired: object, info: object) -> object:
    raise Unsupported("the functions of this view are called in a learner's process")


class HindsightParts(Hindsight):
    """As `Hindsight`, before its functions were called: see NOTE [parts]."""

    __slots__ = ()

    @classmethod
    def of(cls, *, ends: bool, **settings: object) -> HindsightParts:
        """Make a view. ``ends``: whether it has a ``compute_terminated``."""
        terminated = _elsewhere if ends else None
        return cls(_elsewhere, compute_terminated=terminated, **settings)  # type: ignore[arg-type]

    @property
    def ends(self) -> bool:
        """Whether a function says which steps terminate."""
        return self.compute_terminated is not None

    def fields(
        self, goal: Field, info: Sequence[Field], shown: Sequence[Field], ending: Sequence[int]
    ) -> tuple[Field, ...]:
        """Return the fields of the parts.

        Parameters
        ----------
        goal, info : Field, sequence of Field
            As they are stored.
        shown : sequence of Field
            Of the batch.
        ending : sequence of int
            Which of them show the last step of a return, or what followed it.
        """
        n = self.n_steps
        parts = [
            Field(goal.shape, goal.dtype, name=GOAL),
            Field((), np.int64, name=STEPS),
            Field((n, *goal.shape), goal.dtype, name=ACHIEVED),
        ]
        for i, one in enumerate(info):
            parts.append(Field((n, *one.shape), one.dtype, name=f"{INFO}{i}"))
        if self.ends and n > 1:
            for j in ending:
                one = shown[j]
                parts.append(Field((n - 1, *one.shape), one.dtype, name=f"{EACH}{j}"))
        return tuple(parts)
