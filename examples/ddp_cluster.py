"""Data-parallel learners on a table of several feeders: each rank draws batches of its own.

    torchrun --nproc-per-node 2 examples/ddp_cluster.py --shards ipc:///run/a ipc:///run/b

Without ``--shards`` the first rank starts two feeders on this machine, which end with it. The model
is a linear one: what it learns is not the point. At the end the ranks compare the ids of all rows
that they were given, and the weights of their models.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from async_loader import AsyncDataLoader
from async_loader.feeder.embedded import Embedded
from async_loader.feeder.settings import ServerSettings
from async_loader.scale import Cluster

QUEUE = {"queue": 4096}
"""Each step is given once, so that the ranks' batches can be compared row by row."""


def main() -> None:
    """Run one rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", nargs="*", default=[], help="addresses of the feeders")
    parser.add_argument("--batches", type=int, default=8, help="of each rank")
    parser.add_argument("--batch-size", type=int, default=32)
    settings = parser.parse_args()
    dist.init_process_group("gloo")
    try:
        with contextlib.ExitStack() as stack:
            train(shards_of(settings.shards, stack), settings.batches, settings.batch_size)
            dist.barrier()
    finally:
        dist.destroy_process_group()


def shards_of(given: list[str], stack: contextlib.ExitStack) -> list[str]:
    """Return the shards' addresses, the same ones in all ranks."""
    if not given and dist.get_rank() == 0:
        for _ in range(2):
            feeder = Embedded(ServerSettings.from_plain({"rollouts": QUEUE}))
            stack.callback(feeder.close)
            given.append(feeder.address)
    found: list[Any] = [given]
    dist.broadcast_object_list(found)
    addresses: list[str] = found[0]
    return addresses


def write(client: Any, steps: int) -> None:
    """Add steps to every shard: what actors would do."""
    for number, name in enumerate(client.shards):
        rng = np.random.default_rng(number)
        with client.shard(name).table("rollouts").writer() as writer:
            obs = rng.normal(size=(steps, 4)).astype(np.float32)
            writer.extend(obs=obs, target=obs.sum(1))


def train(shards: list[str], batches: int, batch_size: int) -> None:
    """Train on this rank's batches, and compare what the ranks were given."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with Cluster.static(shards, name=f"rank {rank}") as client:
        if rank == 0:
            # the ranks draw ahead of each other: enough for all of them
            write(client, 8 * batches * batch_size * world_size // len(shards))
        model = DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        source = client.table("rollouts").source(rank=rank, world_size=world_size, seed=0)
        ids = []
        with AsyncDataLoader(source, batch_size=batch_size) as loader:
            for _ in range(batches):
                batch = next(loader)
                ids.append(batch["index"].numpy().copy())
                error = ((model(batch["obs"])[:, 0] - batch["target"]) ** 2).mean()
                optimizer.zero_grad()
                error.backward()
                optimizer.step()
        source.close()
        report(np.concatenate(ids), model)


def report(ids: np.ndarray[Any, Any], model: torch.nn.Module) -> None:
    """Print, in the first rank, whether the batches are disjoint and the models are equal."""
    weights = np.concatenate([one.detach().numpy().ravel() for one in model.parameters()])
    mine: Any = (ids.tolist(), weights.tolist())
    all_of_them: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_of_them, mine)
    given = [set(one) for one, _ in all_of_them]
    rows = sum(len(one) for one, _ in all_of_them)
    disjoint = len(set().union(*given)) == rows
    equal = all(other == all_of_them[0][1] for _, other in all_of_them)
    by_shard = np.bincount(np.concatenate([one for one, _ in all_of_them]) >> 56)
    if dist.get_rank() == 0:
        sys.stdout.write(
            f"{rows} rows for {len(given)} ranks, by shard {by_shard.tolist()}\n"
            f"batches are disjoint: {disjoint}; models are equal: {equal}\n"
        )


if __name__ == "__main__":
    main()
