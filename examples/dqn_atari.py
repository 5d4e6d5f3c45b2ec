"""DQN on ALE Pong: frames stacked by the table, 3-step returns, prioritized replay,
and a limit on samples per insert.

    python examples/dqn_atari.py --seconds 120        # needs: pip install ".[atari]"

It shows how the parts fit together, and reports how fast they run. It does not learn Pong: that
takes millions of steps, hours on a good GPU, and two minutes on two CPU cores are some ten
thousand. The mean return stays near -21, the worst.

    actor thread                                table                            main thread
    8 Pongs -> one frame each -> vector_writer -> ReplayBuffer -> AsyncDataLoader -> double DQN step
       ^                                             ^-------- update_priorities ---------|
       '----------------------------------- weights, every 100 updates -------------------'
"""

from __future__ import annotations

import copy
import math
import threading
import time
from typing import Any

import ale_py
import cv2
import gymnasium
import numpy as np
import torch
import typer
from gymnasium.wrappers import AtariPreprocessing
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from async_loader import (
    AsyncDataLoader,
    Field,
    Linear,
    Prioritized,
    RateLimiter,
    ReplayBuffer,
    Transitions,
)
from async_loader.errors import Closed

# 8 samples per insert: a batch of 32 every 4 steps, as DQN does
STACK, BATCH, SAMPLES_PER_INSERT = 4, 32, 8.0
UPDATES_PER_TARGET, UPDATES_PER_ACTOR = 1000, 100
# beside the frames
SMALL = {"action": "int64", "reward": "float32", "terminated": "bool", "truncated": "bool"}


def make_envs(count: int) -> gymnasium.vector.VectorEnv:
    """Make `count` Pongs in one thread; each returns a grey frame, uint8 [84, 84],
    for 4 frames of the game.
    """
    gymnasium.register_envs(ale_py)
    cv2.setNumThreads(1)  # 84 x 84 is not worth waking other threads for
    preprocessing = [lambda env: AtariPreprocessing(env, frame_skip=4)]
    return gymnasium.make_vec("ALE/Pong-v5", count, "sync", wrappers=preprocessing, frameskip=1)


def make_table(capacity: int, warmup: int, envs: int, seed: int) -> ReplayBuffer:
    # stored once, delivered up to 8 times
    frame = Field((84, 84), "uint8", stack=STACK, next="next_obs")
    # The error buffer holds the batches that the loader makes ahead, and a step of all
    # environments.
    limiter = RateLimiter(
        min_size_to_sample=warmup,
        samples_per_insert=SAMPLES_PER_INSERT,
        error_buffer=4 * BATCH + 2 * SAMPLES_PER_INSERT * envs,
    )
    sampler = Prioritized(alpha=0.5, beta=Linear(0.4, 1.0, draws=1_000_000))
    return ReplayBuffer(
        capacity, {"obs": frame, **SMALL}, sampler=sampler, limiter=limiter, seed=seed
    )


