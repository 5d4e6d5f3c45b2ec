"""How an episode ends: what its fields ``terminated``, ``truncated`` and ``done`` say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from async_loader.offline.bad_data import Place
from async_loader.replay.array_types import Bools


def ends_of(
    values: Mapping[str, Any], steps: int, missing: str, place: Place
) -> tuple[Bools, Bools]:
    """Return for each step whether it is terminated, and whether it is truncated.

    The last step is one of them, and no other. ``done`` counts as in a table: as terminated, unless
    the same step is truncated.

    Parameters
    ----------
    values : mapping
        The fields of an episode, ``done`` only where the table has such a field.
    missing : "refuse" | "truncate"
        What becomes of an episode whose last step is neither.

    Raises
    ------
    BadData
    """
    names = ("terminated", "truncated", "done")
    done = values.get("done")
    ending = {**values, "done": done if isinstance(done, np.ndarray) else None}  # nested: no end
    said = [flags(ending.get(name), name, steps, place) for name in names]
    for name, ended in zip(names, said, strict=True):
        at = int(ended.argmax())
        if ended[at] and at < steps - 1:
            raise place.error(
                name,
                f"step {at} of {steps} ends the episode, and others follow it: give each episode "
                "by itself",
            )
    terminated, truncated, over = said
    if not (terminated[-1] or truncated[-1] or over[-1]):
        if missing == "refuse":
            raise place.error(
                "truncated",
                f"the last of {steps} steps is neither terminated nor truncated: correct the "
                "data, or say missing_ends='truncate' if the episode was cut off there",
            )
        truncated[-1] = True
    return terminated | (over & ~truncated), truncated


def flags(value: Any, name: str, steps: int, place: Place) -> Bools:
    """Return one bool for each step; a single value is that of the last step.

    Raises
    ------
    BadData
    """
    if value is None:
        return np.zeros(steps, np.bool_)
    if not isinstance(value, np.ndarray):
        raise place.error(name, "it is nested: give one bool for each step")
    array = value.reshape(steps) if value.size == steps and value.ndim else value
    if array.shape not in ((steps,), ()):
        raise place.error(
            name, f"it has shape {array.shape} for {steps} steps: give one bool for each step"
        )
    if array.dtype != np.bool_ and not ((array == 0) | (array == 1)).all():
        raise place.error(name, "it has values beside 0 and 1: give bools")
    found = np.zeros(steps, np.bool_)
    if array.ndim:
        found[:] = array != 0
    else:
        found[-1] = bool(array)
    return found
