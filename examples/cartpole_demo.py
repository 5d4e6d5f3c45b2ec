"""A DQN learns CartPole-v1: actor processes write to a feeder, the learner pulls batches.

    python examples/cartpole_demo.py
    python examples/cartpole_demo.py --target 195 --json

Prints progress, or one line of JSON; the exit code is 1 if it did not reach the target. Actors
import no torch: they step environments with the weights that the learner publishes. The table's
limiter ties actors and learner together, so a busy machine makes this slower, not different.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import multiprocessing
import signal
import sys
import time
from collections import deque

import gymnasium
import numpy as np

from async_loader import AsyncDataLoader, connect
from async_loader.errors import AsyncLoaderError, Timeout
from async_loader.observe import Dashboard

ENVS = 4  # CartPoles of each actor
BATCH, GAMMA = 256, 0.99
WARMUP, STEPS_PER_UPDATE = 1_000, 4.0
EXPLORE_STEPS, FINAL_EPSILON = 5_000, 0.01
LEARNING_RATES, DECAY_UPDATES = (1e-3, 1e-4), 10_000  # cosine from the first to the second
TARGET_RATE, POLICY_RATE = 0.03, 0.01  # of the two averages that follow the online network
WINDOW = 20  # episodes in the mean return
OBS_SCALE = (2.4, 2.0, 0.21, 2.0)  # an episode ends at 2.4 m and 0.21 rad

SAMPLES_PER_INSERT = BATCH / STEPS_PER_UPDATE
TABLE = {
    "capacity": 50_000,
    "limiter": {
        "min_size_to_sample": WARMUP,
        "samples_per_insert": SAMPLES_PER_INSERT,
        "error_buffer": max(4.0 * BATCH, 2.0 * SAMPLES_PER_INSERT),  # batches that are made ahead
    },
    "schema": {
        "obs": {"dtype": "float32", "shape": [4], "next": "next_obs"},  # stored once
        "action": "int64",
        "reward": "float32",
        "policy_version": "int64",  # status shows how far it is behind the newest "policy"
        "terminated": "bool",
        "truncated": "bool",
    },
}


# -- an actor process ------------------------------------------------------------------------------


def q_values(weights, obs):
    """The network of `Learner`, without torch."""
    hidden = obs / np.array(OBS_SCALE, np.float32)
    for layer in (0, 2):
        hidden = np.maximum(hidden @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"], 0)
    return hidden @ weights["4.weight"].T + weights["4.bias"]


def act(address, number, actors, seed, returns, on_disconnect="raise"):
    """Step environments until the feeder ends; put finished episodes' returns into a queue."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    envs = gymnasium.make_vec(
        "CartPole-v1",
        num_envs=ENVS,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP},
    )
    rng = np.random.default_rng([seed, number])
    running = np.zeros(ENVS)
    with (
        contextlib.suppress(AsyncLoaderError),
        connect(address, on_disconnect=on_disconnect) as client,
    ):
        policy = client.latest("policy", timeout_s=60)
        # one that is started later explores as little as the others do by then
        steps = int(policy.version * STEPS_PER_UPDATE / actors)
        # small messages: the limiter holds an actor up when its buffer is full
        writer = client.table("replay").writer(batch_rows=8, buffer_bytes=2048, linger_ms=2.0)
        obs, _ = envs.reset(seed=(seed * actors + number) * ENVS)
        while True:
            epsilon = max(FINAL_EPSILON, 1.0 - steps * actors / EXPLORE_STEPS)
            action = np.where(
                rng.random(ENVS) < epsilon,
                rng.integers(2, size=ENVS),
                q_values(policy.tensors, obs).argmax(axis=1),
            )
            after, reward, terminated, truncated, info = envs.step(action)
            ended = terminated | truncated
            for i in range(ENVS):
                writer.append(
                    obs=obs[i],
                    action=action[i],
                    reward=np.float32(reward[i]),
                    policy_version=policy.version,
                    terminated=terminated[i],
                    truncated=truncated[i],
                    # at an episode's end, `after` already holds the start of the next one
                    final_obs=info["final_obs"][i] if ended[i] else None,
                    stream=i,
                    timeout_s=math.inf,  # the limiter holds it up as long as the learner needs
                )
            obs, steps, running = after, steps + ENVS, running + reward
            if ended.any():
                for total in running[ended].tolist():
                    returns.put(total)
                running[ended] = 0.0
            if steps % (4 * ENVS) == 0:
                policy = client.latest("policy", newer_than=policy.version) or policy


# -- the learner -----------------------------------------------------------------------------------


