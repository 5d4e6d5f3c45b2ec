"""DQN on CartPole with actors in other processes, or on other machines, that write to a feeder.

    python examples/feeder_dqn.py --actors 2 --updates 3000        # all of it on this machine

On two machines, for a learner at 10.0.0.1 (keys: docs/operations.md)::

    async-loader serve --table replay:50000 --bind tcp://0.0.0.0:5555 --allow-insecure
    python examples/feeder_dqn.py --actors 0 --address tcp://127.0.0.1:5555
    python examples/feeder_dqn.py --no-learner --address tcp://10.0.0.1:5555     # on the other

    actor processes ── writer.append ──▶ feeder: table, limiter ──▶ AsyncDataLoader ──▶ learner
          ▲─────────────────── latest("policy") ◀── publish("policy") ────────────────────┘
"""

import copy
import math
import multiprocessing

import gymnasium
import numpy as np
import torch
import typer
from torch import nn

from async_loader import AsyncDataLoader, Field, RateLimiter, connect

BATCH = 128
STEP = {
    "obs": Field((4,), "float32", next="next_obs"),
    "action": "int64",
    "reward": "float32",
    "terminated": "bool",
    "truncated": "bool",
    "policy_version": "int64",
}
LIMIT = RateLimiter(min_size_to_sample=500, samples_per_insert=32.0, error_buffer=8.0 * BATCH)


def network() -> nn.Sequential:
    hidden = (nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(64, 2))


def act(address: str, seed: int) -> None:
    """Play until this process is ended. The limiter makes it wait when the learner is behind."""
    torch.set_num_threads(1)
    env, net, rng = gymnasium.make("CartPole-v1"), network(), np.random.default_rng(seed)
    obs, version = env.reset(seed=seed)[0], None
    with (
        connect(address) as client,
        client.table("replay").writer(schema=STEP, batch_rows=16, buffer_bytes=4096) as writer,
    ):
        while True:
            wait_s = 60 if version is None else 0
            newer = client.latest("policy", newer_than=version, timeout_s=wait_s, as_torch=True)
            if newer is not None:
                net.load_state_dict(newer.tensors)
                version = newer.version
            with torch.inference_mode():
                action = int(net(torch.from_numpy(obs)).argmax())
            if rng.random() < max(0.05, 1 - version / 1000):
                action = int(rng.integers(2))
            after, reward, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
            writer.append(
                obs=obs, action=action, reward=float(reward), terminated=terminated,
                truncated=truncated, policy_version=version, final_obs=after if ended else None,
                timeout_s=math.inf,
            )  # fmt: skip
            obs = env.reset()[0] if ended else after


def learn(client, updates: int) -> None:
    online = network()
    target, optimizer = copy.deepcopy(online), torch.optim.Adam(online.parameters(), lr=1e-3)
    client.publish("policy", online.state_dict(), version=0)
    source = client.table("replay").source(prefetch=4)
    with AsyncDataLoader(source, batch_size=BATCH, timeout_s=300) as loader:
        for update, batch in zip(range(1, updates + 1), loader, strict=False):
            with torch.no_grad():
                best = online(batch["next_obs"]).argmax(1, keepdim=True)
                future = target(batch["next_obs"]).gather(1, best).squeeze(1)
                goal = batch["reward"] + 0.99 * future * ~batch["terminated"]
            value = online(batch["obs"]).gather(1, batch["action"][:, None]).squeeze(1)
            optimizer.zero_grad()
            nn.functional.smooth_l1_loss(value, goal).backward()
            optimizer.step()
            if update % 20 == 0:
                client.publish("policy", online.state_dict(), version=update)
            if update % 200 == 0:
                target.load_state_dict(online.state_dict())
    table = client.status()["tables"]["replay"]
    ratio, lag = table["samples_per_insert"], table["policies"]["policy"]["lag"]
    typer.echo(
        f"{updates} updates, {table['inserted']} steps, {ratio:.1f} samples per insert, lag {lag}"
    )


def main(actors: int = 2, updates: int = 3000, address: str = "embedded", learner: bool = True):
    torch.set_num_threads(1)
    tables = {"replay": {"capacity": 50_000, "limiter": LIMIT}} if address == "embedded" else None
    with connect(address, tables=tables) as client:
        spawn = multiprocessing.get_context("spawn")
        arguments = [(client.address, seed) for seed in range(actors)]
        processes = [spawn.Process(target=act, args=one, daemon=True) for one in arguments]
        for process in processes:
            process.start()
        try:
            if learner:
                learn(client, updates)
            else:
                [process.join() for process in processes]
        finally:
            for process in processes:
                process.terminate()
                process.join()


if __name__ == "__main__":
    typer.run(main)
