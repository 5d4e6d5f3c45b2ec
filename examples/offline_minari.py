"""TD3+BC on Pendulum, from a data set that was written through Minari.

    python examples/offline_minari.py --updates 8000        # needs: pip install ".[demo,offline]"

A controller swings the pendulum up and balances it, with noise that differs from episode to
episode, so that returns differ too. Its episodes become a Minari data set, which is imported into
a table. TD3+BC (Fujimoto and Gu 2021) learns from that table alone: TD3, whose actor also stays
close to the data's actions. Returns are means of 10 episodes.
"""

import copy
import os
import tempfile
import warnings

import gymnasium
import numpy as np
import torch
import typer
from torch import nn

from async_loader import AsyncDataLoader
from async_loader.offline import from_episodes, from_minari, to_minari

ENV, NAME = "Pendulum-v1", "pendulum/mixed-v0"
BATCH, GAMMA, TAU, ALPHA = 256, 0.99, 0.005, 2.5
NOISE, CLIP, LIMIT, DELAY = 0.4, 1.0, 2.0, 2


def controller(obs, noise, rng):
    """Put energy in while the pendulum hangs, and balance it when it is up; then noise."""
    cosine, sine, speed = obs
    up = cosine > 0.85
    torque = -12.0 * sine - 3.0 * speed if up else 2.0 * np.sign(speed if speed else 1.0)
    return np.clip([torque + noise * rng.normal()], -LIMIT, LIMIT).astype(np.float32)


def play(env, policy, seed):
    """Play an episode, and return it as `from_episodes` takes it."""
    obs, _ = env.reset(seed=seed)
    seen, actions, rewards, ended = [obs], [], [], False
    while not ended:
        actions.append(policy(obs))
        obs, reward, terminated, truncated, _ = env.step(actions[-1])
        seen.append(obs)
        rewards.append(reward)
        ended = terminated or truncated
    return {
        "obs": np.stack(seen),
        "action": np.stack(actions),
        "reward": np.array(rewards, np.float32),
        "terminated": terminated,
        "truncated": truncated,
    }


def collect(episodes, seed):
    """Play the controller with noise of 0.5 to 6."""
    env, rng = gymnasium.make(ENV), np.random.default_rng(seed)
    noise = rng.uniform(0.5, 6.0, episodes)
    return [
        play(env, lambda obs, n=noise[i]: controller(obs, n, rng), seed + i)
        for i in range(episodes)
    ]


def network(inputs, *last):
    return nn.Sequential(
        nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1), *last
    )


def mean_return(actor, episodes, seed):
    env = gymnasium.make(ENV)

    def policy(obs):
        with torch.no_grad():
            return LIMIT * actor(torch.as_tensor(obs)).numpy()

    return float(np.mean([play(env, policy, seed + i)["reward"].sum() for i in range(episodes)]))


def train(table, updates, actor):
    critics = nn.ModuleList([network(4), network(4)])
    slow_actor, slow_critics = copy.deepcopy(actor), copy.deepcopy(critics)
    of_actor = torch.optim.Adam(actor.parameters(), 3e-4)
    of_critics = torch.optim.Adam(critics.parameters(), 3e-4)
    with AsyncDataLoader(table, BATCH, batch_format="torch") as loader:
        for number, batch in enumerate(loader):
            obs, action, after = batch["obs"], batch["action"], batch["next_obs"]
            reward, going_on = batch["reward"], 1.0 - batch["terminated"].float()
            with torch.no_grad():
                noise = (torch.randn_like(action) * NOISE).clamp(-CLIP, CLIP)
                chosen = (LIMIT * slow_actor(after) + noise).clamp(-LIMIT, LIMIT)
                values = [one(torch.cat([after, chosen], 1))[:, 0] for one in slow_critics]
                target = reward / 10 + GAMMA * going_on * torch.minimum(*values)
            loss = sum(
                nn.functional.mse_loss(one(torch.cat([obs, action], 1))[:, 0], target)
                for one in critics
            )
            of_critics.zero_grad()
            loss.backward()
            of_critics.step()
            if number % DELAY == 0:
                mine = LIMIT * actor(obs)
                value = critics[0](torch.cat([obs, mine], 1))
                scale = ALPHA / value.abs().mean().detach()
                actor_loss = -scale * value.mean() + nn.functional.mse_loss(mine, action)
                of_actor.zero_grad()
                actor_loss.backward()
                of_actor.step()
                with torch.no_grad():
                    pairs = ((slow_actor, actor), (slow_critics, critics))
                    for slow, fast in pairs:
                        for old, new in zip(slow.parameters(), fast.parameters(), strict=True):
                            old.lerp_(new, TAU)
            if number + 1 >= updates:
                break


def main(updates: int = 8000, episodes: int = 100, seed: int = 0) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder
        played = collect(episodes, seed)
        with from_episodes(played) as written, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Minari's, for a data set without an author
            to_minari(written, NAME, env=ENV, algorithm_name="controller with noise")
        table = from_minari(NAME, float_dtype="float32", seed=seed)
    returns = [one["reward"].sum() for one in played]
    typer.echo(f"data: {len(table)} steps, mean return {np.mean(returns):.0f}")
    with table:
        actor = network(3, nn.Tanh())
        before = mean_return(actor, 10, 1000)
        train(table, updates, actor)
        after = mean_return(actor, 10, 1000)
    typer.echo(f"return before {before:.0f}, after {updates} updates {after:.0f}")


if __name__ == "__main__":
    typer.run(main)
