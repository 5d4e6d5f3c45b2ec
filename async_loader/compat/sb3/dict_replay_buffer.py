"""Stable-Baselines3's DictReplayBuffer, on a table."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from async_loader.compat.sb3 import peer
from async_loader.compat.sb3.replay_buffer import ReplayBuffer
from async_loader.replay.array_types import Array


class DictReplayBuffer(ReplayBuffer, peer.buffers.DictReplayBuffer):  # type: ignore[misc]
    """As ``stable_baselines3.common.buffers.DictReplayBuffer``: observations are dicts of arrays.

    Parameters and attributes are those of `ReplayBuffer`, also ``optimize_memory_usage``, which the
    original refuses; ``observations`` and ``next_observations`` are read-only mappings, and
    `sample` returns ``DictReplayBufferSamples``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert isinstance(self.obs_shape, dict), (
            "DictReplayBuffer must be used with Dict obs space only"
        )

    @property
    def _sample_class(self) -> Any:
        return peer.samples.DictReplayBufferSamples

    def _tensors(self, obs: list[Array]) -> Any:
        assert self._form.keys is not None
        return dict(zip(self._form.keys, map(self._tensor, obs), strict=True))

    def _normalized(self, obs: Any, env: Any) -> list[Array]:
        found = self._normalize_obs(obs, env)
        assert self._form.keys is not None
        return [found[key] for key in self._form.keys]

    def _observations(self, name: str) -> Any:
        assert self._form.keys is not None
        # of a dict, an assignment to a key would change nothing that is stored
        return MappingProxyType({key: self._column(f"{name}.{key}") for key in self._form.keys})
