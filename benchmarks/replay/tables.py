"""Every library's table, filled and set up as its documentation has it for speed. Imports a
library to make its own.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.replay.workloads import FRAME, STACK, Atari, Columns, Small

Workload = Small | Atari
Take = Callable[[], Any]


def ours(work: Workload, **options: Any) -> Any:
    """Rows stored as they are."""
    from async_loader import ReplayBuffer

    buffer = ReplayBuffer(work.rows, work.fields, seed=0, **options)
    for chunk in work.chunks():
        buffer.extend(chunk)
    return buffer


def ours_linked(work: Workload, **options: Any) -> Any:
    """Observations stored once: stacks and next observations are read through the links between
    steps.
    """
    from async_loader import Field, ReplayBuffer

    if isinstance(work, Atari):
        obs, chunks = Field(FRAME, "uint8", stack=STACK, next="next_obs"), work.frames()
    else:
        obs = Field(*work.fields["obs"], next="next_obs")
        chunks = _without(work.chunks(), "next_obs")
    fields = {**work.fields, "obs": obs}
    del fields["next_obs"]
    buffer = ReplayBuffer(work.rows, fields, seed=0, **options)
    for chunk in chunks:
        buffer.extend(chunk, stream=0)
    return buffer


def _without(chunks: Any, name: str) -> Any:
    return ({key: column for key, column in chunk.items() if key != name} for chunk in chunks)


def cpprb(work: Workload, **options: Any) -> Any:
    """Rows stored as they are; with ``Nstep`` or compression by episodes if the workload asks
    for it.
    """
    from cpprb import ReplayBuffer

    stacked = "stack_compress" in options
    buffer = ReplayBuffer(work.rows, cpprb_fields(work, stacked, "next_of" in options), **options)
    by_episode = stacked or bool({"next_of", "Nstep"} & set(options))
    for chunk in work.episodes() if by_episode else work.chunks():
        buffer.add(**for_cpprb(chunk, stacked))
        if by_episode:
            buffer.on_episode_end()
    return buffer


def cpprb_fields(
    work: Workload, stacked: bool = False, linked: bool = False
) -> dict[str, dict[str, Any]]:
    fields = {}
    for name, (shape, dtype) in work.fields.items():
        if linked and name == "next_obs":
            continue
        known = {"shape": shape} if shape else {}
        fields["done" if name == "terminated" else name] = {**known, "dtype": dtype}
    if stacked:
        fields["obs"]["shape"] = (*FRAME, STACK)
    return fields


def for_cpprb(chunk: Columns, stacked: bool = False) -> Columns:
    """Its flag is `done`, and stacks to compress have their frames in the last dimension."""
    columns = {"done" if name == "terminated" else name: column for name, column in chunk.items()}
    if stacked:
        columns |= {name: np.moveaxis(columns[name], 1, -1) for name in ("obs", "next_obs")}
    return columns


def torchrl(
    work: Workload, batch: int, prefetch: int | None = None, device: str = "cpu", **options: Any
) -> Any:
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    storage = LazyTensorStorage(work.rows, device=device)
    buffer = ReplayBuffer(storage=storage, batch_size=batch, prefetch=prefetch, **options)
    for chunk in work.chunks():
        buffer.extend(for_torchrl(chunk))
    return buffer


def for_torchrl(chunk: Columns) -> Any:
    import torch
    from tensordict import TensorDict

    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in chunk.items()
    }
    return TensorDict(tensors, [len(chunk["obs"])])


def for_torchrl_next(chunk: Columns) -> Any:
    """The same with the values after a step under `next`, as from its environments."""
    flat = for_torchrl(chunk)
    count = len(flat)
    following = {
        "obs": flat["next_obs"],
        **{name: flat[name].reshape(count, 1) for name in ("reward", "terminated")},
        "done": flat["terminated"].reshape(count, 1),
    }
    return type(flat)({"obs": flat["obs"], "action": flat["action"], "next": following}, [count])


def torchrl_take(buffer: Any) -> Take:
    """Return the tensors in a batch."""
    return lambda: list(buffer.sample().values())


def sb3(work: Workload, optimize_memory_usage: bool = False) -> Any:
    """Fill the arrays directly, as its add takes one step at a time."""
    buffer = sb3_empty(work, optimize_memory_usage=optimize_memory_usage)
    start = 0
    for chunk in work.chunks():
        end = start + len(chunk["obs"])
        for name, theirs in (
            ("obs", "observations"),
            ("action", "actions"),
            ("reward", "rewards"),
            ("terminated", "dones"),
        ):
            array = getattr(buffer, theirs)
            array[start:end] = chunk[name].reshape(array[start:end].shape)
        if not optimize_memory_usage:
            buffer.next_observations[start:end, 0] = chunk["next_obs"]
        start = end
    if optimize_memory_usage:
        buffer.observations[0, 0] = chunk["next_obs"][-1]  # where its next add would put it
    buffer.full, buffer.pos = True, 0
    return buffer


def sb3_empty(work: Workload, n_envs: int = 1, optimize_memory_usage: bool = False) -> Any:
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    (shape, dtype), (action, _) = work.fields["obs"], work.fields["action"]
    low, high = (0, 255) if dtype is np.uint8 else (-np.inf, np.inf)
    return ReplayBuffer(
        work.rows,
        spaces.Box(low, high, shape, dtype),
        spaces.Box(-np.inf, np.inf, action, np.float32) if action else spaces.Discrete(18),
        device="cpu",
        n_envs=n_envs,
        optimize_memory_usage=optimize_memory_usage,
        handle_timeout_termination=False,
    )


def rlox(work: Workload) -> Any:
    """Observations and actions are flat float32 numbers, flags bytes."""
    from rlox import ReplayBuffer

    buffer = ReplayBuffer(work.rows, work.fields["obs"][0][0], work.fields["action"][0][0])
    for chunk in work.chunks():
        buffer.push_batch(**for_rlox(chunk))
    return buffer


def for_rlox(chunk: Columns) -> Columns:
    """As `push_batch` takes it."""
    flags = chunk["terminated"].astype(np.uint8)
    return {
        "obs": chunk["obs"].reshape(-1),
        "next_obs": chunk["next_obs"].reshape(-1),
        "actions": chunk["action"].reshape(-1),
        "rewards": chunk["reward"],
        "terminated": flags,
        "truncated": np.zeros_like(flags),
    }


def rlox_take(buffer: Any, batch: int) -> Take:
    """Each draw has a seed of its own."""
    seeds = itertools.count()
    return lambda: list(buffer.sample(batch, next(seeds)).values())


def sb3_take(buffer: Any, batch: int) -> Take:
    """Return the tensors in a batch; a sixth field, discounts, is for n-step buffers only."""
    return lambda: buffer.sample(batch)[:5]


def tianshou_prioritized(work: Workload, alpha: float, beta: float, priority: np.ndarray) -> Any:
    """Fill by `set_batch`, as its add takes one step at a time."""
    from tianshou.data import Batch, PrioritizedReplayBuffer

    buffer = PrioritizedReplayBuffer(work.rows, alpha, beta)
    parts = list(work.chunks())
    rows = {name: np.concatenate([part[name] for part in parts]) for name in work.fields}
    buffer.set_batch(
        Batch(
            obs=rows["obs"],
            act=rows["action"],
            rew=rows["reward"],
            obs_next=rows["next_obs"],
            terminated=rows["terminated"],
            truncated=np.zeros(work.rows, bool),
            done=rows["terminated"],
        )
    )
    buffer._size = work.rows
    buffer.update_weight(np.arange(work.rows), priority)
    return buffer
