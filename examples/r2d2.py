"""R2D2 (Kapturowski et al. 2019) on CartPole without velocities: a recurrent network learns from
sequences whose first states were stored.

    python examples/r2d2.py                  # needs: pip install ".[demo]"
    python examples/r2d2.py --memoryless     # the control: the same network, its state always zero

Where the pole is does not say where it goes: only a network that remembers keeps it up.

    8 environments -> obs, state of the network -> vector_writer -> ReplayBuffer
                                                                        |
        sequences of 8 + 16 + 4 steps: burn-in, learning, bootstrap     v
    double Q-learning of 4 steps  <------------------------------ AsyncDataLoader
        '----------- priorities of each step: update_priorities ----------^
"""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch
import typer
from torch import Tensor, nn

from async_loader import AsyncDataLoader, Prioritized, ReplayBuffer, Sequences

ENVS, STATE, GAMMA, N_STEPS = 8, 64, 0.99, 4
BURN_IN, LENGTH = 8, 16
BATCH, WARM_UP, STEPS_PER_UPDATE = 32, 4_000, 16


class Positions(gymnasium.ObservationWrapper):
    """The positions of the cart and of the pole, without their velocities."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        space = env.observation_space
        self.observation_space = gymnasium.spaces.Box(space.low[::2], space.high[::2])

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[::2]


class Network(nn.Module):
    """Observations to Q-values, by way of a recurrent state."""

    def __init__(self, actions: int, memoryless: bool) -> None:
        super().__init__()
        self.memoryless = memoryless
        self.encode = nn.Sequential(nn.Linear(2, 64), nn.ReLU())
        self.recurrent = nn.GRU(64, STATE, batch_first=True)
        self.value = nn.Sequential(nn.Linear(STATE, 64), nn.ReLU(), nn.Linear(64, actions))

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return Q-values ``[batch, time, actions]`` of obs ``[batch, time, 2]``, and the state."""
        x = self.encode(obs)
        if self.memoryless:
            flat = x.reshape(-1, 1, x.shape[-1])
            hidden = self.recurrent(flat)[0].reshape(*x.shape[:2], STATE)
            return self.value(hidden), torch.zeros_like(state)
        hidden, last = self.recurrent(x, state[None].contiguous())
        return self.value(hidden), last[0]


def errors(net: Network, target: Network, batch: dict[str, Tensor]) -> Tensor:
    """Return the errors of n steps' double Q-learning, ``[batch, LENGTH]``, 0 beyond the end."""
    with torch.no_grad():
        state = net(batch["obs"][:, :BURN_IN], batch["state"])[1]
        target_state = target(batch["obs"][:, :BURN_IN], batch["state"])[1]
        there = batch["mask"][:, BURN_IN:]
        obs, reward = batch["obs"][:, BURN_IN:], batch["reward"][:, BURN_IN:]
        ends = batch["terminated"][:, BURN_IN:]
        later = target(obs, target_state)[0]
    now = net(obs, state)[0]
    with torch.no_grad():
        best = later.gather(2, now.argmax(2, keepdim=True))[..., 0]
        goal = best[:, N_STEPS:].clone()
        known = there[:, N_STEPS:].clone()
        for k in reversed(range(N_STEPS)):  # the return from each step on, from behind
            ended = ends[:, k : k + LENGTH]
            goal = reward[:, k : k + LENGTH] + GAMMA * torch.where(ended, 0.0, goal)
            known |= ended
    taken = now[:, :LENGTH].gather(2, batch["action"][:, BURN_IN : BURN_IN + LENGTH, None])[..., 0]
    return torch.where(there[:, :LENGTH] & known, goal - taken, 0.0)


def evaluate(net: Network, episodes: int) -> float:
    """Return the mean return of greedy episodes."""
    envs = make_envs(episodes)
    obs, _ = envs.reset(seed=10_000)
    state, going, total = torch.zeros(episodes, STATE), np.ones(episodes, bool), np.zeros(episodes)
    while going.any():
        with torch.no_grad():
            q, state = net(torch.as_tensor(obs[:, None]), state)
        obs, reward, terminated, truncated, _ = envs.step(q[:, 0].argmax(1).numpy())
        total += reward * going
        going &= ~(terminated | truncated)
    envs.close()
    return float(total.mean())


def make_envs(count: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec(
        "CartPole-v1",
        count,
        "sync",
        wrappers=[Positions],
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP},
    )


def main(
    steps: int = 400_000,
    seed: int = 0,
    memoryless: bool = False,
    goal: float = 450.0,
    every: int = 8_000,
    curve: Path | None = None,
) -> None:
    """Learn until the mean return of 20 greedy episodes reaches a goal, or for some steps."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    envs = make_envs(ENVS)
    net = Network(2, memoryless)
    target, optimizer = copy.deepcopy(net), torch.optim.Adam(net.parameters(), lr=5e-4)
    schema = {
        "obs": ((2,), "float32"),
        "state": ((STATE,), "float32"),
        "action": "int64",
        "reward": "float32",
        "terminated": "bool",
        "truncated": "bool",
    }
    view = Sequences(
        LENGTH,
        burn_in=BURN_IN,
        bootstrap=N_STEPS,
        stride=LENGTH // 2,
        boundary="pad",
        state="state",
    )
    sampler = Prioritized(alpha=0.9, beta=0.6)
    table = ReplayBuffer(100_000, schema, sampler=sampler, view=view, seed=seed)
    obs, _ = envs.reset(seed=seed)
    state, writer, loader = torch.zeros(ENVS, STATE), table.vector_writer(envs), None
    updates, begun, points = 0, time.monotonic(), []
    for step in range(0, steps, ENVS):
        seen = obs
        with torch.no_grad():
            q, after = net(torch.as_tensor(seen[:, None]), state)
        explores = rng.random(ENVS) < max(0.02, 1 - step / 20_000)
        action = np.where(explores, rng.integers(0, 2, ENVS), q[:, 0].argmax(1).numpy())
        obs, reward, terminated, truncated, info = envs.step(action)
        writer.append(
            obs=seen, state=state.numpy(), action=action, reward=reward.astype(np.float32),
            next_obs=obs, terminated=terminated, truncated=truncated, info=info,
        )  # fmt: skip
        state = torch.where(torch.as_tensor(terminated | truncated)[:, None], 0.0, after)
        if step < WARM_UP:
            continue
        loader = loader or AsyncDataLoader(table, BATCH, seed=seed)
        if step % STEPS_PER_UPDATE == 0:
            batch = next(loader)
            error = errors(net, target, batch)
            weight = batch["weight"][:, None]
            loss = (weight * nn.functional.huber_loss(error, error * 0, reduction="none")).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 10.0)
            optimizer.step()
            there = batch["mask"][:, BURN_IN : BURN_IN + LENGTH]
            size = torch.where(there, error.detach().abs(), torch.nan)
            loader.update_priorities(batch["index"], size)
            updates += 1
            if updates % 200 == 0:
                target.load_state_dict(net.state_dict())
        if step % every == 0:
            mean = evaluate(net, 20)
            points.append((step, mean))
            typer.echo(
                f"{step:>7,} steps {updates:>6,} updates {time.monotonic() - begun:>5.0f} s   "
                f"mean return {mean:.1f}"
            )
            if mean >= goal:
                break
    for one in (loader, writer, envs, table):
        if one is not None:
            one.close()
    if curve is not None:
        curve.write_text(json.dumps({"memoryless": memoryless, "seed": seed, "points": points}))


if __name__ == "__main__":
    typer.run(main)
