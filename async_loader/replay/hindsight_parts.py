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

They mean something in rows whose goal was replaced, up to the k-th step. ``reward`` is that of the
stored goals. A table in the learner's process reads the same, and delivers none of it.

Only ``compute_terminated`` ends a return early: so ``each:J`` is there with it alone, for the
fields that show the last step of a return, or what followed it, but for goals.
"""

from __future__ import annotations

from async_loader.errors import Unsupported
from async_loader.replay.hindsight_view import Hindsight

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
