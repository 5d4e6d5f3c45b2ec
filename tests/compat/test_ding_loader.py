"""DI-engine's AsyncDataLoader in the drop-in module: what its tests check, its quirks,
and what it does wrong put right.
"""

from __future__ import annotations

import threading
from collections import namedtuple
from functools import partial

import numpy as np
import pytest
import torch

from async_loader.compat.ding import AsyncDataLoader, default_collate
from async_loader.errors import SchemaError

Pair = namedtuple("Pair", "a b")


def item(i):
    return {"idx": i, "frame": np.full((2, 3), i, np.float32)}


def jobs(n):
    return [partial(item, i) for i in range(n)]


def dicts(n):
    return [item(i) for i in range(n)]


@pytest.mark.parametrize("source", [jobs, dicts])
@pytest.mark.parametrize(
    ("batch_size", "num_workers", "chunk_size"), [(3, 0, 1), (6, 2, 3), (6, 2, None), (6, 1, 6)]
)
def test_batches_are_complete_and_in_order(source, batch_size, num_workers, chunk_size):
    loader = AsyncDataLoader(source, batch_size, "cpu", chunk_size, num_workers=num_workers)
    for _ in range(10):
        batch = next(loader)
        assert batch["idx"].tolist() == list(range(batch_size))
        assert batch["idx"].dtype == torch.int64
        assert batch["frame"].shape == (batch_size, 2, 3)
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_after_close_next_returns_none_for_ever(num_workers):
    loader = AsyncDataLoader(jobs, 4, "cpu", num_workers=num_workers)
    assert iter(loader) is loader
    assert next(loader) is not None
    assert loader.end_flag is False
    loader.close()
    loader.close()
    assert loader.end_flag is True
    assert [next(loader) for _ in range(3)] == [None] * 3
    assert next(iter(loader)) is None


@pytest.mark.parametrize(("batch_size", "chunk_size"), [(3, 2), (3, 6)])
def test_a_chunk_that_does_not_fit_is_an_assertion(batch_size, chunk_size, recwarn):
    with pytest.raises(AssertionError, match=f"^{batch_size}/{chunk_size}"):
        AsyncDataLoader(jobs, batch_size, "cpu", chunk_size)
    assert not recwarn.list  # the original complains in __del__ as well


def test_what_users_read_is_there(caplog):
    with caplog.at_level("INFO", "async_loader"):
        loader = AsyncDataLoader(jobs, 4, "cpu", num_workers=3)
    assert "Using 3 workers to load data" in caplog.text
    read = (
        loader.data_source,
        loader.batch_size,
        loader.device,
        loader.use_cuda,
        loader.chunk_size,
        loader.num_workers,
    )
    assert read == (jobs, 4, "cpu", False, 1, 3)
    assert loader.collate_fn is default_collate
    assert loader.queue_maxsize == 6
    with pytest.raises(TypeError):
        len(loader)
    loader.close()
    with AsyncDataLoader(jobs, 4, torch.device("cpu"), 2) as loader:
        assert (loader.chunk_size, loader.queue_maxsize, loader.device) == (2, 2, "cpu")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_made_ahead_of_the_learner_in_this_process(num_workers):
    enough, threads = threading.Event(), set()
    calls = 0

    def source(n):
        nonlocal calls
        calls += 1
        threads.add(threading.current_thread())
        if calls == 2 * max(1, num_workers):
            enough.set()
        return jobs(n)

    loader = AsyncDataLoader(source, 4, "cpu", num_workers=num_workers)
    assert enough.wait(60)
    loader.close()
    assert len(threads) == 1
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("num_workers", [0, 2])
def test_lambdas_and_closures_work_everywhere(num_workers):
    offset = 10
    loader = AsyncDataLoader(
        lambda n: [lambda i=i: torch.tensor([offset + i]) for i in range(n)],
        4,
        "cpu",
        2,
        collate_fn=lambda samples: torch.cat(samples) + offset,
        num_workers=num_workers,
    )
    assert next(loader).tolist() == [20, 21, 22, 23]
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", [jobs, dicts])
def test_what_a_collate_fn_returns_arrives_as_it_is(num_workers, make):
    def collate(samples):
        return Pair((samples[0]["frame"], "text", None), {"t": torch.ones(2), "s": {1}, 3: 1.5})

    loader = AsyncDataLoader(make, 4, "cpu", collate_fn=collate, num_workers=num_workers)
    batch = next(loader)
    loader.close()
    assert type(batch) is Pair
    assert type(batch.a) is tuple
    assert type(batch.a[0]) is np.ndarray
    assert batch.a[0].tolist() == np.zeros((2, 3)).tolist()
    assert batch.a[1:] == ("text", None)
    assert batch.b["t"].tolist() == [1, 1]
    assert (batch.b["s"], batch.b[3]) == ({1}, 1.5)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_short_and_long_lists_are_batches_of_their_own(num_workers):
    counts = iter([2, 4, 7, 1, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4])
    loader = AsyncDataLoader(lambda n: jobs(next(counts)), 4, "cpu", 2, num_workers=num_workers)
    assert [next(loader)["idx"].tolist() for _ in range(4)] == [
        [0, 1],
        [0, 1, 2, 3],
        list(range(7)),
        [0],
    ]
    loader.close()


@pytest.mark.parametrize("where", ["data_source", "job", "collate_fn"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_hung_raises_and_the_next_batch_comes(where, num_workers):
    calls = iter(range(100))

    def fail(*_):
        raise KeyError("no such frame")

    def source(n):
        bad = next(calls) == 0
        if bad and where == "data_source":
            fail()
        return [fail if bad and where == "job" else partial(int, bad)] * n

    def collate(samples):
        if where == "collate_fn" and samples[0]:
            fail()
        return samples

    loader = AsyncDataLoader(source, 4, "cpu", collate_fn=collate, num_workers=num_workers)
    with pytest.raises(KeyError, match="no such frame"):
        next(loader)
    assert next(loader) == [0] * 4
    loader.close()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([], "an empty list"),
        (None, "NoneType"),
        ([lambda: 1, 2], "1 callables and 1 other entries"),
        ("ab", "str"),
    ],
)
def test_a_source_that_gives_nothing_of_use_is_told_so(made, said):
    loader = AsyncDataLoader(lambda n: made, 4, "cpu")
    with pytest.raises(SchemaError, match=said):
        next(loader)
    loader.close()


# -- on a device -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_on_a_device_tuples_become_lists_and_arrays_stay(num_workers):
    def collate(samples):
        return {
            "pair": Pair(torch.ones(2), (torch.zeros(3), "text")),
            "array": samples[0]["frame"],
            "none": None,
            "n": 0.5,
        }

    loader = AsyncDataLoader(jobs, 4, "fake", collate_fn=collate, num_workers=num_workers)
    batch = next(loader)
    loader.close()
    moved = type(batch["pair"][0])
    assert moved.__name__ == "FakeArray"
    assert type(batch["pair"]) is list
    assert type(batch["pair"][1]) is list
    assert type(batch["pair"][1][0]) is moved
    assert batch["pair"][1][1] == "text"
    assert type(batch["array"]) is np.ndarray
    assert (batch["none"], batch["n"]) == (None, 0.5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_every_field_arrives_there():
    def source(n):
        return [{"index": i, "x": torch.ones(3)} for i in range(n)]

    with AsyncDataLoader(source, 4, "cuda") as loader:
        assert loader.use_cuda
        batch = next(loader)
    assert {value.device.type for value in batch.values()} == {"cuda"}
