"""How transitions lie in a table, for the spaces of an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from async_loader.errors import of_extra
from async_loader.replay.array_types import Array, Bools
from async_loader.schema import Field

buffers: Any = of_extra("stable_baselines3.common.buffers", "sb3")
samples: Any = of_extra("stable_baselines3.common.type_aliases", "sb3")


Shapes = tuple[int, ...] | Mapping[str, tuple[int, ...]]


class Transitions(NamedTuple):
    """Transitions as arrays ``[rows, ...]``.

    Attributes
    ----------
    obs, next_obs : list of arrays
        One for each space of a Dict, in its order; one in all for any other space.
    action, reward : arrays
    terminated, truncated : bool arrays [rows]
    """

    obs: list[Array]
    next_obs: list[Array]
    action: Array
    reward: Array
    terminated: Bools
    truncated: Bools


class TransitionFormat:
    """Arrays as Stable-Baselines3 hands them over, and as a table stores them.

    Parameters
    ----------
    observation_space, shapes
        A space, and the shape of what is stored of it; of a Dict a shape for each key.
    n_envs : int
    action_dim : int
    action_dtype : dtype
    once : bool, an attribute too
        Observations are stored once: the one that follows is that of the next step.

    Attributes
    ----------
    keys : tuple of str | None
        Of a Dict space.
    width : int
        Arrays of one observation.
    as_given : bool
        Whether an observation is one array, in the shape that is stored.
    """

    def __init__(
        self,
        observation_space: Any,
        shapes: Shapes,
        n_envs: int,
        action_dim: int,
        action_dtype: Any,
        once: bool,
    ) -> None:
        self.once = once
        self.keys = tuple(shapes) if isinstance(shapes, Mapping) else None
        spaces = [observation_space[key] for key in self.keys or ()] or [observation_space]
        each = list(shapes.values()) if isinstance(shapes, Mapping) else [shapes]
        self.width, self.n_envs = len(each), n_envs
        self.obs_shapes = [tuple(shape) for shape in each]
        natural = [space.shape for space in spaces]
        self.as_given = self.keys is None and natural == self.obs_shapes
        self.obs_dtypes = [np.dtype(space.dtype) for space in spaces]
        self.action_shape, self.action_dtype = (action_dim,), np.dtype(action_dtype)

    def schema(self) -> dict[str, Any]:
        """Return the schema of a step."""
        obs = self.nested(list(map(Field, self.obs_shapes, self.obs_dtypes)))
        return {
            "obs": obs,
            **({} if self.once else {"next_obs": obs}),
            "action": Field(self.action_shape, self.action_dtype),
            "reward": "float32",
            "terminated": "bool",
            "truncated": "bool",
        }

    def nested(self, arrays: Sequence[Any]) -> Any:
        """Return arrays of one observation as a table takes them."""
        return arrays[0] if self.keys is None else dict(zip(self.keys, arrays, strict=True))

    def flat(self, obs: Any) -> list[Array]:
        """Return observations of all environments as arrays in the shapes that are stored."""
        values = [obs] if self.keys is None else [obs[key] for key in self.keys]
        return [
            np.asarray(value).reshape(self.n_envs, *shape)
            for value, shape in zip(values, self.obs_shapes, strict=True)
        ]
