"""Batches in the caller's own tensors, on a real device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from async_loader import AsyncDataLoader, ReplayBuffer

pytestmark = pytest.mark.gpu

ROWS, STEPS = 64, 30
LONG = 20_000_000  # cycles; about ten milliseconds


def counted():
    """Each batch is filled with its number."""
    number = iter(range(10_000))
    return lambda n: {"x": np.full((n, 256), next(number), np.float32)}


def test_a_graph_is_replayed_on_each_batch(cuda):
    x = torch.zeros(ROWS, 256, device=cuda)
    graph, out = torch.cuda.CUDAGraph(), torch.zeros((), device=cuda)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        out.copy_(x.mean() * 2)
    found = []
    with AsyncDataLoader(counted(), ROWS, device=cuda, into={"x": x}) as loader:
        for _ in range(STEPS):
            assert next(loader)["x"] is x
            graph.replay()
            found.append(out.clone())
    assert [value.item() for value in found] == [2.0 * n for n in range(STEPS)]


@pytest.mark.parametrize("count", [1, 2])
def test_late_kernels_on_changing_streams_read_the_batch_they_were_launched_for(cuda, count):
    buffers = [{"x": torch.zeros(ROWS, 256, device=cuda)} for _ in range(count)]
    streams, found = [torch.cuda.Stream(cuda) for _ in range(2)], []
    with AsyncDataLoader(counted(), ROWS, device=cuda, into=buffers) as loader:
        for step in range(STEPS):
            with torch.cuda.stream(streams[step % 3 % 2]):
                batch = next(loader)
                torch.cuda._sleep(LONG)
                found.append(batch["x"].amin())
    torch.cuda.synchronize()
    assert [value.item() for value in found] == [float(n) for n in range(STEPS)]


@pytest.mark.parametrize("into", [False, True])
def test_small_batches_of_a_table_are_right_on_changing_streams(cuda, into):
    """The caller draws them, and copies them on its own stream."""
    rows = np.arange(10_000)
    buffer = ReplayBuffer(len(rows), {"x": np.int64, "obs": ((8,), np.float32)}, seed=1)
    buffer.extend(x=rows, obs=np.repeat(rows[:, None], 8, 1).astype(np.float32))
    given = {
        "x": torch.zeros(ROWS, dtype=torch.int64, device=cuda),
        "obs": torch.zeros(ROWS, 8, device=cuda),
    }
    streams, found = [torch.cuda.Stream(cuda) for _ in range(2)], []
    with AsyncDataLoader(buffer, ROWS, device=cuda, into=given if into else None) as loader:
        for step in range(10 * STEPS):
            with torch.cuda.stream(streams[step % 3 % 2]):
                batch = next(loader)
                if step % 7 == 0:
                    torch.cuda._sleep(LONG // 10)
                found.append((batch["index"], batch["x"] + 0, batch["obs"][:, 7] + 0))
        assert loader.stats().drawing_thread == "caller"
    torch.cuda.synchronize()
    for index, x, obs in found:
        assert x.tolist() == index.tolist() == obs.int().tolist()
    buffer.close()


def test_tensors_on_the_cpu_are_refused_for_a_gpu(cuda):
    with pytest.raises(ValueError, match="make a tensor with device='cuda:0'"):
        AsyncDataLoader(counted(), ROWS, device="cuda:0", into={"x": torch.zeros(ROWS, 256)})
