"""TransferQueue with its own storage, and `multiprocessing.Queue`.

Imported in its environment and in ours; what needs TransferQueue imports it itself.
"""

import multiprocessing
import os
import time
from functools import cache
from typing import Any

import numpy as np

from benchmarks.harness import Figures
from benchmarks.measure import read
from benchmarks.rollouts.workloads import Work, timed

CPUS = 16
"""That Ray counts with: its actors of TransferQueue want one each, and wait for ever for it."""
PARTITION = "bench"


@cache
def _transfer_queue() -> Any:
    """Start it with two units of SimpleStorage, as it comes; once in a process, as it allows."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    import ray
    import transfer_queue

    ray.init(address="local", num_cpus=CPUS, object_store_memory=1 << 30, include_dashboard=False,
             log_to_driver=False)  # fmt: skip
    transfer_queue.init()
    return transfer_queue


def transfer_queue(seconds: float, work: Work, late: bool = False) -> Figures:
    """Return put, reward, get and their sum, by keys."""
    import torch
    from tensordict import TensorDict

    def jagged(name: str) -> Any:
        parts = [torch.from_numpy(one) for one in work.column(name)]
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

    whole = TensorDict({name: jagged(name) for name in work.fields}, batch_size=[work.members])
    rewards = TensorDict({"reward": torch.ones(work.members)}, batch_size=[work.members])
    keys = [f"member {i}" for i in range(work.members)]
    queue, checked = _transfer_queue(), False

    def turn() -> dict[str, float]:
        nonlocal checked
        begin = time.perf_counter()
        queue.kv_batch_put(keys=keys, partition_id=PARTITION, fields=whole)
        done = time.perf_counter()
        if late:
            queue.kv_batch_put(keys=keys, partition_id=PARTITION, fields=rewards)
        rewarded = time.perf_counter()
        batch = queue.kv_batch_get(keys=keys, partition_id=PARTITION)
        flat = {n: one.values() if one.is_nested else one for n, one in batch.items()}
        read(flat)
        end = time.perf_counter()
        if not checked:
            work.check(flat)
        checked = True
        queue.kv_clear(keys=keys, partition_id=PARTITION)
        return {"put": done - begin, "reward": rewarded - done, "get": end - rewarded,
                "sum": end - begin}  # fmt: skip

    return timed(seconds, turn)


def plain_queue(seconds: float, work: Work) -> Figures:
    """Return the sum of put and get of one member after the other, each a dict of arrays."""
    columns = {name: work.column(name) for name in work.fields}
    members = [{name: one[i] for name, one in columns.items()} for i in range(work.members)]
    queue: Any = multiprocessing.Queue()

    def turn() -> dict[str, float]:
        begin = time.perf_counter()
        for one in members:
            queue.put(one)
        taken = [queue.get() for _ in members]
        read({name: np.concatenate([one[name] for one in taken]) for name in columns})
        return {"sum": time.perf_counter() - begin}

    return timed(seconds, turn)
