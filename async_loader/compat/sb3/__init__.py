"""Stable-Baselines3's replay buffers, on a table of this package.

``from async_loader.compat.sb3 import ReplayBuffer``, then
``DQN("MlpPolicy", env, replay_buffer_class=ReplayBuffer)``: the algorithms run unchanged, and a run
with the same seeds gives the same numbers. Scripts of CleanRL change the line that imports the
buffer. ``buffer.table`` is the `async_loader.ReplayBuffer` below, which a loader takes.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DictReplayBuffer", "NStepReplayBuffer", "ReplayBuffer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from async_loader.compat.sb3 import replay_buffer  # late: it needs Stable-Baselines3

    if name == "ReplayBuffer":
        return replay_buffer.ReplayBuffer
    if name == "DictReplayBuffer":
        from async_loader.compat.sb3.dict_replay_buffer import DictReplayBuffer

        return DictReplayBuffer
    from async_loader.compat.sb3.n_step_replay_buffer import NStepReplayBuffer

    return NStepReplayBuffer
