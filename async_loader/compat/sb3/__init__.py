"""Stable-Baselines3's replay buffers, on a table of this package.

``from async_loader.compat.sb3 import ReplayBuffer``, then
``DQN("MlpPolicy", env, replay_buffer_class=ReplayBuffer)``: the algorithms run unchanged, and a run
with the same seeds gives the same numbers. Scripts of CleanRL change the line that imports the
buffer. ``buffer.table`` is the `async_loader.ReplayBuffer` below, which a loader takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from async_loader.public_names import set_public_names

__all__ = ["DictReplayBuffer", "NStepReplayBuffer", "ReplayBuffer"]

if TYPE_CHECKING:
    from async_loader.compat.sb3.n_step_replay_buffer import NStepReplayBuffer
    from async_loader.compat.sb3.replay_buffer import DictReplayBuffer, ReplayBuffer

set_public_names(
    globals(),
    {
        "DictReplayBuffer": "async_loader.compat.sb3.replay_buffer",
        "NStepReplayBuffer": "async_loader.compat.sb3.n_step_replay_buffer",
        "ReplayBuffer": "async_loader.compat.sb3.replay_buffer",
    },
)
