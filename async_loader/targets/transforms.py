"""The targets as functions of a batch, for ``AsyncDataLoader(transform=...)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

import numpy as np

from async_loader import tensors
from async_loader.errors import ConfigError, SchemaError
from async_loader.name_hints import hint
from async_loader.targets.functions import (
    gae,
    lambda_returns,
    n_step_returns,
    retrace,
    reward_to_go,
    vtrace,
)

_GIVEN = ("next_value", "bootstrap")
"""Fields that are taken where they are named only."""
_OPTIONAL = ("terminated", "truncated", "mask", *_GIVEN)
_IS_FIRST = "is_first"
"""The field of sequences that says where an episode begins."""


class FieldTransform:
    """Takes fields of a batch by name, and adds what a function makes of them.

    A subclass names the function, its numbers, and the fields that are added.
    """

    _function: Callable[..., Any]
    _numbers: tuple[str, ...]
    _added: tuple[str, ...]
    _may_lack: tuple[str, ...]
    __signature__: inspect.Signature

    def __init_subclass__(
        cls,
        function: Callable[..., Any],
        numbers: tuple[str, ...],
        added: Mapping[str, str],
        may_lack: tuple[str, ...] = ("truncated", "mask"),
    ) -> None:
        cls._function, cls._numbers = staticmethod(function), numbers
        cls._added, cls._may_lack = tuple(added), may_lack
        known = inspect.signature(function).parameters
        fields = {name: name for name in known if name not in numbers}
        made = [known[name].replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for name in numbers]
        for name, field in {**fields, **added}.items():
            none = name in _OPTIONAL or (name in added and len(added) > 1)
            made.append(
                Parameter(
                    name,
                    Parameter.KEYWORD_ONLY,
                    default=None if name in _GIVEN else field,
                    annotation="str | None" if none else "str",
                )
            )
        cls.__signature__ = inspect.Signature(made, return_annotation="None")

    def __init__(self, *numbers: Any, **given: Any) -> None:
        known = type(self).__signature__
        for word in given:
            if word not in known.parameters:
                name = type(self).__name__
                raise TypeError(f"{name}() has no {word}: {hint(word, known.parameters, name)}")
        bound = known.bind(*numbers, **given)
        bound.apply_defaults()
        values = bound.arguments
        self._settings = {name: values.pop(name) for name in self._numbers}
        for parameter, name in values.items():
            if name is not None and (not isinstance(name, str) or not name):
                raise ConfigError(f"{parameter}={name!r}: give the name of a field, as in 'reward'")
        self._adds = [values.pop(name) for name in self._added]
        self._fields = {parameter: name for parameter, name in values.items() if name is not None}
        names = [name for name in self._adds if name is not None]
        if len(set(names)) < len(names):
            raise ConfigError(f"{', '.join(names)} are to be added: give each a name of its own")
        # numbers out of range are refused here, not in the first batch
        one = {name: np.zeros(1 if name == "bootstrap" else (1, 1)) for name in self._fields}
        type(self)._function(**one, **self._settings)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch with the new fields, which are added to it in place.

        Raises
        ------
        SchemaError
            If a field is missing, has another shape than the rewards, or would be replaced.
        """
        given: dict[str, Any] = {}
        for parameter, name in self._fields.items():
            if name in batch:
                given[parameter] = batch[name]
            elif parameter not in self._may_lack:
                raise SchemaError(
                    f"{type(self).__name__} needs a field {name!r}, and the batch has "
                    f"{', '.join(map(str, batch))}: store it with the steps, or say {parameter}="
                    + ("None or the name of another" if parameter in _OPTIONAL else "its name")
                )
        if _IS_FIRST in batch and "reward" in given:
            _end_before_next(given, tensors.to_array(batch[_IS_FIRST]))
        if taken := [name for name in self._adds if name is not None and name in batch]:
            raise SchemaError(
                f"{type(self).__name__} adds {taken[0]!r}, and the batch has a field of that name: "
                "give another one, or None to leave it out"
            )
        results = type(self)._function(**given, **self._settings)
        for name, array in zip(self._adds, results, strict=False):
            if name is not None:
                batch[name] = array
        return batch

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self._settings.items())
        return f"{type(self).__name__}({said})"


def _end_before_next(given: dict[str, Any], is_first: Any) -> None:
    """Have an episode end, as one that was cut off, where the next place begins another."""
    if is_first.ndim != 2 or not is_first[:, 1:].any():
        return
    ends = np.zeros(is_first.shape, np.bool_)
    ends[:, :-1] = is_first[:, 1:]
    truncated = given.get("truncated")
    given["truncated"] = ends if truncated is None else ends | (tensors.to_array(truncated) != 0)


