"""Which thread draws the batches of a loader without workers."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest
from fake_device import FakeBackend

from async_loader import AsyncDataLoader, ReplayBuffer, Transitions
from async_loader.errors import Timeout, WouldDeadlock
from async_loader.pipeline import source_engine
from async_loader.pipeline.producer import DrawCosts
from async_loader.replay.samplers import Prioritized

ROWS = 600
NEVER, ALWAYS = 0.0, 1e9
"""What a hand-over costs, so that the caller draws never, or always."""


def table(**settings) -> ReplayBuffer:
    schema = {"x": np.int64, "r": np.float32, "obs": ((4,), np.float32)}
    buffer = ReplayBuffer(ROWS, schema, seed=1, **settings)
    numbers = np.arange(ROWS)
    obs = np.repeat(numbers[:, None], 4, 1).astype(np.float32)
    buffer.extend(x=numbers, r=numbers.astype(np.float32), obs=obs)
    return buffer


def uniform() -> ReplayBuffer:
    return table()


def prioritized() -> ReplayBuffer:
    return table(sampler=Prioritized())


def drawn_once() -> ReplayBuffer:
    return table(max_times_sampled=1)


def columns() -> dict[str, np.ndarray]:
    return {"x": np.arange(ROWS), "obs": np.zeros((ROWS, 4), np.float32)}


def linked():
    buffer = table()
    return buffer.source(view=Transitions(n_steps=3, gamma=0.9, reward="r"), seed=4)


SOURCES = [uniform, prioritized, drawn_once, columns, linked]


@pytest.fixture
def hand_over(monkeypatch):
    def costs(seconds: float) -> None:
        monkeypatch.setattr(source_engine, "DrawCosts", functools.partial(DrawCosts, seconds))

    return costs


def batches(source, count: int = 30) -> list[dict[str, np.ndarray]]:
    with AsyncDataLoader(source, 16, seed=7, batch_format="numpy", timeout_s=60) as loader:
        return [{name: array.copy() for name, array in next(loader).items()} for _ in range(count)]


@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make.__name__)
def test_the_thread_that_draws_does_not_change_what_is_drawn(make, hand_over):
    hand_over(ALWAYS)
    here = batches(make())
    hand_over(NEVER)
    there = batches(make())
    for one, other in zip(here, there, strict=True):
        assert one.keys() == other.keys()
        assert all((one[name] == other[name]).all() for name in one)


def on_device(
    source, count: int = 30, keeps_up: bool = False
) -> tuple[list[dict[str, np.ndarray]], FakeBackend]:
    """As `batches`, through a device that runs as late as it may, or that ``keeps_up``."""
    fake = FakeBackend()
    with AsyncDataLoader(source, 16, device=fake, seed=7, timeout_s=60) as loader:
        results = []
        for _ in range(count):
            batch = next(loader)
            names = [name for name in batch if name != "index"]
            launched = fake.launch(*(batch[name] for name in names))
            results.append((names, batch["index"].numpy(), launched))
            del batch  # its memory may be used again while the kernel waits
            if keeps_up:
                fake.drain(fake.side)
        fake.drain(fake.default)
        made = [
            {**dict(zip(names, launched.values, strict=True)), "index": index}
            for names, index, launched in results
        ]
    return made, fake


@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make.__name__)
def test_on_a_device_the_thread_that_draws_does_not_change_what_arrives(make, hand_over):
    hand_over(ALWAYS)
    here, fake = on_device(make())
    assert not fake.violations
    hand_over(NEVER)
    there, fake = on_device(make())
    assert not fake.violations
    for one, other in zip(here, there, strict=True):
        assert one.keys() == other.keys()
        assert all((one[name] == other[name]).all() for name in one)


def test_functions_of_the_user_are_called_by_the_producer_thread_alone():
    threads = set()

    def collate(samples):
        threads.add(threading.current_thread().name)
        return {"x": np.array([sample["x"] for sample in samples])}

    def produce(batch_size):
        threads.add(threading.current_thread().name)
        return {"x": np.arange(batch_size)}

    for source, function in ((columns(), collate), (produce, None)):
        with AsyncDataLoader(source, 16, collate_fn=function, timeout_s=60) as loader:
            for _ in range(30):
                next(loader)
            assert loader.stats().drawing_thread == "producer"
    assert threads == {"async-loader-producer"}


def test_a_caller_that_draws_waits_for_rows_of_other_threads_and_until_its_time_is_over():
    buffer = ReplayBuffer(ROWS, {"x": np.int64}, seed=1)
    with AsyncDataLoader(buffer.source(min_size=8), 8, timeout_s=60) as loader:
        writer = threading.Timer(0.05, lambda: buffer.extend(x=np.arange(8)))
        writer.start()
        assert len(next(loader)["x"]) == 8
        writer.join()
        assert loader.stats().drawing_thread == "caller"


@pytest.mark.parametrize("device", ["cpu", "fake"])
def test_each_row_of_a_queue_comes_once_while_the_producer_takes_over(device, hand_over):
    hand_over(NEVER)
    with AsyncDataLoader(drawn_once().source(seed=1), 8, device, timeout_s=60) as loader:
        seen = [row for _ in range(ROWS // 8) for row in next(loader)["x"].cpu().tolist()]
        assert loader.stats().drawing_thread == "producer"
        loader._engine.iterator._timeout_s = 0.05
        with pytest.raises((Timeout, WouldDeadlock)):
            next(loader)
    assert sorted(seen) == list(range(ROWS))


def test_a_call_that_ctrl_c_ends_costs_its_batch_at_most(monkeypatch):
    with AsyncDataLoader(drawn_once().source(seed=1), 8, timeout_s=60) as loader:
        seen, draw = [], loader._source.draw_now

        def interrupted(batch_size):
            monkeypatch.undo()
            draw(batch_size)
            raise KeyboardInterrupt

        for _ in range(3):
            monkeypatch.setattr(type(loader._source), "draw_now", lambda _, n: interrupted(n))
            with pytest.raises(KeyboardInterrupt):
                next(loader)
            seen += next(loader)["x"].tolist()
    assert len(set(seen)) == len(seen) == 24


def test_without_prefetch_a_batch_has_what_the_table_held_at_its_call():
    def drawn() -> list[list[int]]:
        with ReplayBuffer(100, {"x": ((1 << 17,), "uint8"), "n": "int64"}) as buffer:
            large = np.zeros((32, 1 << 17), np.uint8)
            buffer.extend(x=large, n=np.zeros(32, np.int64))
            with AsyncDataLoader(buffer, 32, prefetch=0, seed=1) as loader:
                found = []
                for n in range(40):  # draws that cost more than a hand-over
                    found.append(next(loader)["index"].tolist())
                    buffer.add(x=large[0], n=n)
                assert loader.stats().drawing_thread == "caller"
        return found

    assert drawn() == drawn()
