"""The targets as functions of a batch, for ``AsyncDataLoader(transform=...)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from async_loader import tensors
from async_loader.errors import ConfigError, SchemaError
from async_loader.names import explain_wrong_names
from async_loader.targets.functions import (
    gae,
    lambda_returns,
    n_step_returns,
    retrace,
    reward_to_go,
    vtrace,
)
from async_loader.targets.steps import Array


class FieldTransform:
    """Takes fields of a batch by name, and adds what a function makes of them."""

    _function: Any
    _may_lack: tuple[str, ...] = ("truncated", "mask")

    def __init__(
        self,
        fields: Mapping[str, str | None],
        settings: Mapping[str, Any],
        added: Sequence[str | None],
    ) -> None:
        for parameter, name in fields.items():
            if name is not None and (not isinstance(name, str) or not name):
                raise ConfigError(f"{parameter}={name!r}: give the name of a field, as in 'reward'")
        self._fields = {parameter: name for parameter, name in fields.items() if name is not None}
        self._settings = dict(settings)
        self._added = tuple(added)
        names = [name for name in added if name is not None]
        if len(set(names)) < len(names):
            raise ConfigError(f"{', '.join(names)} are to be added: give each a name of its own")
        # numbers out of range are refused here, not in the first batch
        one = {parameter: np.zeros((1, 1)) for parameter in self._fields}
        type(self)._function(**{**one, **self._blank(), **self._settings})

    def _blank(self) -> dict[str, Array]:
        return {"bootstrap": np.zeros(1)} if "bootstrap" in self._fields else {}

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch with the new fields, which are added to it in place.

        Raises
        ------
        SchemaError
            If a field is missing, has another shape than the rewards, or would be replaced.
        """
        given = {
            parameter: self._field(batch, parameter, name)
            for parameter, name in self._fields.items()
            if name in batch or parameter not in self._may_lack
        }
        if _IS_FIRST in batch and "reward" in given:
            _end_before_next(given, tensors.to_array(batch[_IS_FIRST]))
        taken = [name for name in self._added if name is not None and name in batch]
        if taken:
            raise SchemaError(
                f"{type(self).__name__} adds {taken[0]!r}, and the batch has a field of that name: "
                "give another one, or None to leave it out"
            )
        results = type(self)._function(**given, **self._settings)
        for name, array in zip(self._added, results, strict=True):
            if name is not None:
                batch[name] = array
        return batch

    def _field(self, batch: Mapping[str, Any], parameter: str, name: str) -> Any:
        if name not in batch:
            raise SchemaError(
                f"{type(self).__name__} needs a field {name!r}, and the batch has "
                f"{', '.join(map(str, batch))}: store it with the steps, or say {parameter}="
                + ("None or the name of another" if parameter in _OPTIONAL else "its name")
            )
        return batch[name]

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self._settings.items())
        return f"{type(self).__name__}({said})"


_IS_FIRST = "is_first"
"""The field of sequences that says where an episode begins."""


def _end_before_next(given: dict[str, Any], is_first: Array) -> None:
    """Have an episode end, as one that was cut off, where the next place begins another."""
    if is_first.ndim != 2 or not is_first[:, 1:].any():
        return
    ends = np.zeros(is_first.shape, np.bool_)
    ends[:, :-1] = is_first[:, 1:]
    truncated = given.get("truncated")
    given["truncated"] = ends if truncated is None else ends | (tensors.to_array(truncated) != 0)


_OPTIONAL = ("terminated", "truncated", "mask", "next_value", "bootstrap")


class LambdaReturns(FieldTransform):
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

    _function = staticmethod(lambda_returns)

    @explain_wrong_names
    def __init__(
        self,
        gamma: float = 0.99,
        lam: float = 0.95,
        *,
        reward: str = "reward",
        value: str = "value",
        terminated: str | None = "terminated",
        truncated: str | None = "truncated",
        mask: str | None = "mask",
        next_value: str | None = None,
        bootstrap: str | None = None,
        target: str | None = "target",
        target_mask: str | None = "target_mask",
    ) -> None:
        fields: dict[str, str | None] = {"reward": reward, "value": value}
        fields |= _ends(terminated, truncated, mask, next_value, bootstrap)
        super().__init__(fields, {"gamma": gamma, "lam": lam}, (target, target_mask))


