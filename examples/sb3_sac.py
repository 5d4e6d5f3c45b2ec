"""SAC of Stable-Baselines3 on Pendulum, with the replay buffer of this package.

    python examples/sb3_sac.py --steps 10000         # needs: pip install "async_loader[sb3]"
    python examples/sb3_sac.py --theirs              # the same run with the buffer it comes with

The algorithm is as it was: only ``replay_buffer_class`` is given. Runs with the same seed are the
same, so the two commands above print the same returns, and different times.
"""

import time
from typing import Any

import numpy as np
import torch
import typer
from stable_baselines3 import SAC
from stable_baselines3.common import buffers
from stable_baselines3.common.evaluation import evaluate_policy

from async_loader.compat.sb3 import ReplayBuffer


def timed(kind: Any) -> Any:
    """A buffer that adds up the time of its calls."""

    class Timed(kind):  # type: ignore[misc]
        spent_s = 0.0

        def add(self, *args: Any, **kwargs: Any) -> None:
            begin = time.perf_counter()
            super().add(*args, **kwargs)
            self.spent_s += time.perf_counter() - begin

        def sample(self, *args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            samples = super().sample(*args, **kwargs)
            self.spent_s += time.perf_counter() - begin
            return samples

    return Timed


def main(
    steps: int = 10_000,
    envs: int = 1,
    seed: int = 0,
    episodes: int = 10,
    once: bool = False,
    theirs: bool = False,
) -> None:
    """Train, and report the mean return of some episodes.

    ``--once`` stores each observation once; time limits count as ends then.
    """
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)  # such small products are not worth a team of threads
    kind = timed(buffers.ReplayBuffer if theirs else ReplayBuffer)
    model = SAC(
        "MlpPolicy",
        make_vec_env("Pendulum-v1", n_envs=envs, seed=seed),
        replay_buffer_class=kind,
        optimize_memory_usage=once,
        replay_buffer_kwargs={"handle_timeout_termination": not once},
        buffer_size=100_000,
        learning_starts=min(1000, steps // 4),
        learning_rate=1e-3,
        policy_kwargs={"net_arch": [64, 64]},
        seed=seed,
        device="cpu",
    )
    begin = time.perf_counter()
    model.learn(steps)
    took_s = time.perf_counter() - begin
    env: Any = model.get_env()
    returns, _ = evaluate_policy(model, env, episodes, return_episode_rewards=True)
    buffer: Any = model.replay_buffer
    typer.echo(f"mean return of {episodes} episodes: {np.mean(returns):.1f}")
    typer.echo(f"{steps:,} steps in {took_s:.1f} s, {buffer.spent_s:.2f} s of them in the buffer")
    if not theirs:
        typer.echo(
            f"{len(buffer.table):,} transitions, {buffer.table.nbytes / 1e6:.1f} MB when full"
        )


if __name__ == "__main__":
    typer.run(main)
