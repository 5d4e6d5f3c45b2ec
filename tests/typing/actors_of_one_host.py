"""Two actor processes write to the learner's table."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

import numpy as np

from async_loader import AsyncDataLoader, MinSize, ReplayBuffer, Writer

if TYPE_CHECKING:
    from async_loader.replay import WriterHandle

STEPS = 50


def act(writer: Writer) -> None:
    """What an actor does with a writer, wherever its table is."""
    for t in range(STEPS):
        writer.append(obs=np.array([t, 0]), reward=1.0, terminated=t % 10 == 9)
    writer.end_episode()
    writer.flush(timeout_s=30)


def actor(handle: WriterHandle, name: str) -> None:
    with handle.open(name) as writer:
        act(writer)


def main() -> None:
    schema = {"obs": ((2,), "float32"), "reward": "float32", "terminated": "bool"}
    with ReplayBuffer(1_000, schema, limiter=MinSize(2 * STEPS)) as buffer:
        context = multiprocessing.get_context("spawn")
        actors = [
            context.Process(target=actor, args=(buffer.writer_handle(), f"actor {n}"))
            for n in range(2)
        ]
        for process in actors:
            process.start()
        with AsyncDataLoader(buffer, 32, timeout_s=60) as loader:
            batch = next(loader)
        assert batch["obs"].shape == (32, 2)
        for process in actors:
            process.join(60)


if __name__ == "__main__":
    main()
