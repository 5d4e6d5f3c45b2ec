"""The targets as functions of arrays ``[batch, time]``."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from async_loader.errors import ConfigError
from async_loader.name_hints import explain_wrong_names
from async_loader.targets.steps import Array, Steps, backward, shifted


class Targets(NamedTuple):
    """Targets of a value function, and where there are any.

    Attributes
    ----------
    target : float array [batch, time]
    mask : bool array [batch, time]
    """

    target: Array
    mask: Array


class Advantages(NamedTuple):
    """Advantages, targets of a value function, and where there are any.

    Attributes
    ----------
    advantage : float array [batch, time]
    target : float array [batch, time]
    mask : bool array [batch, time]
    """

    advantage: Array
    target: Array
    mask: Array


@explain_wrong_names
def lambda_returns(
    reward: Any,
    value: Any,
    terminated: Any = None,
    *,
    gamma: float = 0.99,
    lam: float = 0.95,
    truncated: Any = None,
    mask: Any = None,
    next_value: Any = None,
    bootstrap: Any = None,
) -> Targets:
    """Return the state-based lambda return of each step.

    ``G[t] = r[t] + gamma * ((1 - lam) * v(s[t + 1]) + lam * G[t + 1])`` (Sutton and Barto, 2nd ed.,
    equation 12.18, with constant gamma and lambda; their R[t + 1] is r[t]), and ``r[t]`` at the end
    of an episode.

    Parameters
    ----------
    reward, value : float array [batch, time]
    terminated : bool array [batch, time], optional
    gamma, lam : float
        0 to 1.
    truncated, mask : bool array [batch, time], optional
    next_value : float array [batch, time], optional
        The value behind each step; used where the next place does not hold the next step, so that
        only those of truncated and of last steps matter.
    bootstrap : float array [batch], optional
        The value behind the last step of each row, where that ended no episode.

    Raises
    ------
    ConfigError
        For a discount or lambda out of range.
    SchemaError
        For arrays of other shapes or dtypes.
    """
    steps = Steps(reward, terminated, truncated, mask, value, next_value, bootstrap)
    extra = _error_sums(steps, _fraction("gamma", gamma), _fraction("lam", lam))
    return Targets(steps.out(steps.value + extra), steps.complete)


@explain_wrong_names
def gae(
    reward: Any,
    value: Any,
    terminated: Any = None,
    *,
    gamma: float = 0.99,
    lam: float = 0.95,
    truncated: Any = None,
    mask: Any = None,
    next_value: Any = None,
    bootstrap: Any = None,
) -> Advantages:
    """Return the generalized advantage estimate of each step.

    ``A[t] = sum over l of (gamma * lam)**l * delta[t + l]`` with
    ``delta[t] = r[t] + gamma * V(s[t + 1]) - V(s[t])`` (Schulman et al. 2016, equation 16). The
    target of the value function is ``A[t] + V(s[t])``, the lambda return.

    Parameters and errors are those of `lambda_returns`.
    """
    steps = Steps(reward, terminated, truncated, mask, value, next_value, bootstrap)
    advantage = _error_sums(steps, _fraction("gamma", gamma), _fraction("lam", lam))
    return Advantages(steps.out(advantage), steps.out(steps.value + advantage), steps.complete)


@explain_wrong_names
def vtrace(
    reward: Any,
    value: Any,
    behaviour_log_prob: Any,
    target_log_prob: Any,
    terminated: Any = None,
    *,
    gamma: float = 0.99,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    truncated: Any = None,
    mask: Any = None,
    next_value: Any = None,
    bootstrap: Any = None,
) -> Advantages:
    """Return V-trace targets, and advantages for the policy gradient.

    ``v[s] = V(x[s]) + sum over t >= s of gamma**(t - s) * (c[s] ... c[t - 1]) * delta[t]`` with
    ``delta[t] = rho[t] * (r[t] + gamma * V(x[t + 1]) - V(x[t]))``,
    ``rho[t] = min(rho_bar, pi / mu)`` and ``c[t] = lam * min(c_bar, pi / mu)`` (Espeholt et al.
    2018, equation 1; lambda by their remark 2). The advantage is
    ``rho[s] * (r[s] + gamma * v[s + 1] - V(x[s]))`` (ibid., section 4.2).

    Parameters
    ----------
    reward, value : float array [batch, time]
    behaviour_log_prob, target_log_prob : float array [batch, time]
        Of the action that was taken: under the policy mu that acted, and under pi that learns.
    terminated : bool array [batch, time], optional
    gamma, lam : float
        0 to 1.
    rho_bar, c_bar : float
        Bounds of the importance weights, rho_bar at least c_bar; ``inf`` for none.
    truncated, mask, next_value, bootstrap
        As for `lambda_returns`.

    Raises
    ------
    ConfigError
        For numbers out of range.
    SchemaError
        For arrays of other shapes or dtypes.
    """
    gamma, lam = _fraction("gamma", gamma), _fraction("lam", lam)
    rho_bar, c_bar = _bound("rho_bar", rho_bar), _bound("c_bar", c_bar)
    if rho_bar < c_bar:
        raise ConfigError(
            f"rho_bar={rho_bar} is less than c_bar={c_bar}: V-trace needs rho_bar >= c_bar"
        )
    steps = Steps(reward, terminated, truncated, mask, value, next_value, bootstrap)
    ratio = _ratio(steps, behaviour_log_prob, target_log_prob)
    rho = np.where(steps.complete, np.minimum(rho_bar, ratio), 0.0)
    c, errors = (gamma * lam) * np.minimum(c_bar, ratio), steps.errors(gamma)
    extra = backward(rho * errors, np.where(steps.goes_on, c, 0.0))
    # v[s + 1] is V(x[s + 1]) and what the later steps add to it
    advantage = rho * (errors + np.where(steps.goes_on, gamma * shifted(extra), 0.0))
    return Advantages(steps.out(advantage), steps.out(steps.value + extra), steps.complete)


@explain_wrong_names
def retrace(
    reward: Any,
    q_value: Any,
    value: Any,
    behaviour_log_prob: Any,
    target_log_prob: Any,
    terminated: Any = None,
    *,
    gamma: float = 0.99,
    lam: float = 1.0,
    truncated: Any = None,
    mask: Any = None,
    next_value: Any = None,
    bootstrap: Any = None,
) -> Targets:
    """Return Retrace(lambda) targets of an action-value function.

    ``Q(x[t], a[t]) + sum over s >= t of gamma**(s - t) * (c[t + 1] ... c[s]) * delta[s]`` with
    ``delta[s] = r[s] + gamma * E_pi Q(x[s + 1], .) - Q(x[s], a[s])`` and
    ``c[s] = lam * min(1, pi / mu)`` (Munos et al. 2016: their general operator, with the traces of
    Retrace).

    Parameters
    ----------
    reward : float array [batch, time]
    q_value : float array [batch, time]
        Q(x[t], a[t]) of the action that was taken.
    value : float array [batch, time]
        The mean of Q(x[t], .) under the policy pi that learns.
    behaviour_log_prob, target_log_prob : float array [batch, time]
        Of the action that was taken: under the policy mu that acted, and under pi.
    terminated : bool array [batch, time], optional
    gamma, lam : float
        0 to 1.
    truncated, mask, next_value, bootstrap
        As for `lambda_returns`; values are means under pi.

    Returns
    -------
    Targets
        Where there is no target, ``q_value``.

    Raises
    ------
    ConfigError
        For numbers out of range.
    SchemaError
        For arrays of other shapes or dtypes.
    """
    gamma, lam = _fraction("gamma", gamma), _fraction("lam", lam)
    steps = Steps(reward, terminated, truncated, mask, value, next_value, bootstrap)
    q = np.where(steps.valid, steps.numbers("q_value", q_value), 0.0)
    c = lam * np.minimum(1.0, _ratio(steps, behaviour_log_prob, target_log_prob))
    extra = backward(steps.errors(gamma, q), np.where(steps.goes_on, gamma * shifted(c), 0.0))
    return Targets(steps.out(q + extra), steps.complete)


@explain_wrong_names
def n_step_returns(
    reward: Any,
    value: Any,
    terminated: Any = None,
    *,
    n_steps: int,
    gamma: float = 0.99,
    truncated: Any = None,
    mask: Any = None,
    next_value: Any = None,
    bootstrap: Any = None,
) -> Targets:
    """Return the n-step return of each step.

    ``G[t] = r[t] + gamma * r[t + 1] + ... + gamma**(n - 1) * r[t + n - 1] + gamma**n *
    V(s[t + n])`` (Sutton and Barto, 2nd ed., equation 7.1; their R[t + 1] is r[t]). Fewer steps
    where the episode ends before, or no further value is known. The parameters that are not named
    here are those of `lambda_returns`.

    Parameters
    ----------
    n_steps : int
        1 or more.

    Raises
    ------
    ConfigError
        For numbers out of range.
    SchemaError
        For arrays of other shapes or dtypes.
    """
    if isinstance(n_steps, bool) or not isinstance(n_steps, int) or n_steps < 1:
        raise ConfigError(f"n_steps={n_steps!r}: it is a Python int, 1 or more")
    gamma = _fraction("gamma", gamma)
    steps = Steps(reward, terminated, truncated, mask, value, next_value, bootstrap)
    # G with n + 1 steps is r and G with n steps of the step behind; with none it is the value
    target = steps.value
    for _ in range(min(n_steps, steps.shape[1])):
        following = np.where(steps.goes_on, shifted(target), steps.following)
        longer = steps.reward + gamma * following
        target = np.where(steps.complete, longer, steps.value)
    return Targets(steps.out(target), steps.complete)


@explain_wrong_names
def reward_to_go(
    reward: Any,
    terminated: Any = None,
    *,
    gamma: float = 1.0,
    truncated: Any = None,
    mask: Any = None,
    bootstrap: Any = None,
) -> Targets:
    """Return the sum of the rewards from each step to the end of its episode, or of its row.

    ``G[t] = r[t] + gamma * G[t + 1]`` (Sutton and Barto, 2nd ed., equation 3.9; with gamma 1 the
    returns-to-go of Chen et al. 2021, section 3).

    Parameters
    ----------
    reward : float array [batch, time]
    terminated, truncated, mask : bool array [batch, time], optional
    gamma : float
        0 to 1.
    bootstrap : float array [batch], optional
        The return behind the last step of each row, where that has not ended its episode.

    Returns
    -------
    Targets
        Every step has a target.

    Raises
    ------
    ConfigError
        For a discount out of range.
    SchemaError
        For arrays of other shapes or dtypes.
    """
    gamma = _fraction("gamma", gamma)
    steps = Steps(reward, terminated, truncated, mask, None, None, bootstrap)
    target = backward(steps.reward + gamma * steps.following, gamma * steps.goes_on)
    return Targets(steps.out(target), steps.valid)


def _error_sums(steps: Steps, gamma: float, lam: float) -> Array:
    return backward(steps.errors(gamma), gamma * lam * steps.goes_on)


def _ratio(steps: Steps, behaviour: Any, target: Any) -> Array:
    """The importance weights pi / mu; 1 where there is no step."""
    difference = steps.numbers("target_log_prob", target) - steps.numbers(
        "behaviour_log_prob", behaviour
    )
    with np.errstate(over="ignore"):  # inf is bounded by rho_bar and c_bar
        weights: Array = np.exp(np.where(steps.valid, difference, 0.0))
    return weights


def _fraction(name: str, given: float) -> float:
    number = _real(given)
    if not 0 <= number <= 1:
        raise ConfigError(f"{name}={given!r}: it is a number from 0 to 1")
    return number


def _bound(name: str, given: float) -> float:
    number = _real(given)
    if not number > 0:
        raise ConfigError(f"{name}={given!r}: it is a number above 0, or inf")
    return number


def _real(given: object) -> float:
    """Return a number, or an array or tensor without axes, as a float; NaN for anything else."""
    if isinstance(given, bool | str) or np.ndim(given):  # type: ignore[arg-type]
        return math.nan
    try:
        return float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan
