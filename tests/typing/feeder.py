"""A feeder with two actors and a learner; here all three are in one script."""

from __future__ import annotations

import threading

import numpy as np

from async_loader import AsyncDataLoader, Field, MinSize, Prioritized, Table, connect
from async_loader.feeder import Client

STEPS = 100


def act(client: Client, name: str) -> None:
    table: Table = client.table("replay")
    with table.writer(name) as writer:
        for t in range(STEPS):
            writer.append(obs=np.array([t, 0]), reward=1.0, terminated=t % 20 == 19)
        writer.flush(timeout_s=30)


def main() -> None:
    replay = {
        "capacity": 10_000,
        "schema": {"obs": Field(2), "reward": "float32", "terminated": "bool"},
        "sampler": Prioritized(alpha=0.6),
        "limiter": MinSize(2 * STEPS),
    }
    with connect("embedded", tables={"replay": replay}) as learner:
        actors = [threading.Thread(target=act, args=(learner, f"actor {n}")) for n in range(2)]
        for actor in actors:
            actor.start()
        with AsyncDataLoader(learner.table("replay"), 32, seed=0, timeout_s=60) as loader:
            for _ in range(3):
                batch = next(loader)
                loader.update_priorities(batch["index"], batch["reward"].abs())
        learner.publish("policy", {"weight": batch["obs"][0]}, version=1)
        assert learner.latest("policy", timeout_s=30) is not None
        for actor in actors:
            actor.join(60)


if __name__ == "__main__":
    main()
