"""Buffers that are actors of Ray: TorchRL's, and a plain one of a few lines.

Imported in their environment and in ours; what needs Ray imports it itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from benchmarks.feeder.sampling import timed
from benchmarks.feeder.workloads import Work
from benchmarks.harness import ROOT, Figures
from benchmarks.replay.workloads import BATCH

RAY = {
    "address": "local",
    "num_cpus": 2,
    "object_store_memory": 1 << 30,
    "include_dashboard": False,
    "log_to_driver": False,
    "runtime_env": {"env_vars": {"PYTHONPATH": str(ROOT)}},
}


class PlainBuffer:
    """Columns in the memory of an actor."""

    def __init__(self, rows: int, fields: dict[str, Any]) -> None:
        self._columns = {name: np.zeros((rows, *shape), dt) for name, (shape, dt) in fields.items()}
        self._rng, self._at, self._rows = np.random.default_rng(0), 0, rows

    def extend(self, chunk: dict[str, Any]) -> None:
        count = len(chunk["reward"])
        where = np.arange(self._at, self._at + count) % self._rows
        for name, column in chunk.items():
            self._columns[name][where] = column
        self._at += count

    def sample(self, count: int) -> dict[str, Any]:
        chosen = self._rng.integers(0, min(self._at, self._rows), count)
        return {name: column[chosen] for name, column in self._columns.items()}


@contextmanager
def _ray() -> Iterator[Any]:
    import ray

    ray.init(**RAY)
    try:
        yield ray
    finally:
        ray.shutdown()


def plain_actor(seconds: float, work: Work) -> Figures:
    """One call for each batch; the next is asked for before this one is read."""
    with _ray() as ray:
        actor = ray.remote(PlainBuffer).remote(work.rows, dict(work.stored.fields))
        for chunk in work.chunks():
            ray.get(actor.extend.remote(chunk))
        ahead = [actor.sample.remote(BATCH) for _ in range(2)]

        def take() -> Any:
            ahead.append(actor.sample.remote(BATCH))
            return ray.get(ahead.pop(0))

        return timed(take, work, seconds)


def torchrl(seconds: float, work: Work) -> Figures:
    """RayReplayBuffer as its documentation has it, with a storage of tensors."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, RayReplayBuffer

    torch.set_num_threads(1)
    buffer = RayReplayBuffer(
        storage=partial(LazyTensorStorage, work.rows), batch_size=BATCH, ray_init_config=RAY
    )
    try:
        for chunk in work.chunks():
            columns = {name: torch.from_numpy(np.ascontiguousarray(c)) for name, c in chunk.items()}
            buffer.extend(TensorDict(columns, batch_size=[len(chunk["reward"])]))
        return timed(_as_columns(buffer.sample, work), work, seconds)
    finally:
        buffer.close()


def _as_columns(sample: Callable[[], Any], work: Work) -> Callable[[], Any]:
    names = list(work.stored.fields)

    def take() -> dict[str, Any]:
        batch = sample()
        return {name: batch[name].numpy() for name in names}

    return take
