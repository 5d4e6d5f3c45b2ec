"""Two actor processes write to the learner's feeder."""

from __future__ import annotations

import multiprocessing

import numpy as np

from async_loader import AsyncDataLoader, Writer, connect

STEPS = 50
SCHEMA = {"obs": ((2,), "float32"), "reward": "float32", "terminated": "bool"}


def act(writer: Writer) -> None:
    """What an actor does with a writer, wherever its table is."""
    for t in range(STEPS):
        writer.append(obs=np.array([t, 0]), reward=1.0, terminated=t % 10 == 9)
    writer.end_episode()
    writer.flush(timeout_s=30)


def actor(address: str, name: str) -> None:
    with connect(address) as client, client.table("replay").writer(name, schema=SCHEMA) as writer:
        act(writer)


def main() -> None:
    settings = {
        "capacity": 1_000,
        "limiter": {"kind": "rate_limiter", "min_size_to_sample": 2 * STEPS},
    }
    with connect("embedded", tables={"replay": settings}) as client:
        context = multiprocessing.get_context("spawn")
        actors = [
            context.Process(target=actor, args=(client.address, f"actor {n}")) for n in range(2)
        ]
        for process in actors:
            process.start()
        with AsyncDataLoader(client.table("replay"), 32, timeout_s=60) as loader:
            batch = next(loader)
        assert batch["obs"].shape == (32, 2)
        for process in actors:
            process.join(60)


if __name__ == "__main__":
    main()
