"""SAC (Haarnoja et al. 2018) on HalfCheetah-v5, whose environment records itself.

    python examples/sac_mujoco.py                  # 20 minutes on 2 CPU cores
    python examples/sac_mujoco.py --steps 2000     # some seconds

A thread plays through a `Recorder`, which adds each step to the table. The main thread learns from
batches that the loader has made meanwhile. The table's limiter keeps them in step.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from pathlib import Path
from typing import Annotated

import gymnasium
import numpy as np
import torch
import typer
from torch import Tensor, nn

from async_loader import AsyncDataLoader, Field, RateLimiter, ReplayBuffer, Transitions
from async_loader.errors import Closed
from async_loader.recording import Recorder, schema_of

BATCH, GAMMA, TAU, UPDATES_PER_ACTOR = 128, 0.99, 0.005, 10


def network(inputs: int, outputs: int, width: int = 256) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, outputs),
    )  # fmt: skip


class Policy(nn.Module):
    """A normal distribution, squashed by tanh to actions in [-1, 1]."""

    def __init__(self, obs: int, action: int) -> None:
        super().__init__()
        self.body = network(obs, 2 * action)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """float32 [batch, obs] -> actions [batch, action], log probabilities [batch]."""
        mean, log_std = self.body(obs).chunk(2, -1)
        log_std = log_std.clamp(-5, 2)
        raw = mean + log_std.exp() * (noise := torch.randn_like(mean))
        log_prob = -0.5 * (noise**2 + math.log(2 * math.pi)) - log_std
        # log(1 - tanh(raw) ** 2), in a form that stays finite (appendix C of the paper)
        squash = 2 * (math.log(2) - raw - nn.functional.softplus(-2 * raw))
        return raw.tanh(), (log_prob - squash).sum(-1)


class Learner:
    """Two critics and their slow copies, and a temperature that holds the policy's entropy."""

    def __init__(self, obs: int, action: int) -> None:
        self.policy, self.entropy = Policy(obs, action), -float(action)
        self.critics = nn.ModuleList(network(obs + action, 1) for _ in range(2))
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.of_policy = torch.optim.Adam(self.policy.parameters(), 3e-4, fused=True)
        self.of_critics = torch.optim.Adam(self.critics.parameters(), 1e-3, fused=True)
        self.of_alpha = torch.optim.Adam([self.log_alpha], 1e-3, fused=True)
        self.updates = 0

    @staticmethod
    def values(critics: nn.ModuleList, obs: Tensor, action: Tensor) -> Tensor:
        """What the critics say, float32 [2, batch]."""
        both = torch.cat([obs, action], -1)
        return torch.stack([critic(both).squeeze(-1) for critic in critics])

    def update(self, batch: dict[str, Tensor]) -> None:
        obs, alpha = batch["obs"], self.log_alpha.detach().exp()
        with torch.no_grad():
            after, log_prob = self.policy(batch["next_obs"])
            future = self.values(self.targets, batch["next_obs"], after).amin(0) - alpha * log_prob
            goal = batch["reward"] + batch["discount"] * future  # discount: 0 after termination
        loss = ((self.values(self.critics, obs, batch["action"]) - goal) ** 2).mean(1).sum()
        self.descend(self.of_critics, loss)

        self.critics.requires_grad_(False)
        action, log_prob = self.policy(obs)
        self.descend(
            self.of_policy,
            (alpha * log_prob - self.values(self.critics, obs, action).amin(0)).mean(),
        )
        self.critics.requires_grad_(True)
        gap = (log_prob.detach() + self.entropy).mean()
        self.descend(self.of_alpha, -self.log_alpha * gap)
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.targets.parameters()), list(self.critics.parameters()), TAU
            )
        self.updates += 1

    @staticmethod
    def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


class Actor(threading.Thread):
    """Plays until the table is closed; ``error`` is what went wrong otherwise."""

    def __init__(self, env: Recorder, policy: Policy, warmup: int, seed: int) -> None:
        super().__init__(name="actor")
        self.env, self.policy, self.warmup, self.seed = env, policy, warmup, seed
        self.steps, self.curve, self.error = 0, [], None  # curve: (steps, return of an episode)

    def run(self) -> None:
        try:
            self.play()
        except Closed:
            pass  # the main thread closed the table
        except Exception as error:
            self.error = error

    def play(self) -> None:
        self.env.action_space.seed(self.seed)
        (obs, _), total = self.env.reset(seed=self.seed), 0.0
        while True:
            action = self.env.action_space.sample() if self.steps < self.warmup else self.act(obs)
            obs, reward, terminated, truncated, _ = self.env.step(action)
            self.steps, total = self.steps + 1, total + float(reward)
            if terminated or truncated:
                self.curve.append((self.steps, total))
                (obs, _), total = self.env.reset(), 0.0

    def act(self, obs: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return self.policy(torch.as_tensor(obs, dtype=torch.float32)[None])[0][0].numpy()


def draw(curve: list[tuple[int, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    axes.plot(*zip(*curve, strict=True), lw=1.2)
    axes.set(xlabel="environment steps", ylabel="return of an episode", title="SAC, HalfCheetah-v5")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main(
    steps: Annotated[int, typer.Option(help="Steps of the environment.")] = 120_000,
    minutes: Annotated[float, typer.Option(help="Stop earlier after this time.")] = 20.0,
    warmup: Annotated[int, typer.Option(help="Random steps before learning.")] = 1_000,
    env: Annotated[
        str, typer.Option(help="An environment with actions in [-1, 1].")
    ] = "HalfCheetah-v5",
    seed: int = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw the returns into this PNG.")] = None,
) -> None:
    """Learn from one environment that records itself, one update a step; print the returns."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    game = gymnasium.make(env)
    (obs,), (action,) = game.observation_space.shape, game.action_space.shape
    # float64 in the environment; the networks compute in float32
    schema = schema_of(game, fields={"obs": Field((obs,), "float32", next="next_obs")})
    limiter = RateLimiter(
        min_size_to_sample=warmup, samples_per_insert=BATCH, error_buffer=16 * BATCH
    )
    learner, started = Learner(obs, action), time.monotonic()
    with ReplayBuffer(1_000_000, schema, limiter=limiter, seed=seed) as table:
        actor = Actor(Recorder(game, table), copy.deepcopy(learner.policy), warmup, seed)
        actor.start()
        source = table.source(view=Transitions(gamma=GAMMA))
        with AsyncDataLoader(source, batch_size=BATCH, timeout_s=120) as loader:
            told = 0
            for batch in loader:
                learner.update(batch)
                if learner.updates % UPDATES_PER_ACTOR == 0:
                    actor.policy = copy.deepcopy(learner.policy)
                spent = time.monotonic() - started
                for done, total in actor.curve[told:]:
                    typer.echo(f"{spent:6.0f} s  {done:7,} steps  return {total:8.1f}")
                    told += 1
                if actor.steps >= steps or spent > 60 * minutes or not actor.is_alive():
                    break
    actor.join()  # closing the table has woken it
    game.close()
    if actor.error is not None:
        raise actor.error
    typer.echo(f"{actor.steps:,} steps, {learner.updates:,} updates in {spent:.0f} s")
    if plot is not None and actor.curve:
        draw(actor.curve, plot)


if __name__ == "__main__":
    typer.run(main)
