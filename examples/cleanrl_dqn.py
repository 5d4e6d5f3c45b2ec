"""DQN (Mnih et al. 2015) on CartPole-v1 in one file, in the style of CleanRL: one loop that plays
and learns, with every hyperparameter at its top.

    python examples/cleanrl_dqn.py                  # about a minute
    python examples/cleanrl_dqn.py --steps 2000     # some seconds

The replay buffer is async_loader's: the environments record themselves, and `sample` gives tensors.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
import typer
from torch import nn

from async_loader import ReplayBuffer, Transitions
from async_loader.recording import VectorRecorder


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    num_envs: int = 4
    learning_rate: float = 1e-3
    buffer_size: int = 20_000
    gamma: float = 0.99
    batch_size: int = 128
    learning_starts: int = 1_000
    train_every: int = 4  # steps of the environments, all together
    target_every: int = 400
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    exploration_share: float = 0.4  # of all steps


class QNetwork(nn.Module):
    def __init__(self, envs: gymnasium.vector.VectorEnv) -> None:
        super().__init__()
        inputs = int(np.prod(envs.single_observation_space.shape))
        self.layers = nn.Sequential(
            nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
            nn.Linear(128, int(envs.single_action_space.n)),
        )  # fmt: skip

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layers(obs)


def epsilon_at(step: int, steps: int, args: Args) -> float:
    done = min(1.0, step / (args.exploration_share * steps))
    return args.epsilon_start + done * (args.epsilon_end - args.epsilon_start)


def main(steps: int = 40_000, seed: int = 1) -> None:
    """Play and learn until all environments together have made this many steps."""
    args, started = Args(), time.monotonic()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)

    # a view of one step adds "discount": gamma, or 0 where the episode terminated
    buffer = ReplayBuffer(
        args.buffer_size, view=Transitions(n_steps=1, gamma=args.gamma), seed=seed
    )
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(
        VectorRecorder(gymnasium.make_vec(args.env_id, args.num_envs, "sync"), buffer)
    )
    envs.action_space.seed(seed)
    q_network, target_network = QNetwork(envs), QNetwork(envs)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = torch.optim.Adam(q_network.parameters(), lr=args.learning_rate)

    obs, _ = envs.reset(seed=seed)
    told = 0
    for step in range(0, steps, args.num_envs):
        actions = envs.action_space.sample()
        with torch.inference_mode():
            greedy = q_network(torch.as_tensor(obs)).argmax(1).numpy()
        explore = np.random.random(args.num_envs) < epsilon_at(step, steps, args)
        obs, *_ = envs.step(np.where(explore, actions, greedy))  # and the steps are in the buffer

        if step >= args.learning_starts and step % args.train_every == 0:
            data = buffer.sample(args.batch_size, batch_format="torch")
            with torch.no_grad():
                future = target_network(data["next_obs"]).amax(1)
                goal = data["reward"] + data["discount"] * future
            value = q_network(data["obs"]).gather(1, data["action"].unsqueeze(1)).squeeze(1)
            loss = nn.functional.mse_loss(value, goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        if step % args.target_every == 0:
            target_network.load_state_dict(q_network.state_dict())
        if envs.episode_count - told >= 50:
            told = envs.episode_count
            typer.echo(
                f"{step:7,} steps  mean return {np.mean(list(envs.return_queue)[-20:]):6.1f}"
            )

    last = list(envs.return_queue)[-20:]
    spent = time.monotonic() - started
    typer.echo(
        f"{buffer.stats().inserted:,} steps recorded in {spent:.0f} s; "
        f"mean return of the last {len(last)} episodes: {np.mean(last):.1f}"
    )
    envs.close()
    buffer.close()


if __name__ == "__main__":
    typer.run(main)
