"""Which thread draws the batches of a loader without workers."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest
from fake_device import FakeBackend, FakeStream

from async_loader import AsyncDataLoader, ReplayBuffer, Transitions
from async_loader.errors import Broken, Timeout, WouldDeadlock
from async_loader.feeder import connect
from async_loader.pipeline import source_engine
from async_loader.pipeline.producer import DrawCosts
from async_loader.replay.samplers import Prioritized

CHEAP, DEAR = 10e-6, 1e-3
ROWS = 600
NEVER, ALWAYS = 0.0, 1e9
"""What a hand-over costs, so that the caller draws never, or always."""


def test_the_producer_takes_over_where_all_batches_but_one_cost_more_than_a_hand_over():
    costs = DrawCosts()
    assert not any(costs.note(CHEAP) for _ in range(100))
    assert not any(costs.note(CHEAP if n % 5 == 0 else DEAR) for n in range(100))
    assert any(costs.note(DEAR) for _ in range(40))


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


def wide() -> ReplayBuffer:
    """Its batches are too large to be staged."""
    buffer = ReplayBuffer(ROWS, {"x": np.int64, "obs": ((1200,), np.float32)}, seed=1)
    numbers = np.arange(ROWS)
    buffer.extend(x=numbers, obs=np.repeat(numbers[:, None], 1200, 1).astype(np.float32))
    return buffer


def test_a_caller_that_draws_copies_to_the_device_itself_from_page_locked_slots(hand_over):
    hand_over(ALWAYS)
    _, fake = on_device(wide(), 40, keeps_up=True)
    assert fake.copies == 40
    assert fake.pageable_copies == 0
    assert fake.registrations == fake.unregistrations == 1


def test_a_small_batch_that_the_caller_draws_is_copied_on_its_own_stream_and_takes_no_slot(
    hand_over,
):
    hand_over(ALWAYS)
    _, fake = on_device(uniform(), 40)
    assert fake.copies == 40
    assert fake.pageable_copies >= 39  # the first may come before the device is open
    assert not {name for name in fake.host_syncs if not name.startswith("async-loader")}
    assert not fake.violations


def test_a_device_that_is_lost_breaks_a_loader_of_small_batches_for_good(hand_over):
    hand_over(ALWAYS)

    class Lost(FakeBackend):
        lost = False

        def _copy(self, *arguments):
            if self.lost:
                raise OSError("the device fell off the bus")
            return super()._copy(*arguments)

        def record(self, stream=None):
            if self.lost:
                raise OSError("the device fell off the bus")
            return super().record(stream)

    fake = Lost()
    with AsyncDataLoader(uniform(), 16, device=fake, seed=7, timeout_s=60) as loader:
        for _ in range(3):
            next(loader)
        fake.lost = True
        for _ in range(3):
            with pytest.raises(Broken, match="fell off the bus"):
                next(loader)
        fake.lost = False


def test_a_caller_that_draws_does_not_wait_for_a_device_that_is_late(hand_over):
    hand_over(ALWAYS)
    fake = FakeBackend()
    with AsyncDataLoader(columns(), 16, device=fake, seed=7, timeout_s=60) as loader:
        for _ in range(40):
            next(loader)
        assert not {name for name in fake.host_syncs if not name.startswith("async-loader")}
        assert fake.pageable_copies  # the slots are taken by copies that are pending
    assert not fake.violations


def test_a_caller_on_another_stream_copies_on_that_stream(hand_over):
    hand_over(ALWAYS)
    fake = FakeBackend()
    stream = FakeStream("own")
    with AsyncDataLoader(columns(), 16, device=fake, seed=7, timeout_s=60) as loader:
        for _ in range(5):
            with fake.stream(stream):
                batch = next(loader)
                assert (batch["x"].numpy() == batch["index"].numpy()).all()
    assert not fake.violations


@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("device", ["cpu", "fake"])
def test_statistics_say_which_thread_draws(make, device, hand_over):
    for cost, thread in ((ALWAYS, "caller"), (NEVER, "producer")):
        hand_over(cost)
        source = make()
        with AsyncDataLoader(source, 16, device, seed=7, timeout_s=60) as loader:
            for _ in range(20):
                next(loader)
            assert loader.stats().drawing_thread == thread


def test_a_table_of_a_feeder_is_drawn_by_the_caller_too():
    with connect("embedded", tables={"replay": ROWS}) as client:
        with client.table("replay").writer(schema={"x": "int64"}) as writer:
            writer.extend({"x": np.arange(ROWS)})
        with AsyncDataLoader(client.table("replay"), 16, timeout_s=60) as loader:
            for _ in range(30):
                next(loader)
            assert loader.stats().drawing_thread == "caller"


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
