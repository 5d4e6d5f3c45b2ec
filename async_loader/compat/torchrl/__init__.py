"""TorchRL's replay buffers, on a table of this package.

``from async_loader.compat.torchrl import TensorDictReplayBuffer`` for
``from torchrl.data import TensorDictReplayBuffer``. TorchRL itself is not needed, tensordict is
where TensorDicts are. ``buffer.table`` is the `async_loader.ReplayBuffer` below.
"""

from async_loader.compat.torchrl.replay_buffer import ReplayBuffer
from async_loader.compat.torchrl.samplers import (
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
)
from async_loader.compat.torchrl.tensordict_replay_buffer import (
    PrioritizedReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from async_loader.public_names import set_public_names

__all__ = [
    "PrioritizedReplayBuffer",
    "PrioritizedSampler",
    "RandomSampler",
    "ReplayBuffer",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
]
set_public_names(globals())
