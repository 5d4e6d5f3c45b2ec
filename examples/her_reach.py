"""DDPG (Lillicrap et al. 2016) with hindsight goals (Andrychowicz et al. 2017), on a task whose
reward says only whether the goal is reached.

    python examples/her_reach.py                            # some 2 minutes on a CPU core
    python examples/her_reach.py --relabel-fraction 0       # the control: goals as they were
    python examples/her_reach.py --env-id FetchReach-v4     # gymnasium-robotics, mujoco<3.4

A body with momentum has to come within 0.05 of a point of a square of side 2. By chance it does so
in few episodes, and learns next to nothing from the others. `Hindsight` shows the steps as if their
episode had wanted what it achieved, in the thread of the loader that makes the batches.
"""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import torch
import typer
from gymnasium import spaces
from torch import Tensor, nn

from async_loader import AsyncDataLoader, Field, Hindsight, MinSize, ReplayBuffer
from async_loader.recording import Recorder, schema_of

BATCH, GAMMA, TAU, EPISODE = 256, 0.98, 0.01, 50
EVERY = 2_000  # steps between two tests


class Reach(gymnasium.Env[Any, Any]):
    """Push a body to a point of a square, in the form of Gymnasium-Robotics: a dict with goals."""

    def __init__(self) -> None:
        box = spaces.Box(-1.0, 1.0, (2,), np.float32)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(names, box))
        self.action_space = box

    def obs(self) -> dict[str, np.ndarray]:
        return {
            "observation": self.speed.copy(), "achieved_goal": self.place.copy(),
            "desired_goal": self.goal.copy(),
        }  # fmt: skip

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        self.speed = np.zeros(2, np.float32)
        return self.obs(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.speed = 0.8 * self.speed + 0.04 * np.clip(action, -1, 1)
        before, self.place = self.place, np.clip(self.place + self.speed, -1, 1)
        self.speed = self.place - before
        reward = float(self.compute_reward(self.place, self.goal, {}))
        return self.obs(), reward, False, False, {"is_success": reward == 0.0}

    @staticmethod
    def compute_reward(achieved: Any, desired: Any, info: Any) -> Any:
        return -(np.linalg.norm(achieved - desired, axis=-1) > 0.05).astype(np.float32)


def network(inputs: int, outputs: int, *last: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
        nn.Linear(128, outputs), *last,
    )  # fmt: skip


def joined(obs: dict[str, Tensor]) -> Tensor:
    """What the networks see, float32 [batch, ...]: the goal relative to what is achieved."""
    ahead = obs["desired_goal"] - obs["achieved_goal"]
    return torch.cat([obs["observation"], obs["achieved_goal"], ahead], -1).float()


class Learner:
    def __init__(self, obs: int, action: int) -> None:
        self.actor, self.critic = network(obs, action, nn.Tanh()), network(obs + action, 1)
        self.targets = copy.deepcopy(nn.ModuleList([self.actor, self.critic]))
        self.targets.requires_grad_(False)
        self.of_actor = torch.optim.Adam(self.actor.parameters(), 1e-3)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), 1e-3)

    def update(self, batch: dict[str, Any]) -> None:
        obs, after = joined(batch["obs"]), joined(batch["next_obs"])
        with torch.no_grad():
            actor, critic = self.targets
            future = critic(torch.cat([after, actor(after)], -1)).squeeze(-1)
            goal = batch["reward"] + batch["discount"] * future
            goal = goal.clamp(-1 / (1 - GAMMA), 0.0)  # what returns of -1 and 0 can be
        value = self.critic(torch.cat([obs, batch["action"]], -1)).squeeze(-1)
        self.descend(self.of_critic, nn.functional.mse_loss(value, goal))
        action = self.actor(obs)
        loss = -self.critic(torch.cat([obs, action], -1)).mean() + action.square().mean()
        self.descend(self.of_actor, loss)
        learned = [*self.actor.parameters(), *self.critic.parameters()]
        with torch.no_grad():
            torch._foreach_lerp_(list(self.targets.parameters()), learned, TAU)

    @staticmethod
    def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def act(self, obs: dict[str, np.ndarray]) -> np.ndarray:
        seen = {name: torch.as_tensor(value)[None] for name, value in obs.items()}
        with torch.inference_mode():
            return self.actor(joined(seen))[0].numpy()


def make(env_id: str) -> gymnasium.Env[Any, Any]:
    if env_id == "Reach":
        return gymnasium.wrappers.TimeLimit(Reach(), EPISODE)
    import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)
    return gymnasium.make(env_id)


def succeeded(env: gymnasium.Env[Any, Any], learner: Learner, episodes: int) -> float:
    """Return the share of episodes that end at their goal, without exploration."""
    reached = []
    for episode in range(episodes):
        (obs, _), over = env.reset(seed=10_000 + episode), False
        while not over:
            obs, _, terminated, truncated, info = env.step(learner.act(obs))
            over = terminated or truncated
        reached.append(bool(info["is_success"]))
    return float(np.mean(reached))


def main(
    steps: int = 10_000,
    env_id: Annotated[str, typer.Option(help="Reach, or one of Gymnasium-Robotics.")] = "Reach",
    relabel_fraction: Annotated[float, typer.Option(help="0: goals as they were.")] = 0.8,
    warmup: Annotated[int, typer.Option(help="Random steps before learning.")] = 1_000,
    tests: Annotated[int, typer.Option(help="Episodes of a test.")] = 50,
    seed: int = 0,
    curve: Annotated[Path | None, typer.Option(help="Write the successes into this JSON.")] = None,
) -> None:
    """Learn from one environment that records itself, one update a step."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rng, started, points = np.random.default_rng(seed), time.monotonic(), []
    game, test = make(env_id), make(env_id)
    sizes = {name: space.shape[0] for name, space in game.observation_space.items()}
    (actions,) = game.action_space.shape
    # float64 in some environments; what follows a step is in the row after it
    obs = {name: Field((n,), "float32", next="next_obs") for name, n in sizes.items()}
    view = Hindsight(game.unwrapped.compute_reward, relabel_fraction=relabel_fraction, gamma=GAMMA)
    table = ReplayBuffer(
        200_000, schema_of(game, fields={"obs": obs}), view=view, limiter=MinSize(warmup), seed=seed
    )
    env, learner = Recorder(game, table), Learner(sum(sizes.values()), actions)
    with table, AsyncDataLoader(table, BATCH, timeout_s=60) as loader:
        now, _ = env.reset(seed=seed)
        for step in range(1, steps + 1):
            random = step <= warmup or rng.random() < 0.2
            noise = rng.normal(0, 0.1, actions)
            action = rng.uniform(-1, 1, actions) if random else learner.act(now) + noise
            now, _, terminated, truncated, _ = env.step(action.clip(-1, 1).astype(np.float32))
            if terminated or truncated:
                now, _ = env.reset()
            if step > warmup:
                learner.update(next(loader))
            if step % EVERY == 0 or step == steps:
                points.append((step, succeeded(test, learner, tests)))
                spent = time.monotonic() - started
                typer.echo(f"{spent:5.0f} s  {step:7,} steps  success {points[-1][1]:5.0%}")
        recorded = table.stats().inserted
    typer.echo(f"{recorded:,} steps recorded; success {points[-1][1]:.0%}")
    if curve is not None:
        run = {"env": env_id, "relabel_fraction": relabel_fraction, "seed": seed}
        curve.write_text(json.dumps({**run, "points": points}) + "\n")


if __name__ == "__main__":
    typer.run(main)
