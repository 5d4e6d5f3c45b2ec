"""AsyncDataLoader and DataLoader as a script meets them: tables, formats of a batch,
worker threads, stats, the end.
"""

from __future__ import annotations

import re
import sys
import threading
from functools import partial
from types import ModuleType

import numpy as np
import pytest
import torch

from async_loader import AsyncDataLoader, DataLoader, ReplayBuffer
from async_loader.errors import Broken, ConfigError, SchemaError
from async_loader.source import Applied

SLACK_S = 60.0


def filled(seed: int | None = None) -> ReplayBuffer:
    buffer = ReplayBuffer(100, {"x": "int64", "y": "float32"}, seed=seed)
    buffer.extend(x=np.arange(100), y=np.zeros(100, np.float32))
    return buffer


# -- what it draws from ----------------------------------------------------------------------------


def test_a_loader_over_a_table_draws_by_its_own_seed():
    def drawn(seed):
        with filled() as buffer, AsyncDataLoader(buffer, 8, seed=seed, timeout_s=SLACK_S) as loader:
            return [next(loader)["x"].tolist() for _ in range(3)]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_the_loader_of_a_table_changes_rows_by_id():
    with filled() as buffer, AsyncDataLoader(buffer, 8, timeout_s=SLACK_S) as loader:
        index = next(loader)["index"]
        ids = torch.unique(index)
        assert loader.update(ids, y=torch.ones(len(ids))) == Applied(len(ids), 0)
        batch = buffer.sample(100)
        changed = np.isin(batch["index"], ids.numpy())
        assert (batch["y"] == changed).all()


# -- formats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [4, 1 << 15], ids=["copied", "lent"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_as_arrays_where_that_is_asked_for(workers, batch_size):
    columns = {"x": np.arange(1000), "obs": {"a": np.arange(1000, dtype=np.float32)}}
    with AsyncDataLoader(
        columns,
        batch_size,
        num_workers=workers,
        batch_format="numpy",
        multiprocessing_context="fork",
        timeout_s=SLACK_S,
    ) as loader:
        kept = [next(loader) for _ in range(8)]
    for batch in kept:  # also after the loader's end
        assert type(batch["x"]) is type(batch["obs"]["a"]) is np.ndarray
        assert (batch["x"] == batch["index"]).all()
        assert (batch["x"] == batch["obs"]["a"]).all()


def test_batches_come_as_a_tensordict_where_that_is_asked_for(monkeypatch):
    class TensorDict(dict):
        def __init__(self, source, batch_size, device=None):
            super().__init__(source)
            self.batch_size, self.device = batch_size, device

    module = ModuleType("tensordict")
    module.TensorDict = TensorDict
    monkeypatch.setitem(sys.modules, "tensordict", module)
    with AsyncDataLoader(
        {"x": np.arange(9)}, 3, batch_format="tensordict", timeout_s=SLACK_S
    ) as loader:
        batch = next(loader)
    assert (type(batch), batch.batch_size) == (TensorDict, [3])
    assert torch.equal(batch["x"], batch["index"])


# -- worker threads --------------------------------------------------------------------------------


def test_jobs_run_in_several_threads_at_once():
    both = threading.Barrier(2)

    def job():
        return {"thread": int(threading.current_thread().name[-1]), "place": both.wait(SLACK_S)}

    with AsyncDataLoader(
        lambda n: [job], 1, num_workers=2, worker_type="thread", timeout_s=SLACK_S
    ) as loader:
        batches = [next(loader) for _ in range(2)]
        both.abort()  # of the batches that are made ahead
    assert {batch["thread"].item() for batch in batches} == {0, 1}


@pytest.mark.parametrize(
    ("cores", "size", "arguments", "threads"),
    [
        (16, 64, {}, 4),
        (16, 32, {}, 2),
        (8, 64, {}, 2),
        (2, 64, {}, 0),
        (16, 8, {}, 0),
        (16, 64, {"num_workers": 0}, 0),
        (16, 64, {"transform": dict}, 0),
    ],
)
def test_threads_read_large_rows_where_cores_are_many(cores, size, arguments, threads, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(cores), raising=False)
    with ReplayBuffer(80, {"x": ((1 << 17,), "uint8"), "n": "uint8"}) as buffer:
        numbers = np.arange(80, dtype=np.uint8)
        buffer.extend(x=np.repeat(numbers[:, None], 1 << 17, 1), n=numbers)
        with AsyncDataLoader(buffer, size, timeout_s=SLACK_S, seed=1, **arguments) as loader:
            batches = [{k: v.clone() for k, v in next(loader).items()} for _ in range(3)]
            assert loader.num_workers == threads
        with AsyncDataLoader(buffer, size, timeout_s=SLACK_S, seed=1, num_workers=0) as loader:
            for batch in batches:
                assert (batch["x"] == batch["n"][:, None]).all()
                assert torch.equal(batch["index"], next(loader)["index"])


