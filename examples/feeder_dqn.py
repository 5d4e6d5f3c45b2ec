"""DQN on CartPole with actors in processes of their own: they push steps into a feeder,
the learner pulls batches out.

    python examples/feeder_dqn.py --actors 2 --updates 3000        # needs: pip install ".[demo]"

    actor processes ── writer.append ──▶ feeder: table, limiter ──▶ AsyncDataLoader ──▶ learner
          ▲─────────────────── latest("policy") ◀── publish("policy") ────────────────────┘

The learner, a double DQN, runs in the main process.

With ``--address`` it learns from a feeder that runs elsewhere (``async-loader serve``), and its
actors write there. The demo (``./scripts/demo``) adds a learning curve, a report and tuned
settings.
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

SAMPLES_PER_INSERT, BATCH, WARMUP = 32.0, 128, 500
STEP = {
    "obs": Field((4,), "float32", next="next_obs"),
    "action": "int64",
    "reward": "float32",
    "terminated": "bool",
    "truncated": "bool",
    "policy_version": "int64",
}
LIMIT = RateLimiter(
    min_size_to_sample=WARMUP, samples_per_insert=SAMPLES_PER_INSERT, error_buffer=8.0 * BATCH
)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )


def act(address: str, seed: int) -> None:
    """An actor: until it is ended. A small buffer, so that it waits when the learner is behind."""
    torch.set_num_threads(1)
    env = gymnasium.make("CartPole-v1")
    net = network()
    rng = np.random.default_rng(seed)
    version = None
    with (
        connect(address) as client,
        client.table("replay").writer(schema=STEP, batch_rows=16, buffer_bytes=4096) as writer,
    ):
        for episode in range(1_000_000):
            obs, ended = env.reset(seed=seed if episode == 0 else None)[0], False
            while not ended:
                newer = client.latest(
                    "policy",
                    newer_than=version,
                    timeout_s=60 if version is None else 0,
                    as_torch=True,
                )
                if newer is not None:
                    net.load_state_dict(newer.tensors)
                    version = newer.version
                with torch.inference_mode():
                    greedy = int(net(torch.from_numpy(obs)).argmax())
                action = (
                    int(rng.integers(2)) if rng.random() < max(0.05, 1 - version / 1000) else greedy
                )
                after, reward, terminated, truncated, _ = env.step(action)
                ended = terminated or truncated
                writer.append(
                    obs=obs,
                    action=action,
                    reward=float(reward),
                    terminated=terminated,
                    truncated=truncated,
                    policy_version=version,
                    final_obs=after if ended else None,
                    # the limiter holds actors up for as long as the learner takes
                    timeout_s=math.inf,
                )
                obs = after


def learn(client, updates: int) -> None:
    online = network()
    target, optimizer = copy.deepcopy(online), torch.optim.Adam(online.parameters(), lr=1e-3)
    client.publish("policy", online.state_dict(), version=0)
    with AsyncDataLoader(
        client.table("replay").source(prefetch=4), batch_size=BATCH, timeout_s=300
    ) as loader:
        for update in range(1, updates + 1):
            batch = next(loader)
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
    lag, ratio = table["policies"]["policy"]["lag"], table["samples_per_insert"]
    typer.echo(
        f"{updates} updates, {table['inserted']} steps, {ratio:.1f} samples per insert, policy lag "
        f"{lag}"
    )


def main(actors: int = 2, updates: int = 3000, address: str = "embedded") -> None:
    torch.set_num_threads(1)
    tables = {"replay": {"capacity": 50_000, "limiter": LIMIT}} if address == "embedded" else None
    with connect(address, tables=tables) as client:
        spawn = multiprocessing.get_context("spawn")
        processes = [
            spawn.Process(target=act, args=(client.address, i), daemon=True) for i in range(actors)
        ]
        for process in processes:
            process.start()
        try:
            learn(client, updates)
        finally:
            for process in processes:
                process.terminate()
                process.join()


if __name__ == "__main__":
    typer.run(main)
