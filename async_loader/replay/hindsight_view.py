"""Transitions whose goals are replaced by goals that their episodes achieved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from async_loader import tensors
from async_loader.errors import ConfigError, Unsupported
from async_loader.name_hints import describe, explain_wrong_names
from async_loader.replay.array_types import Array, Ids
from async_loader.schema import END_FIELDS, Field, Schema
from async_loader.validation import share, whole

GoalFunction = Callable[[Any, Any, dict[str, Any]], Any]
Strategy = Literal["future", "final", "episode"]


@dataclass(frozen=True, slots=True, init=False)
class Hindsight:
    """Transitions with hindsight goals (Andrychowicz et al. 2017: section 3.3, algorithm 1; section
    4.5 on strategies).

    A drawn step keeps its goal with probability ``1 - relabel_fraction``. Otherwise its goal, also
    that of its next observation, is replaced by one that its episode achieved later, and its reward
    is computed again. Batches are those of `Transitions`, and

    - ``relabelled``: bool ``[batch]``, where the goal was replaced;
    - ``reward`` of those: ``compute_reward`` of what each of the k steps of the return achieved,
      summed up with gamma**i as in any return (Yang et al. 2021, "Bias-reduced multi-step hindsight
      experience replay"). Achieving the goal does not cut the sum off, unless
      ``compute_terminated`` says so;
    - ``terminated`` and ``discount`` are as they are stored, unless there is a
      ``compute_terminated``.

    A goal is what was achieved *after* a step, as rewards are. An episode that terminated without a
    final observation does not say what its last step achieved: give ``final_obs``. Until then a
    return that contains that step keeps its goal.

    Parameters
    ----------
    compute_reward : callable
        ``compute_reward(achieved_goal, desired_goal, info) -> reward``: arrays ``[n, *goal]`` of
        what n steps have achieved and of their goals, and a dict; returns ``[n]``. That of a
        Gymnasium-Robotics environment, ``env.unwrapped.compute_reward``, is one. It is called where
        batches are made, also in worker processes, and must not change its arguments.
    strategy : "future" | "final" | "episode"
        Which goals: one of what was achieved after this step or any later one of its episode, each
        equally likely, up to the newest in an open episode; what was achieved at the end, or last;
        any of the episode. Steps that were overwritten are left out; deleted ones are not.
    relabel_fraction : float
        0 to 1. 0.8 is the paper's k = 4: four relabelled steps for one that is not.
    goal, achieved : str
        Names of fields, dotted where they are nested (``"obs.desired_goal"``); the last part is
        enough if only one field has it. The achieved goal's field has ``next=``, or steps have its
        successor as ``next_...``: ``next_obs.achieved_goal``.
    n_steps, gamma, reward : int, float, str
        As in `Transitions`. The reward is a float.
    info : str | sequence of str
        Fields that ``compute_reward`` is given as a dict of arrays ``[n, ...]``, by these names:
        those of the step that was rewarded.
    compute_terminated : callable, optional
        As ``compute_reward``; returns bools ``[n]``. The return of a relabelled step ends with the
        first of its steps for which it is true: ``terminated`` is true and ``discount`` is 0 then,
        otherwise false and gamma**k.

    Raises
    ------
    ConfigError
        For functions that cannot be called, fractions out of range and unknown strategies.
    """

    compute_reward: GoalFunction
    strategy: Strategy
    relabel_fraction: float
    goal: str
    achieved: str
    n_steps: int
    gamma: float
    reward: str
    info: tuple[str, ...]
    compute_terminated: GoalFunction | None

    @explain_wrong_names
    def __init__(
        self,
        compute_reward: GoalFunction,
        *,
        strategy: Strategy = "future",
        relabel_fraction: float = 0.8,
        goal: str = "desired_goal",
        achieved: str = "achieved_goal",
        n_steps: int = 1,
        gamma: float = 0.99,
        reward: str = "reward",
        info: str | Sequence[str] = (),
        compute_terminated: GoalFunction | None = None,
    ) -> None:
        _check_function("compute_reward", compute_reward)
        if compute_terminated is not None:
            _check_function("compute_terminated", compute_terminated)
        if strategy not in get_args(Strategy):
            raise ConfigError(
                f"strategy={strategy!r}: it is one of "
                f"{', '.join(repr(one) for one in get_args(Strategy))}"
            )
        what = "the share of steps that get another goal, as 0.8 for four of five,"
        relabel_fraction = share("relabel_fraction", relabel_fraction, what)
        info = (info,) if isinstance(info, str) else tuple(info)
        for parameter, name in (
            ("goal", goal),
            ("achieved", achieved),
            *(("info", i) for i in info),
        ):
            field_name(parameter, name)
        gamma = check_return(n_steps, gamma, reward)
        given = locals()
        for name in Hindsight.__slots__:
            object.__setattr__(self, name, given[name])


def _check_function(parameter: str, function: object) -> None:
    if not callable(function):
        raise ConfigError(
            f"{parameter}={function!r}: give a function of (achieved_goal, desired_goal, info), as "
            "in env.unwrapped.compute_reward"
        )
    try:
        hash(function)
    except TypeError:
        raise ConfigError(
            f"{parameter}={function!r} cannot be hashed, and tables know views by what they hold: "
            "give a function or a method"
        ) from None


def steps(name: str, value: Any, least: int = 1) -> int:
    """Return a number of steps, or raise ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r}: it is a Python int, {least} or more")
    return whole(name, value, least)


def field_name(parameter: str, name: Any) -> None:
    """Raise ConfigError for what is no name of a field."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{parameter}={name!r}: it is the name of a field, as in {parameter!r}")


def check_return(n_steps: Any, gamma: Any, reward: Any) -> float:
    """Return gamma as a float. Raises ConfigError for what makes no return."""
    steps("n_steps", n_steps)
    field_name("reward", reward)
    return share("gamma", gamma, "a discount")


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
