"""DQN (Mnih et al. 2015) on CartPole-v1 in one file, in the style of CleanRL: one loop that plays
and learns, with every hyperparameter at its top. A script of CleanRL changes one import.

    python examples/cleanrl_dqn.py           # ends when 20 episodes reach 450 on average

Needs Stable-Baselines3 (`.[sb3]`), whose replay buffer CleanRL's scripts use.
"""

from __future__ import annotations

import copy
import random
import time
from collections import deque
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
import typer
from gymnasium.vector import AutoresetMode
from torch import nn

# the line that differs: from stable_baselines3.common.buffers import ReplayBuffer
from async_loader.compat.sb3 import ReplayBuffer


@dataclass
class Args:
    num_envs: int = 1
    learning_rate: float = 2.3e-3
    buffer_size: int = 50_000
    gamma: float = 0.99
    batch_size: int = 64
    learning_starts: int = 1_000
    train_frequency: int = 256
    gradient_steps: int = 128  # at a time, after which the target network follows
    start_e: float = 1.0
    end_e: float = 0.04
    exploration_fraction: float = 0.16  # of all steps
    solved: float = 450.0  # mean return of 20 episodes at which the run ends


class QNetwork(nn.Module):
    def __init__(self, envs: gymnasium.vector.VectorEnv) -> None:
        super().__init__()
        inputs = int(np.prod(envs.single_observation_space.shape))
        self.network = nn.Sequential(
            nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
            nn.Linear(256, int(envs.single_action_space.n)),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)


def main(steps: int = 50_000, seed: int = 1) -> None:
    args, began = Args(), time.monotonic()
    for seeded in (random.seed, np.random.seed, torch.manual_seed):
        seeded(seed)
    torch.set_num_threads(1)
    reset = {"autoreset_mode": AutoresetMode.SAME_STEP}
    envs = gymnasium.make_vec("CartPole-v1", args.num_envs, "sync", vector_kwargs=reset)
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
    envs.action_space.seed(seed)
    q_network = QNetwork(envs)
    target_network = copy.deepcopy(q_network)
    optimizer = torch.optim.Adam(q_network.parameters(), lr=args.learning_rate)
    rb = ReplayBuffer(
        args.buffer_size, envs.single_observation_space, envs.single_action_space, "cpu",
        n_envs=args.num_envs, handle_timeout_termination=False,
    )  # fmt: skip
    returns: deque[float] = deque(maxlen=20)
    told, episodes = 0, 0
    obs, _ = envs.reset(seed=seed)
    for global_step in range(0, steps, args.num_envs):
        explored = global_step / (args.exploration_fraction * steps)
        if random.random() < max(args.end_e, args.start_e + (args.end_e - args.start_e) * explored):
            actions = envs.action_space.sample()
        else:
            with torch.inference_mode():
                actions = q_network(torch.as_tensor(obs)).argmax(1).numpy()
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)

        real_next_obs = next_obs.copy()
        for env in np.flatnonzero(terminations | truncations):
            real_next_obs[env] = infos["final_obs"][env]
            returns.append(float(infos["episode"]["r"][env]))
            episodes += 1
        rb.add(obs, real_next_obs, actions, rewards, terminations, [infos] * args.num_envs)
        obs = next_obs

        if global_step > args.learning_starts and global_step % args.train_frequency == 0:
            for _ in range(args.gradient_steps):
                data = rb.sample(args.batch_size)
                with torch.no_grad():
                    target_max = target_network(data.next_observations).amax(1, keepdim=True)
                    td_target = data.rewards + args.gamma * target_max * (1 - data.dones)
                old_val = q_network(data.observations).gather(1, data.actions)
                loss = nn.functional.smooth_l1_loss(old_val, td_target)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(q_network.parameters(), 10.0)
                optimizer.step()
            target_network.load_state_dict(q_network.state_dict())
        if episodes - told >= 20:
            told = episodes
            typer.echo(f"{global_step:7,} steps  mean return {np.mean(returns):6.1f}")
            if np.mean(returns) >= args.solved:
                break

    took = (
        f"{rb.size() * args.num_envs:,} transitions in the buffer, {time.monotonic() - began:.0f} s"
    )
    typer.echo(f"{took}, mean return {np.mean(returns):.1f}")
    rb.close()


if __name__ == "__main__":
    typer.run(main)
