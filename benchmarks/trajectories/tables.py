"""Every library's buffer, filled, and what draws its sequences. Imports a library to make its
own.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.replay.tables import sb3_empty
from benchmarks.trajectories.workloads import Columns, Steps, check

Take = Callable[[], Any]


def ours(work: Steps, capacity: int | None = None) -> Any:
    from async_loader import ReplayBuffer

    buffer = ReplayBuffer(capacity or work.rows, work.fields, seed=0)
    for episode in work.episodes():
        buffer.extend(episode, stream=0)
    return buffer


def ours_take(work: Steps, buffer: Any, writes: bool) -> Take:
    """A sequence begins at any step, as with the others."""
    from async_loader import Sequences

    view = Sequences(work.length, stride=1)
    check(work, buffer.sample(work.batch, view=view)["reward"])
    step = {name: column[0] for name, column in work.step().items()}

    def take() -> Any:
        if writes:
            buffer.add(step, stream=1)
        return buffer.sample(work.batch, view=view)

    return take


def torchrl_take(work: Steps, unit: bool, writes: bool) -> Take:
    """Fill a TensorDictReplayBuffer; ``unit``: single draws that its `Sequence` unit widens."""
    from torchrl.data import LazyTensorStorage, Sequence, SliceSampler, TensorDictReplayBuffer

    end = ("next", "done")
    how = (
        {"sample_unit": Sequence(work.length, "stop", done_key=end), "batch_size": work.batch}
        if unit
        else {
            "sampler": SliceSampler(slice_len=work.length, end_key=end, cache_values=True),
            "batch_size": work.batch * work.length,
        }
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(work.rows), **how)
    for episode in work.episodes():
        buffer.extend(_tensordict(episode))
    step = _tensordict(work.step())
    step["next", "done"][:] = True
    check(work, buffer.sample()["next", "reward"])

    def take() -> Any:
        if writes:
            buffer.extend(step)
        drawn = buffer.sample()
        following = drawn["next"]
        return [drawn["obs"], drawn["action"], following["reward"], following["done"]]

    return take


def _tensordict(columns: Columns) -> Any:
    import torch
    from tensordict import TensorDict

    count = len(columns["reward"])
    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    following = {
        "reward": tensors["reward"].reshape(count, 1),
        "done": tensors["terminated"].clone().reshape(count, 1),
    }
    return TensorDict(
        {"obs": tensors["obs"], "action": tensors["action"], "next": following}, [count]
    )


def rllib_take(work: Steps) -> Take:
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer

    buffer = EpisodeReplayBuffer(
        capacity=work.rows, batch_size_B=work.batch, batch_length_T=work.length
    )
    for episode in work.episodes():
        # one observation more than actions
        obs = list(episode["obs"])
        buffer.add(
            SingleAgentEpisode(
                observations=[*obs, obs[-1]],
                actions=list(episode["action"]),
                rewards=episode["reward"].tolist(),
                terminated=True,
                len_lookback_buffer=0,
            )
        )

    def take() -> Any:
        drawn = buffer.sample(batch_size_B=work.batch, batch_length_T=work.length)
        return [np.ascontiguousarray(value) for value in drawn.values()]

    take()
    return take


def flashbax_take(work: Steps, writes: bool) -> Take:
    """Its sequences cross the ends of episodes."""
    import flashbax
    import jax
    import jax.numpy as jnp

    buffer = flashbax.make_trajectory_buffer(
        add_batch_size=1,
        sample_batch_size=work.batch,
        sample_sequence_length=work.length,
        period=1,
        min_length_time_axis=work.length,
        max_length_time_axis=work.rows,
    )
    step = {name: jnp.asarray(column[0]) for name, column in work.step().items()}
    add = jax.jit(buffer.add, donate_argnums=0)
    draw = jax.jit(buffer.sample)
    state = buffer.init(step)
    for episode in work.episodes():
        state = add(state, {name: jnp.asarray(column[None]) for name, column in episode.items()})
    one = {name: column[None, None] for name, column in step.items()}
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 100_000))

    def take() -> Any:
        nonlocal state
        if writes:
            state = add(state, one)
        drawn = draw(state, next(keys)).experience
        return [np.asarray(value) for value in drawn.values()]

    drawn = take()
    if not writes:
        check(work, drawn[list(step).index("reward")], one_episode=False)
    return take


def sb3_take(work: Steps) -> Take:
    """As many single transitions: what its buffer has in place of sequences."""
    buffer = sb3_empty(work, optimize_memory_usage=True)
    start = 0
    for episode in work.episodes():
        end = start + len(episode["obs"])
        buffer.observations[start:end, 0] = episode["obs"]
        buffer.actions[start:end] = episode["action"].reshape(buffer.actions[start:end].shape)
        buffer.rewards[start:end, 0] = episode["reward"]
        buffer.dones[start:end, 0] = episode["terminated"]
        start = end
    buffer.full, buffer.pos = True, 0
    return lambda: buffer.sample(work.batch * work.length)[:5]
