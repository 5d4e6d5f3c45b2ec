"""Returns of transitions with hindsight goals, from what their steps achieved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from async_loader import tensors
from async_loader.errors import ConfigError
from async_loader.names import describe
from async_loader.replay.array_types import Array, Bools, Floats, Ids
from async_loader.replay.hindsight_parts import ACHIEVED, EACH, GOAL, INFO, STEPS
from async_loader.replay.hindsight_view import GoalFunction, Hindsight


class NewGoals(NamedTuple):
    """Items whose goal was replaced.

    Attributes
    ----------
    goals : array [items, *goal]
    achieved : array [items, n_steps, *goal]
        What each step of the return has achieved.
    info : mapping of str to array [items, n_steps, ...]
    steps : int64 array [items]
        Steps of each return; what is behind them in the other arrays means nothing.
    """

    goals: Array
    achieved: Array
    info: Mapping[str, Array]
    steps: Ids


class NewReturns(NamedTuple):
    """What the functions of a view say of `NewGoals`.

    Attributes
    ----------
    rewards : float64 array [items, n_steps]
        0 behind a return's last step.
    ended : bool array [items, n_steps]
        True for a return's last step, if ``compute_terminated`` is true for it.
    steps : int64 array [items]
        Of each return, until it ends.
    """

    rewards: Floats
    ended: Bools
    steps: Ids


class ReturnPlaces(NamedTuple):
    """Which arrays of a batch depend on a return; -1 for those that it does not have."""

    reward: int
    terminated: int
    done: int
    truncated: int
    discount: int


def returns_of(view: Hindsight, new: NewGoals) -> NewReturns:
    """Call the functions of a view: once each, for the steps of all items.

    Raises
    ------
    ConfigError
        If one of them does not return one number for each step.
    """
    n, steps = new.achieved.shape[1], new.steps
    rewards, ended = np.zeros((len(steps), n)), np.zeros((len(steps), n), np.bool_)
    if not len(steps):
        return NewReturns(rewards, ended, steps)
    there = np.arange(n) < steps[:, None]
    achieved, desired = new.achieved[there], new.goals.repeat(steps, axis=0)
    info = {name: array[there] for name, array in new.info.items()}
    given = achieved, desired, info
    rewards[there] = _called("compute_reward", view.compute_reward, *given)
    if view.compute_terminated is None:
        return NewReturns(rewards, ended, steps)
    ended[there] = _called("compute_terminated", view.compute_terminated, *given) != 0
    return _cut_off(NewReturns(rewards, ended, steps))


def _cut_off(returns: NewReturns) -> NewReturns:
    """End each return with the first of its steps that terminated."""
    rewards, ended, steps = returns
    steps = np.where(ended.any(axis=1), ended.argmax(axis=1) + 1, steps)
    beyond = np.arange(ended.shape[1]) >= steps[:, None]
    rewards[beyond], ended[beyond] = 0.0, False
    return NewReturns(rewards, ended, steps)


def replace_returns(
    view: Hindsight,
    arrays: Sequence[Array],
    at: ReturnPlaces,
    new: Ids,
    parts: Mapping[str, Array],
) -> None:
    """Compute the returns of the items ``new`` of a batch, whose goals were replaced.

    ``parts``: by their names in NOTE [parts] of hindsight_parts.py.
    """
    info = {name: parts[f"{INFO}{i}"][new] for i, name in enumerate(view.info)}
    goals = NewGoals(parts[GOAL][new], parts[ACHIEVED][new], info, parts[STEPS][new])
    returns = returns_of(view, goals)
    cut = returns.steps < goals.steps
    rows, steps = new[cut], returns.steps[cut]
    for name, part in parts.items():
        if name.startswith(EACH):
            arrays[int(name.removeprefix(EACH))][rows] = part[rows, steps - 1]
    gamma = view.gamma
    arrays[at.reward][new] = returns.rewards @ gamma ** np.arange(returns.rewards.shape[1])
    if view.compute_terminated is None:
        return
    last = returns.ended.any(axis=1)
    arrays[at.discount][new] = np.where(last, 0.0, gamma**returns.steps)
    if at.terminated >= 0:
        _numbers(arrays[at.terminated])[new] = last
    if at.done >= 0:
        done = _numbers(arrays[at.done])
        cut_off = at.truncated >= 0 and (_numbers(arrays[at.truncated])[new] != 0)
        done[new] = last | (cut_off & (done[new] != 0))


def _numbers(array: Array) -> Array:
    """Return one number for each item, of a field that may have a shape of ones."""
    return array.reshape(len(array))


def _called(
    parameter: str, function: GoalFunction, achieved: Array, desired: Array, info: dict[str, Array]
) -> Array:
    """Return what a function of goals gives, ``[n]``.

    Raises
    ------
    ConfigError
        For any other shape, and for numbers that are not finite.
    """
    array = tensors.to_array(function(achieved, desired, info))
    if not array.ndim or array.size != len(achieved) or array.dtype.kind not in "biuf":
        raise ConfigError(
            f"{parameter}={describe(function)} gave {array.dtype.name}{list(array.shape)} for "
            f"goals {list(achieved.shape)}: return one number for each, [{len(achieved)}]"
        )
    array = array.reshape(len(achieved))
    if not np.isfinite(array).all():
        wrong = np.flatnonzero(~np.isfinite(array))
        first = int(wrong[0])
        raise ConfigError(
            f"{parameter}={describe(function)} gave {array[first]} in row {first} of "
            f"{len(achieved)} ({len(wrong)} such rows): it achieved {achieved[first]} and its goal "
            f"was {desired[first]}; return finite numbers, and store finite goals"
        )
    return array
