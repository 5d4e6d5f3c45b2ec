"""Tables in the memory of a real device."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from async_loader import Field, Prioritized, ReplayBuffer, Transitions

pytestmark = pytest.mark.gpu

LONG = 20_000_000  # cycles; about ten milliseconds


def steps(rng, rows, device=None):
    made = {
        "obs": torch.from_numpy(rng.integers(0, 255, (rows, 8, 8)).astype(np.uint8)),
        "action": torch.from_numpy(rng.normal(size=(rows, 3)).astype(np.float32)),
        "reward": torch.from_numpy(rng.normal(size=rows).astype(np.float32)),
        "terminated": torch.from_numpy(rng.random(rows) < 0.1),
        "truncated": torch.zeros(rows, dtype=torch.bool),
    }
    return made if device is None else {name: one.to(device) for name, one in made.items()}


SCHEMA = {
    "obs": Field((8, 8), "uint8", stack=3, next="next_obs"),
    "action": ((3,), "float32"),
    "reward": "float32",
    "terminated": "bool",
    "truncated": "bool",
}


def test_it_shows_what_a_table_of_the_host_shows(cuda, tmp_path):
    here = ReplayBuffer(300, SCHEMA, seed=1)
    there = ReplayBuffer(300, SCHEMA, seed=1, device=cuda, sampler=Prioritized())
    for n in range(40):
        for table, device in ((here, None), (there, cuda)):
            table.extend(**steps(np.random.default_rng(n), 16, device), stream=list(range(16)))
    there.save(tmp_path)
    again = ReplayBuffer.from_checkpoint(tmp_path, device=cuda)
    for table in (there, again):
        for view in (None, Transitions(n_steps=3)):
            batch = table.sample(64, view=view)
            batch.pop("weight")
            expected = here.get(batch["index"], view=view)
            assert batch["obs"].is_cuda
            assert batch["reward"].is_cuda
            for name, value in expected.items():
                np.testing.assert_array_equal(batch[name].cpu().numpy(), value)
            table.update_priorities(batch["index"], torch.rand(64, device=cuda))


def test_late_kernels_on_other_streams_read_and_write_in_order(cuda):
    table = ReplayBuffer(64, {"x": ((4096,), "float32"), "n": "int64"}, device=cuda)
    streams = [torch.cuda.Stream(cuda) for _ in range(3)]
    found = []
    for n in range(300):
        with torch.cuda.stream(streams[n % 3]):
            torch.cuda._sleep(LONG // 50)
            table.extend(x=torch.full((8, 4096), float(n), device=cuda), n=np.full(8, n))
        with torch.cuda.stream(streams[(n + 1) % 3]):
            batch = table.sample(32)
            found.append((batch["x"] == batch["n"][:, None]).all())
    torch.cuda.synchronize()
    assert all(one.item() for one in found)


def test_threads_with_streams_of_their_own(cuda):
    table = ReplayBuffer(64, {"x": ((4096,), "float32"), "n": "int64"}, device=cuda)
    table.extend(x=torch.zeros(64, 4096, device=cuda), n=np.zeros(64, np.int64))
    over, wrong = threading.Event(), []

    def draw():
        with torch.cuda.stream(torch.cuda.Stream(cuda)):
            while not over.is_set():
                batch = table.sample(32)
                if not (batch["x"] == batch["n"][:, None]).all().item():
                    wrong.append(batch)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for n in range(2000):
            table.extend(x=torch.full((8, 4096), float(n), device=cuda), n=np.full(8, n))
    finally:
        over.set()
        thread.join(60)
    assert not wrong