_TARGET = {"target": "target", "target_mask": "target_mask"}
_ADVANTAGE = {"advantage": "advantage", **_TARGET}


class LambdaReturns(
    FieldTransform, function=lambda_returns, numbers=("gamma", "lam"), added=_TARGET
):
    """Adds `lambda_returns` to a batch.

    Parameters
    ----------
    gamma, lam : float
        0 to 1.
    reward, value, terminated, truncated, mask : str
        Names of fields ``[batch, time]``. What the batch lacks of the last two is left out.
    next_value, bootstrap : str, optional
        Names of fields ``[batch, time]`` and ``[batch]``.
    target, target_mask : str | None
        Names of the fields that are added, float and bool ``[batch, time]``; None: not added.

    Raises
    ------
    ConfigError
        For numbers out of range.
    """


class GAE(FieldTransform, function=gae, numbers=("gamma", "lam"), added=_ADVANTAGE):
    """Adds `gae` to a batch.

    Parameters
    ----------
    gamma, lam : float
        0 to 1.
    reward, value, terminated, truncated, mask : str
        Names of fields ``[batch, time]``. What the batch lacks of the last two is left out.
    next_value, bootstrap : str, optional
        Names of fields ``[batch, time]`` and ``[batch]``.
    advantage, target, target_mask : str | None
        Names of the fields that are added, ``[batch, time]``; None: not added.

    Raises
    ------
    ConfigError
        For numbers out of range.
    """


class VTrace(
    FieldTransform, function=vtrace, numbers=("gamma", "lam", "rho_bar", "c_bar"), added=_ADVANTAGE
):
    """Adds `vtrace` to a batch.

    Parameters
    ----------
    gamma, lam : float
        0 to 1.
    rho_bar, c_bar : float
        Bounds of the importance weights.
    reward, value, behaviour_log_prob, target_log_prob, terminated, truncated, mask : str
        Names of fields ``[batch, time]``. What the batch lacks of the last two is left out.
    next_value, bootstrap : str, optional
        Names of fields ``[batch, time]`` and ``[batch]``.
    advantage, target, target_mask : str | None
        Names of the fields that are added, ``[batch, time]``; None: not added.

    Raises
    ------
    ConfigError
        For numbers out of range.
    """


class Retrace(FieldTransform, function=retrace, numbers=("gamma", "lam"), added=_TARGET):
    """Adds `retrace` to a batch.

    Parameters
    ----------
    gamma, lam : float
        0 to 1.
    reward, q_value, value, behaviour_log_prob, target_log_prob, terminated, truncated, mask : str
        Names of fields ``[batch, time]``. What the batch lacks of the last two is left out.
    next_value, bootstrap : str, optional
        Names of fields ``[batch, time]`` and ``[batch]``.
    target, target_mask : str | None
        Names of the fields that are added, ``[batch, time]``; None: not added.

    Raises
    ------
    ConfigError
        For numbers out of range.
    """


class NStepReturns(
    FieldTransform, function=n_step_returns, numbers=("n_steps", "gamma"), added=_TARGET
):
    """Adds `n_step_returns` to a batch.

    Parameters
    ----------
    n_steps : int
        1 or more.
    gamma : float
        0 to 1.
    reward, value, terminated, truncated, mask : str
        Names of fields ``[batch, time]``. What the batch lacks of the last two is left out.
    next_value, bootstrap : str, optional
        Names of fields ``[batch, time]`` and ``[batch]``.
    target, target_mask : str | None
        Names of the fields that are added, ``[batch, time]``; None: not added.

    Raises
    ------
    ConfigError
        For numbers out of range.
    """


class RewardToGo(
    FieldTransform,
    function=reward_to_go,
    numbers=("gamma",),
    added={"target": "reward_to_go"},
    may_lack=_OPTIONAL[:3],
):
    """Adds `reward_to_go` to a batch.

    Parameters
    ----------
    gamma : float
        0 to 1.
    reward, terminated, truncated, mask : str
        Names of fields ``[batch, time]``. What the batch lacks of the last three is left out.
    bootstrap : str, optional
        Name of a field ``[batch]``.
    target : str
        Name of the field that is added, ``[batch, time]``.

    Raises
    ------
    ConfigError
        For a discount out of range.
    """