class GAE(FieldTransform):
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

    _function = staticmethod(gae)

    @explain_wrong_names
    def __init__(
        self,
        gamma: float = 0.99,
        lam: float = 0.95,
        *,
        reward: str = "reward",
        value: str = "value",
        terminated: str | None = "terminated",
        truncated: str | None = "truncated",
        mask: str | None = "mask",
        next_value: str | None = None,
        bootstrap: str | None = None,
        advantage: str | None = "advantage",
        target: str | None = "target",
        target_mask: str | None = "target_mask",
    ) -> None:
        fields: dict[str, str | None] = {"reward": reward, "value": value}
        fields |= _ends(terminated, truncated, mask, next_value, bootstrap)
        super().__init__(fields, {"gamma": gamma, "lam": lam}, (advantage, target, target_mask))


class VTrace(FieldTransform):
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

    _function = staticmethod(vtrace)

    @explain_wrong_names
    def __init__(
        self,
        gamma: float = 0.99,
        lam: float = 1.0,
        rho_bar: float = 1.0,
        c_bar: float = 1.0,
        *,
        reward: str = "reward",
        value: str = "value",
        behaviour_log_prob: str = "behaviour_log_prob",
        target_log_prob: str = "target_log_prob",
        terminated: str | None = "terminated",
        truncated: str | None = "truncated",
        mask: str | None = "mask",
        next_value: str | None = None,
        bootstrap: str | None = None,
        advantage: str | None = "advantage",
        target: str | None = "target",
        target_mask: str | None = "target_mask",
    ) -> None:
        fields: dict[str, str | None] = {
            "reward": reward,
            "value": value,
            "behaviour_log_prob": behaviour_log_prob,
            "target_log_prob": target_log_prob,
        }
        fields |= _ends(terminated, truncated, mask, next_value, bootstrap)
        settings = {"gamma": gamma, "lam": lam, "rho_bar": rho_bar, "c_bar": c_bar}
        super().__init__(fields, settings, (advantage, target, target_mask))


class Retrace(FieldTransform):
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

    _function = staticmethod(retrace)

    @explain_wrong_names
    def __init__(
        self,
        gamma: float = 0.99,
        lam: float = 1.0,
        *,
        reward: str = "reward",
        q_value: str = "q_value",
        value: str = "value",
        behaviour_log_prob: str = "behaviour_log_prob",
        target_log_prob: str = "target_log_prob",
        terminated: str | None = "terminated",
        truncated: str | None = "truncated",
        mask: str | None = "mask",
        next_value: str | None = None,
        bootstrap: str | None = None,
        target: str | None = "target",
        target_mask: str | None = "target_mask",
    ) -> None:
        fields: dict[str, str | None] = {
            "reward": reward,
            "q_value": q_value,
            "value": value,
            "behaviour_log_prob": behaviour_log_prob,
            "target_log_prob": target_log_prob,
        }
        fields |= _ends(terminated, truncated, mask, next_value, bootstrap)
        super().__init__(fields, {"gamma": gamma, "lam": lam}, (target, target_mask))


class NStepReturns(FieldTransform):
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

    _function = staticmethod(n_step_returns)

    @explain_wrong_names
    def __init__(
        self,
        n_steps: int,
        gamma: float = 0.99,
        *,
        reward: str = "reward",
        value: str = "value",
        terminated: str | None = "terminated",
        truncated: str | None = "truncated",
        mask: str | None = "mask",
        next_value: str | None = None,
        bootstrap: str | None = None,
        target: str | None = "target",
        target_mask: str | None = "target_mask",
    ) -> None:
        fields: dict[str, str | None] = {"reward": reward, "value": value}
        fields |= _ends(terminated, truncated, mask, next_value, bootstrap)
        super().__init__(fields, {"n_steps": n_steps, "gamma": gamma}, (target, target_mask))


class RewardToGo(FieldTransform):
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

    _function = staticmethod(reward_to_go)
    _may_lack = ("terminated", "truncated", "mask")

    @explain_wrong_names
    def __init__(
        self,
        gamma: float = 1.0,
        *,
        reward: str = "reward",
        terminated: str | None = "terminated",
        truncated: str | None = "truncated",
        mask: str | None = "mask",
        bootstrap: str | None = None,
        target: str = "reward_to_go",
    ) -> None:
        fields: dict[str, str | None] = {"reward": reward}
        fields |= _ends(terminated, truncated, mask, None, bootstrap)
        super().__init__(fields, {"gamma": gamma}, (target, None))


def _ends(
    terminated: str | None,
    truncated: str | None,
    mask: str | None,
    next_value: str | None,
    bootstrap: str | None,
) -> dict[str, str | None]:
    return {
        "terminated": terminated,
        "truncated": truncated,
        "mask": mask,
        "next_value": next_value,
        "bootstrap": bootstrap,
    }
