"""PPO (Schulman et al. 2017) on CartPole with actors in processes of their own, whose weights are
at most one version old.

    python examples/ppo_feeder.py                  # needs: pip install ".[demo]"

    4 actor processes ── one row a rollout ──▶ feeder: queue ──▶ AsyncDataLoader, GAE ──▶ learner
          ▲───────────────────── latest("policy") ◀── publish("policy") ───────────────────┘

Actors and learner take turns, and overlap. Version v is made of batch v - 1, which holds rollout
v - 1 of every actor. An actor makes rollout v with the version that it has, at least v - 1, while
the learner may still compute version v; and sends it when version v is there. So the queue never
holds two rollouts of one actor, and the steps of batch v, which version v learns from, are of
version v - 1 or v.
"""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import time
from collections import deque
from pathlib import Path

import gymnasium
import numpy as np
import torch
import typer
from torch import Tensor, nn

from async_loader import AsyncDataLoader, connect, targets

ACTORS, STEPS, GAMMA, LAMBDA = 4, 128, 0.99, 0.95
EPOCHS, MINIBATCHES, CLIP, ENTROPY, RATE = 4, 4, 0.2, 0.01, 1e-3
WAIT_S = 300.0
STEP, ENDS = ((STEPS,), "float32"), ("reward", "ended", "cut")
ROLLOUT = {
    "obs": ((STEPS, 4), "float32"),
    "action": ((STEPS,), "int64"),
    "log_prob": STEP,
    "value": STEP,
    "next_value": STEP,
    "reward": STEP,
    "ended": ((STEPS,), "bool"),  # "terminated" would be said of a row as a whole
    "cut": ((STEPS,), "bool"),
    "episode_return": STEP,  # with the last step of an episode, else NaN
    "policy_version": "int64",
}


class Policy(nn.Module):
    """Observations to the log-probabilities of actions, and values."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.logits, self.value = nn.Linear(64, 2), nn.Linear(64, 1)
        nn.init.orthogonal_(self.logits.weight, 0.01)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = self.logits(self.actor(obs)).log_softmax(-1)
        return log_probs, self.value(self.critic(obs))[..., 0]


class Player:
    """Makes rollouts of one environment."""

    def __init__(self, seed: int) -> None:
        self.env, self.rng = gymnasium.make("CartPole-v1"), np.random.default_rng(seed)
        self.obs, self.total = self.env.reset(seed=seed)[0], 0.0

    @torch.inference_mode()
    def rollout(self, net: Policy) -> dict[str, np.ndarray]:
        row = {name: np.zeros(shape, dtype) for name, (shape, dtype) in list(ROLLOUT.items())[:-1]}
        after = np.zeros((STEPS, 4), np.float32)  # also behind an episode's end
        for t in range(STEPS):
            row["obs"][t] = self.obs
            log_probs, row["value"][t] = net(torch.from_numpy(row["obs"][t]))
            action = int(self.rng.random() < math.exp(log_probs[1]))
            row["action"][t], row["log_prob"][t] = action, log_probs[action]
            after[t], reward, terminated, truncated, _ = self.env.step(action)
            for name, value in zip(ENDS, (reward, terminated, truncated), strict=True):
                row[name][t] = value
            self.obs, self.total = after[t], self.total + float(reward)
            row["episode_return"][t] = self.total if terminated or truncated else np.nan
            if terminated or truncated:
                self.obs, self.total = self.env.reset()[0], 0.0
        row["next_value"][:] = net(torch.from_numpy(after))[1].numpy()
        return row


def act(address: str, seed: int) -> None:
    """An actor: until it is ended."""
    torch.set_num_threads(1)
    net, player = Policy(), Player(seed)
    with connect(address, timeout_s=WAIT_S) as client, client.table("rollouts").writer() as writer:
        weights = client.latest("policy", timeout_s=WAIT_S, as_torch=True)
        for version in itertools.count():
            net.load_state_dict(weights.tensors)
            row = player.rollout(net) | {"policy_version": weights.version}
            while weights.version < version:  # the learner has not used the batch before
                weights = client.latest(
                    "policy", newer_than=weights.version, timeout_s=WAIT_S, as_torch=True
                )
            writer.append(**row)
            writer.flush()


def learn(net: Policy, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> None:
    """Make some steps of the clipped objective, equation 9, on a batch of rollouts."""
    there = batch["target_mask"].flatten()
    flat = {name: batch[name].flatten(0, 1)[there] for name in ("obs", "action", "log_prob")}
    advantage, goal = (batch[name].flatten()[there] for name in ("advantage", "target"))
    for _ in range(EPOCHS):
        for some in torch.randperm(len(goal)).chunk(MINIBATCHES):
            log_probs, value = net(flat["obs"][some])
            taken = log_probs.gather(1, flat["action"][some, None])[:, 0]
            ratio = (taken - flat["log_prob"][some]).exp()
            gain = advantage[some]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            clipped = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
            entropy = -(log_probs.exp() * log_probs).sum(1).mean()
            loss = 0.5 * (value - goal[some]).square().mean() - clipped - ENTROPY * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()


def main(
    steps: int = 300_000,
    seed: int = 0,
    goal: float = 475.0,
    every: int = 10,
    curve: Path | None = None,
) -> None:
    """Learn until the mean return of 100 episodes reaches a goal, or for some steps."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    net = Policy()
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, eps=1e-5)
    tables = {"rollouts": {"queue": 2 * ACTORS, "schema": ROLLOUT}}
    begun, points, lags, returns = time.monotonic(), [], set(), deque[float](maxlen=100)
    spawn = multiprocessing.get_context("spawn")
    with connect("embedded", tables=tables, timeout_s=WAIT_S) as client:
        args = [(client.address, seed * ACTORS + i) for i in range(ACTORS)]
        actors = [spawn.Process(target=act, args=one, daemon=True) for one in args]
        for actor in actors:
            actor.start()
        try:
            client.publish("policy", net.state_dict(), version=0)
            gae = targets.GAE(
                GAMMA, LAMBDA, terminated="ended", truncated="cut", next_value="next_value"
            )
            source, wait = client.table("rollouts").source(prefetch=0), {"timeout_s": WAIT_S}
            with AsyncDataLoader(source, ACTORS, prefetch=1, transform=gae, **wait) as loader:
                for version in range(steps // (ACTORS * STEPS)):
                    batch = next(loader)
                    lags |= set((version - batch["policy_version"]).tolist())
                    assert lags <= {0, 1}, lags
                    learn(net, optimizer, batch)
                    client.publish("policy", net.state_dict(), version=version + 1)
                    ended = batch["episode_return"].flatten()
                    returns.extend(ended[~ended.isnan()].tolist())
                    mean = sum(returns) / max(1, len(returns))
                    if (version + 1) % every == 0:
                        points.append(((version + 1) * ACTORS * STEPS, mean))
                        typer.echo(
                            f"{points[-1][0]:>7,} steps {time.monotonic() - begun:>5.0f} s   "
                            f"policy lag {min(lags)} to {max(lags)}   mean return {mean:.1f}"
                        )
                        if len(returns) == 100 and mean >= goal:
                            break
        finally:
            for actor in actors:
                actor.terminate()
                actor.join()
    typer.echo(f"policy lag: {max(lags)} version at most")
    if curve is not None:
        curve.write_text(json.dumps({"seed": seed, "lags": sorted(lags), "points": points}))


if __name__ == "__main__":
    typer.run(main)
