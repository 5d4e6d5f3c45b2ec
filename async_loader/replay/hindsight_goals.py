"""What a view of hindsight goals reads, what it changes in a batch, and the returns of new goals.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from async_loader import tensors
from async_loader.errors import ConfigError, Unsupported
from async_loader.name_hints import describe
from async_loader.replay.array_types import Array, Ids
from async_loader.replay.hindsight_view import GoalFunction, Hindsight
from async_loader.schema import END_FIELDS, Field, Schema

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


@dataclass(frozen=True, slots=True)
class GoalFields:
    """What is read for new goals, and what they change in a batch.

    Attributes
    ----------
    view : Hindsight
    achieved : int
        The stored field of what a step has achieved.
    following : bool
        Whether that is read from the row after the step.
    info : tuple of int
        Stored fields for `Hindsight.info`.
    goals : tuple of int
        Outputs that show the goal.
    """

    view: Hindsight
    achieved: int
    following: bool
    info: tuple[int, ...]
    goals: tuple[int, ...]

    @classmethod
    def of(
        cls, view: Hindsight, stored: Schema, shown: Sequence[tuple[str, int]], reward: int
    ) -> GoalFields:
        """Find the fields of a view.

        Parameters
        ----------
        shown : sequence of (str, int)
            Name and stored field of each output.
        reward : int
            The output of the reward.

        Raises
        ------
        ConfigError
            If steps do not have what the view names.
        """
        fields = stored.fields
        places = {field.name: i for i, field in enumerate(fields)}
        goal, achieved = (
            _found(stored, name, parameter)
            for parameter, name in (("goal", view.goal), ("achieved", view.achieved))
        )
        first, second = fields[goal], fields[achieved]
        if (first.shape, first.dtype) != (second.shape, second.dtype):
            raise ConfigError(
                f"a goal is replaced by an achieved one, and ({first}) differs from ({second}): "
                "store them with one shape and dtype"
            )
        following = second.next is not None
        if not following:
            after = f"next_{second.name}"
            if after not in places:
                raise ConfigError(
                    f"a step's goal is what was achieved after it, and steps have no {after!r}: "
                    f"say Field(..., next='next_{second.name.split('.')[0]}') for {second.name!r}"
                )
            _check_alike(second, fields[places[after]])
            achieved = places[after]
        rewarded = fields[shown[reward][1]]
        if rewarded.dtype.kind != "f" or rewarded.shape or rewarded.stack > 1:
            raise ConfigError(
                f"{rewarded}: the reward of another goal is a float, store one float for each step"
            )
        goals = [
            i for i, (name, of) in enumerate(shown) if of == goal or name == f"next_{first.name}"
        ]
        info = tuple(_found(stored, name, "info") for name in view.info)
        return cls(view, achieved, following, info, tuple(goals))


def _found(stored: Schema, name: str, parameter: str) -> int:
    """Return the field of this name, or the only one whose name ends with it."""
    names = [field.name for field in stored.fields]
    if name in names:
        return names.index(name)
    found = [
        i for i, one in enumerate(names) if one.endswith(f".{name}") and not one.startswith("next_")
    ]
    if len(found) == 1:
        return found[0]
    said = f"several: {', '.join(names[i] for i in found)}" if found else ", ".join(names)
    raise ConfigError(f"{parameter}={name!r}: steps have {said}; name one of their fields")


def _check_alike(achieved: Field, after: Field) -> None:
    if (achieved.shape, achieved.dtype) != (after.shape, after.dtype):
        raise ConfigError(f"({achieved}) and ({after}) differ: store them with one shape and dtype")


def replace_returns(
    view: Hindsight,
    arrays: Sequence[Array],
    places: Mapping[str, int],
    new: Ids,
    parts: Mapping[str, Array],
) -> None:
    """Compute the returns of the items ``new`` of a batch, whose goals were replaced.

    Calls the functions of the view once each, for the steps of all items. ``places``: of the
    arrays by their names. ``parts``: by their names in NOTE [parts].

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
    reward = arrays[places[view.reward]]
    if view.compute_terminated is None:
        reward[new] = rewards @ gamma ** np.arange(n)
        return
    ended = np.zeros((len(new), n), np.bool_)
    ended[there] = _called("compute_terminated", view.compute_terminated, *given) != 0
    last = ended.any(axis=1)
    until = np.where(last, ended.argmax(axis=1) + 1, steps)
    rewards[np.arange(n) >= until[:, None]] = 0.0
    reward[new] = rewards @ gamma ** np.arange(n)
    arrays[places["discount"]][new] = np.where(last, 0.0, gamma**until)
    rows, upto = new[until < steps], until[until < steps] - 1
    for name, part in parts.items():
        if name.startswith(EACH):
            arrays[int(name.removeprefix(EACH))][rows] = part[rows, upto]
    ends = {name: arrays[places[name]].reshape(-1) for name in END_FIELDS if name in places}
    if "terminated" in ends:
        ends["terminated"][new] = last
    if "done" in ends:
        cut_off = "truncated" in ends and ends["truncated"][new] != 0
        ends["done"][new] = last | (cut_off & (ends["done"][new] != 0))


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