def test_an_error_in_a_worker_thread_is_its_batch_alone():
    numbers = iter(range(100))

    def job(n):
        if n == 1:
            raise ZeroDivisionError("one")
        return {"x": n}

    def source(n):
        return [partial(job, next(numbers))]

    with AsyncDataLoader(
        source, 1, num_workers=2, worker_type="thread", timeout_s=SLACK_S
    ) as loader:
        assert next(loader)["x"].item() == 0
        with pytest.raises(ZeroDivisionError, match="one"):
            next(loader)
        assert [next(loader)["x"].item() for _ in range(3)] == [2, 3, 4]
        assert loader.stats().workers.batches >= 5


def test_worker_threads_are_told_their_number_and_may_refuse_to_begin():
    told, both = [], threading.Barrier(2)

    def begin(number):
        told.append(number)
        both.wait(SLACK_S)  # otherwise one of them might make all batches before the other begins

    with AsyncDataLoader(
        {"x": np.arange(9)},
        3,
        num_workers=2,
        worker_type="thread",
        worker_init_fn=begin,
        timeout_s=SLACK_S,
    ) as loader:
        for _ in range(8):
            next(loader)
    assert sorted(told) == [0, 1]

    def refuse(number):
        raise OSError("no")

    with AsyncDataLoader(
        {"x": np.arange(9)},
        3,
        num_workers=2,
        worker_type="thread",
        worker_init_fn=refuse,
        timeout_s=SLACK_S,
    ) as loader:
        with pytest.raises(Broken, match="worker_init_fn failed: OSError"):
            next(loader)


def test_a_blocked_worker_thread_is_left_behind_at_the_end_of_the_time(caplog):
    gate, begun = threading.Event(), threading.Event()

    def job():
        begun.set()
        gate.wait(SLACK_S)
        return {"x": 1}

    loader = AsyncDataLoader(lambda n: [job], 1, num_workers=2, worker_type="thread")
    assert begun.wait(SLACK_S)
    loader.close(timeout_s=0.1)
    assert "worker pool is still at work" in caplog.text
    gate.set()
    for thread in loader._engine.core.pool._threads:
        thread.join(SLACK_S)


# -- numbers and the end ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: AsyncDataLoader({"x": np.arange(9)}, 3, timeout=3),
            "has no timeout: say timeout_s",
        ),
        (
            lambda: DataLoader([1], workers="threads"),
            "has no workers: say num_workers=N and worker_type='process' or 'thread'",
        ),
        (
            lambda: DataLoader([1], 1, True),
            r"takes dataset, batch_size by place, and 3 values were given: "
            r"name the others \(shuffle=",
        ),
    ],
)
def test_a_word_of_before_or_of_torch_is_answered_with_ours(make, text):
    with pytest.raises(TypeError, match=text):
        make()


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (
            lambda table: table.size(),
            "'ReplayBuffer' object has no attribute 'size': say len(table)",
        ),
        (
            lambda table: table.writer().create_item(),
            "no attribute 'create_item': every step is an item",
        ),
        (
            lambda table: table.vector_writer(num_envs=3),
            "ReplayBuffer.vector_writer() has no num_envs: say envs",
        ),
        (lambda table: table.add(x=1, done=True), "'done' is no field of it"),
        (
            lambda table: DataLoader(table, 3),
            "a ReplayBuffer, which has no epochs: say AsyncDataLoader(table, batch_size)",
        ),
    ],
)
def test_a_first_guess_at_a_table_is_answered_with_ours(use, text):
    with ReplayBuffer(10, {"x": "int64", "terminated": "bool"}) as table:
        with pytest.raises(
            (AttributeError, TypeError, SchemaError, ConfigError), match=re.escape(text)
        ):
            use(table)
