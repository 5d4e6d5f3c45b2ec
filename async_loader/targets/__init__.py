"""Targets of value functions and policies over the time axis of a batch: lambda returns, GAE,
V-trace, Retrace, n-step returns and reward-to-go.

Each is a function of arrays ``[batch, time]`` and a class of the same meaning whose objects fit
``AsyncDataLoader(transform=...)``. Written for batches of `Sequences` and for rollouts.

For all of them:

- ``reward[:, t]`` is the reward of the action of step t, ``value[:, t]`` the value of the
  observation of step t;
- ``terminated`` ends an episode for good: nothing is added from behind it;
- ``truncated`` ends it without that: what follows belongs to another episode, and the value of its
  final observation counts, where it is known;
- ``mask`` says where there is a step; places without one have no influence on any other;
- the value behind step t is ``value[:, t + 1]`` where that place holds the next step of the
  episode. Elsewhere it is ``next_value[:, t]``, if given; and ``bootstrap``, if given, behind the
  last step of each row whose episode goes on.

A step that did not terminate and has no known value behind it has no target: the last step of a
sequence that was cut out of its episode (for this ``Sequences(bootstrap=1)`` shows one more), and a
truncated one without ``next_value``. It stands for all that follows it: the steps before it use its
value. The mask that is returned is False there; advantages are 0 there, and other targets the value
itself.

Computed in float64 and returned as float32, or float64 if the rewards are.
"""

from __future__ import annotations

from async_loader.public_names import set_public_names
from async_loader.targets.functions import (
    Advantages,
    Targets,
    gae,
    lambda_returns,
    n_step_returns,
    retrace,
    reward_to_go,
    vtrace,
)
from async_loader.targets.transforms import (
    GAE,
    LambdaReturns,
    NStepReturns,
    Retrace,
    RewardToGo,
    VTrace,
)

__all__ = [
    "GAE",
    "Advantages",
    "LambdaReturns",
    "NStepReturns",
    "Retrace",
    "RewardToGo",
    "Targets",
    "VTrace",
    "gae",
    "lambda_returns",
    "n_step_returns",
    "retrace",
    "reward_to_go",
    "vtrace",
]
set_public_names(globals())
