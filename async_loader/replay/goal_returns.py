"""Returns of transitions with hindsight goals, from what their steps achieved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from async_loader import tensors
from async_loader.errors import ConfigError
from async_loader.names import describe
from async_loader.replay.array_types import Array, Ids
from async_loader.replay.hindsight_parts import ACHIEVED, EACH, GOAL, INFO, STEPS
from async_loader.replay.hindsight_view import GoalFunction, Hindsight


class ReturnPlaces(NamedTuple):
    """Which arrays of a batch depend on a return; -1 for those that it does not have."""

    reward: int
    terminated: int
    done: int
    truncated: int
    discount: int


def replace_returns(
    view: Hindsight,
    arrays: Sequence[Array],
    at: ReturnPlaces,
    new: Ids,
    parts: Mapping[str, Array],
) -> None:
    """Compute the returns of the items ``new`` of a batch, whose goals were replaced.

    Calls the functions of the view once each, for the steps of all items. ``parts``: by their names
    in NOTE [parts] of hindsight_parts.py.

    Raises
    ------
    ConfigError
        If a function does not return one finite number for each step.
    """
    if not len(new):
        return
    steps, gamma, n = parts[STEPS][new], view.gamma, parts[ACHIEVED].shape[1]
    there = np.arange(n) < steps[:, None]
    info = {name: parts[f"{INFO}{i}"][new][there] for i, name in enumerate(view.info)}
    given = parts[ACHIEVED][new][there], parts[GOAL][new].repeat(steps, axis=0), info
    rewards = np.zeros((len(new), n))
    rewards[there] = _called("compute_reward", view.compute_reward, *given)
    if view.compute_terminated is None:
        arrays[at.reward][new] = rewards @ gamma ** np.arange(n)
        return
    ended = np.zeros((len(new), n), np.bool_)
    ended[there] = _called("compute_terminated", view.compute_terminated, *given) != 0
    last = ended.any(axis=1)
    until = np.where(last, ended.argmax(axis=1) + 1, steps)
    rewards[np.arange(n) >= until[:, None]] = 0.0
    arrays[at.reward][new] = rewards @ gamma ** np.arange(n)
    arrays[at.discount][new] = np.where(last, 0.0, gamma**until)
    rows, upto = new[until < steps], until[until < steps] - 1
    for name, part in parts.items():
        if name.startswith(EACH):
            arrays[int(name.removeprefix(EACH))][rows] = part[rows, upto]
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
