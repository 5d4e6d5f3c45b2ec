"""Transitions whose goals are replaced by goals that their episodes achieved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from async_loader.errors import ConfigError
from async_loader.name_hints import explain_wrong_names
from async_loader.validation import within_floats

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
        share("relabel_fraction", relabel_fraction, what)
        info = (info,) if isinstance(info, str) else tuple(info)
        for parameter, name in (
            ("goal", goal),
            ("achieved", achieved),
            *(("info", i) for i in info),
        ):
            field_name(parameter, name)
        check_return(n_steps, gamma, reward)
        relabel_fraction = float(relabel_fraction)
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
    return within_floats(name, value)


def share(name: str, value: Any, what: str) -> None:
    """Raise ConfigError for what is no number from 0 to 1. ``what``: what it is."""
    if isinstance(value, bool | str) or not hasattr(value, "__float__") or not 0 <= value <= 1:
        raise ConfigError(f"{name}={value!r}: {what} is 0 to 1")


def field_name(parameter: str, name: Any) -> None:
    """Raise ConfigError for what is no name of a field."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{parameter}={name!r}: it is the name of a field, as in {parameter!r}")


def check_return(n_steps: Any, gamma: Any, reward: Any) -> None:
    """Raise ConfigError for what makes no return."""
    steps("n_steps", n_steps)
    share("gamma", gamma, "a discount")
    field_name("reward", reward)