class Learner:
    """Double DQN: an online network, and two averages that follow it slowly.

    ``policy`` is what actors use: a single update may unlearn balancing at the edge, the average of
    the newest hundred does not.
    """

    def __init__(self):
        from torch import nn, optim  # late: actors import this file

        last = nn.Linear(128, 2)
        nn.init.ones_(last.bias)  # 1 is a pole that never falls: unknown states look good
        layers = nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), last
        self.online = nn.Sequential(*layers)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.policy = copy.deepcopy(self.target)
        self.optimizer = optim.Adam(self.online.parameters(), lr=LEARNING_RATES[0], fused=True)
        self.updates = 0

    def update(self, batch):
        """One step of van Hasselt et al. 2016, equation 4. Only `terminated` ends the return."""
        import torch

        scale = torch.tensor(OBS_SCALE)
        obs, next_obs = batch["obs"] / scale, batch["next_obs"] / scale
        with torch.no_grad():
            best = self.online(next_obs).argmax(dim=1, keepdim=True)
            future = GAMMA * self.target(next_obs).gather(1, best).squeeze(1)
            # (1 - gamma) scales an endless reward of 1 to a value of 1
            goal = batch["reward"] * (1.0 - GAMMA) + torch.where(batch["terminated"], 0.0, future)
        value = self.online(obs).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        loss = torch.nn.functional.smooth_l1_loss(value, goal)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        first, last = LEARNING_RATES
        share = 0.5 + 0.5 * math.cos(math.pi * min(1.0, self.updates / DECAY_UPDATES))
        self.optimizer.param_groups[0]["lr"] = last + share * (first - last)
        self.optimizer.step()
        with torch.no_grad():
            for network, rate in ((self.target, TARGET_RATE), (self.policy, POLICY_RATE)):
                mine, online = list(network.parameters()), list(self.online.parameters())
                torch._foreach_lerp_(mine, online, rate)
        self.updates += 1


def learn(client, options, actors, returns, show):
    """Update until the newest episodes reach the target; return the summary."""
    learner, newest = Learner(), deque(maxlen=WINDOW)
    started, began = time.perf_counter(), None
    waited = lags = 0.0
    shown = time.perf_counter()

    def summary():
        seconds = 0.0 if began is None else time.perf_counter() - began
        table = client.status(timeout_s=30)["tables"]["replay"]
        mean = sum(newest) / max(1, len(newest))
        return {
            "solved": len(newest) == WINDOW and mean >= options.target,
            "mean_return": mean,
            "env_steps": table["inserted"],
            "batches": learner.updates,
            "learner_wait_fraction": waited / seconds if seconds else 0.0,
            "seconds": seconds,
            "start_seconds": (began or time.perf_counter()) - started,
            "samples_per_insert": table["samples_per_insert"],
            "drawn_policy_lag": lags / max(1, learner.updates),  # in updates, on average
        }

    client.publish("policy", learner.policy.state_dict(), version=0)
    source = client.table("replay").source(seed=options.seed, prefetch=2)
    with AsyncDataLoader(source, batch_size=BATCH, device="cpu", timeout_s=1.0) as loader:
        while began is None or time.perf_counter() - began < options.max_seconds:
            since = time.perf_counter()
            try:
                batch = next(loader)
            except Timeout:  # look at the clock, and whether the actors live
                waited += time.perf_counter() - since
                check(actors)
                continue
            if began is None:
                began, since = time.perf_counter(), time.perf_counter()
            waited += time.perf_counter() - since
            learner.update(batch)
            lags += learner.updates - batch["policy_version"].double().mean().item()
            if learner.updates % 10 == 0:
                client.publish("policy", learner.policy.state_dict(), version=learner.updates)
            while not returns.empty():
                newest.append(returns.get())
            if len(newest) == WINDOW and sum(newest) / WINDOW >= options.target:
                break
            if time.perf_counter() - shown > 1.0:
                shown = time.perf_counter()
                check(actors)
                show(summary())
    return summary()


def check(actors):
    """Raise if an actor has died."""
    for actor in actors:
        if actor.exitcode is not None:
            raise SystemExit(f"{actor.name} ended with exit code {actor.exitcode}")


def line(now):
    return (
        f"{now['seconds']:5.0f} s  return {now['mean_return']:5.1f}, {now['env_steps']:,} steps, "
        f"{now['batches']:,} batches, learner waited {now['learner_wait_fraction']:.1%}, "
        f"steps in batches {now['drawn_policy_lag']:.0f} updates old"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=float, default=475.0, help="mean return (of 500)")
    parser.add_argument("--max-seconds", type=float, default=180.0, help="from the first batch on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--actors", type=int, default=2, help="processes, of 4 CartPoles each")
    parser.add_argument("--json", action="store_true", help="print one line of JSON, nothing else")
    parser.add_argument("--dashboard", type=int, metavar="PORT", help="serve a live page there")
    options = parser.parse_args()

    import torch

    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # such small products are not worth a team of threads
    show = (lambda _: None) if options.json else (lambda now: print(line(now), flush=True))
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(
            connect("embedded", tables={"replay": {**TABLE, "seed": options.seed}})
        )
        if options.dashboard is not None:
            stack.enter_context(Dashboard(client.status, options.dashboard))
            print(f"dashboard: http://127.0.0.1:{options.dashboard}/", flush=True)
        returns = context.SimpleQueue()
        actors = [
            context.Process(
                target=act,
                args=(client.address, i, options.actors, options.seed, returns),
                name=f"actor {i}",
                daemon=True,
            )
            for i in range(options.actors)
        ]
        for actor in actors:
            actor.start()
        try:
            found = learn(client, options, actors, returns, show)
        finally:
            for actor in actors:
                actor.kill()
                actor.join()
    if options.json:
        print(json.dumps(found))
    else:
        print(line(found), "solved" if found["solved"] else "not solved", sep="\n")
    sys.exit(0 if found["solved"] else 1)


if __name__ == "__main__":
    main()