class QNetwork(nn.Module):
    """Mnih et al. 2015: uint8 [batch, 4, 84, 84] -> float32 [batch, actions]."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        eyes = (
            nn.Conv2d(STACK, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
        )
        self.layers = nn.Sequential(
            *eyes, nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, actions)
        )

    def forward(self, frames: Tensor) -> Tensor:
        return self.layers(frames.float() / 255)


class Actor(threading.Thread):
    """Plays up to the time ``until``, or until the table is closed; then calls ``end``. What
    goes wrong is kept in ``error``.
    """

    def __init__(self, envs: Any, table: ReplayBuffer, net: nn.Module, seed: int, end: Any) -> None:
        super().__init__(name="actor")
        self.envs, self.table, self.net, self.end = envs, table, net, end
        self.frame, self.rng = envs.reset(seed=seed)[0], np.random.default_rng(seed)
        self.until, self.steps, self.returns, self.error = math.inf, 0, [], None

    def run(self) -> None:
        torch.set_num_threads(1)  # counts for this thread: a few frames are no work to share
        try:
            self.play()
        except Closed:
            pass  # the main thread closed the table
        except Exception as error:
            self.error = error
        finally:
            self.end()  # the learner need not wait for steps that never come

    def play(self) -> None:
        frame, count = self.frame, self.envs.num_envs
        writer = self.table.vector_writer(count, autoreset=self.envs.metadata["autoreset_mode"])
        # the table stacks for the learner; acting needs its own
        stacks = np.repeat(frame[:, None], STACK, axis=1)
        running, ended = np.zeros(count), np.zeros(count, bool)
        while time.monotonic() < self.until:
            action = self.act(stacks)
            after, reward, terminated, truncated, _ = self.envs.step(action)
            ends = {"terminated": terminated, "truncated": truncated}
            self.steps += len(
                writer.append(obs=frame, action=action, reward=reward, next_obs=after, **ends)
            )
            stacks = np.roll(stacks, -1, axis=1)
            stacks[:, -1] = frame = after
            # this call only reset those that ended in the one before
            stacks[ended] = after[ended, None]
            running += reward
            ended = (terminated | truncated) & ~ended
            self.returns += running[ended].tolist()
            running[ended] = 0

    def act(self, stacks: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            greedy = self.net(torch.from_numpy(stacks)).argmax(1).numpy()
        explore = self.rng.random(len(greedy)) < max(0.05, 1 - self.steps / 100_000)
        return np.where(
            explore, self.rng.integers(self.envs.single_action_space.n, size=len(greedy)), greedy
        )


class Learner:
    """Double DQN (van Hasselt et al. 2016) on n-step transitions,
    weighted as prioritized replay asks.
    """

    def __init__(self, actions: int, device: str) -> None:
        self.online = QNetwork(actions).to(device)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-4, eps=1.5e-4)
        self.updates = self.applied = self.stale = 0

    def update(self, batch: dict[str, Tensor]) -> Tensor:
        """One gradient step.

        Returns the absolute TD errors, float32 [batch]: the new priorities.
        """
        with torch.no_grad():
            best = self.online(batch["next_obs"]).argmax(1, keepdim=True)
            future = self.target(batch["next_obs"]).gather(1, best).squeeze(1)
            # discount: gamma ** 3, or 0 where the episode terminated
            goal = batch["reward"] + batch["discount"] * future
        value = self.online(batch["obs"]).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        loss = (
            batch["weight"] * nn.functional.smooth_l1_loss(value, goal, reduction="none")
        ).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % UPDATES_PER_TARGET == 0:
            self.target.load_state_dict(self.online.state_dict())
        return (goal - value).detach().abs()


def learn(
    loader: AsyncDataLoader, learner: Learner, actor: Actor, start: dict[str, Any], seconds: float
) -> None:
    """Until the time is up or the actor has ended.

    Counts from the first batch on: the warm-up is not learning.
    """
    for batch in loader:
        if not start:
            start.update(
                time=time.monotonic(),
                table=actor.table.stats(),
                steps=actor.steps,
                loader=loader.stats(),
            )
            actor.until = start["time"] + seconds
        done = actor.table.update_priorities(batch["index"], learner.update(batch).cpu())
        learner.applied, learner.stale = learner.applied + done.applied, learner.stale + done.stale
        if learner.updates % UPDATES_PER_ACTOR == 0:
            actor.net = copy.deepcopy(learner.online).cpu()
        if time.monotonic() >= actor.until:
            return


def report(loader: AsyncDataLoader, learner: Learner, actor: Actor, start: dict[str, Any]) -> Table:
    """What was measured between the first batch and now."""
    table, before, seconds = actor.table, start["table"], time.monotonic() - start["time"]
    inserted = table.stats().inserted - before.inserted
    sampled = table.stats().sampled - before.sampled
    stored = ReplayBuffer.nbytes_for(
        table.capacity, SMALL | dict.fromkeys(("obs", "next_obs"), ((STACK, 84, 84), "uint8"))
    )
    waited = loader.stats().learner.wait_s - start["loader"].learner.wait_s
    told = learner.applied + learner.stale
    grid = Table("measured", "value", "", title="DQN on Pong, from the first batch on")
    for row in (
        (
            "environment steps/s",
            f"{(actor.steps - start['steps']) / seconds:,.1f}",
            f"{actor.steps:,} with the warm-up",
        ),
        (
            "gradient steps/s",
            f"{learner.updates / seconds:,.1f}",
            f"{learner.updates:,} in {seconds:.1f} s, batches of {BATCH}",
        ),
        (
            "samples per insert",
            f"{sampled / (inserted or 1):.2f}",
            f"{SAMPLES_PER_INSERT:g} asked for",
        ),
        ("learner waits", f"{waited / seconds:.1%}", "of the time"),
        (
            "table, when full",
            f"{table.nbytes / 1e6:,.0f} MB",
            f"{stored / 1e6:,.0f} MB if stacks were stored",
        ),
        (
            "episodes",
            f"{len(actor.returns)}",
            f"mean return {np.mean(actor.returns or np.nan):.1f}",
        ),
        (
            "stale priorities",
            f"{learner.stale / told:.2%}",
            f"of {told:,}: steps that were gone by then",
        ),
    ):
        grid.add_row(*row)
    return grid


def main(
    seconds: float = 120,
    envs: int = 8,
    capacity: int = 50_000,
    warmup: int = 2_000,
    device: str = "auto",
    seed: int = 0,
):
    """Run for some seconds from the first batch on, then say how fast everything was."""
    torch.manual_seed(seed)
    torch.set_num_threads(max(1, torch.get_num_threads() - 1))  # the actor has a core too
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    pongs, table, start = make_envs(envs), make_table(capacity, warmup, envs, seed), {}
    learner = Learner(int(pongs.single_action_space.n), device)
    source = table.source(view=Transitions(n_steps=3, gamma=0.99))
    loader = AsyncDataLoader(source, batch_size=BATCH, device=device, timeout_s=300)
    actor = Actor(pongs, table, copy.deepcopy(learner.online).cpu(), seed, end=loader.close)
    actor.start()
    try:
        Console().print(
            f"{envs} Pongs for {seconds:g} s, learning on {device}; Ctrl-C ends it early"
        )
        learn(loader, learner, actor, start, seconds)
    except KeyboardInterrupt:
        Console().print("stopped")
    finally:
        found = (
            report(loader, learner, actor, start)
            if learner.applied
            else "it ended before the first batch"
        )
        table.close()  # wakes the actor where it waits for the limiter
        actor.join()
        loader.close()
        pongs.close()
    if actor.error is not None:
        raise actor.error
    Console().print(found)


if __name__ == "__main__":
    typer.run(main)
