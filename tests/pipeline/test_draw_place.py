"""Which thread draws the batches of a loader without workers."""

from __future__ import annotations

import functools
import threading

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_loader import AsyncDataLoader, ReplayBuffer, Transitions
from async_loader.errors import Broken, Timeout
from async_loader.feeder import connect
from async_loader.pipeline import source_engine
from async_loader.pipeline.draw_place import DrawPlace
from async_loader.pipeline.iterator import BatchIterator
from async_loader.replay.samplers import Prioritized
from async_loader.testing.fake_device import FakeBackend, FakeStream
from tests.waiting_rig import until

CHEAP, DEAR = 10e-6, 1e-3
ROWS = 600
NEVER, ALWAYS = 0.0, 1e9
"""What a hand-over costs, so that the caller draws never, or always."""


def noted(place: DrawPlace, cost: float, count: int = 12) -> list[bool]:
    return [place.note(cost) for _ in range(count)]


def test_the_caller_draws_while_batches_are_cheap():
    place = DrawPlace()
    assert not any(noted(place, CHEAP, 100))
    assert place.thread == "caller"


def test_dear_batches_move_to_the_producer_and_come_back_when_they_are_cheap():
    place = DrawPlace()
    assert sum(noted(place, DEAR)) == 1
    assert place.thread == "producer"
    assert sum(noted(place, CHEAP)) == 1
    assert place.thread == "caller"


def test_the_first_batches_and_single_slow_ones_change_nothing():
    place = DrawPlace()
    noted(place, DEAR, 2)
    for _ in range(50):
        noted(place, CHEAP, 5)
        noted(place, DEAR, 1)
    assert place.thread == "caller"


@given(st.lists(st.floats(0.61, 0.99), max_size=100))
def test_costs_near_the_limit_do_not_change_the_thread_back_and_forth(shares):
    place = DrawPlace(1.0)
    noted(place, 2.0)
    assert not any(place.note(share) for share in shares)


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
        monkeypatch.setattr(source_engine, "DrawPlace", functools.partial(DrawPlace, seconds))

    return costs


def batches(source, count: int = 25) -> list[dict[str, np.ndarray]]:
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
    source, count: int = 25, keeps_up: bool = False
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


@pytest.mark.parametrize("late", ["copy", "kernel"])
def test_a_small_batch_of_a_call_that_was_interrupted_is_safe_on_another_stream(
    hand_over, monkeypatch, late
):
    hand_over(ALWAYS)
    take, interrupted = BatchIterator._take, []

    def interrupt_once(self, item):
        if len(interrupted) < 3:
            interrupted.append(item)
            raise KeyboardInterrupt
        return take(self, item)

    fake, other = FakeBackend(), FakeStream("other")
    with AsyncDataLoader(uniform(), 16, device=fake, seed=7, timeout_s=60) as loader:
        for _ in range(3):
            next(loader)
        monkeypatch.setattr(BatchIterator, "_take", interrupt_once)
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                next(loader)
        assert len(set(map(id, interrupted))) == 1
        with fake.stream(other):
            batch = next(loader)
            index, read = batch["index"].numpy(), fake.launch(batch["x"])  # x is the row's number
            del batch
        for _ in range(3 * (late == "kernel")):  # its memory is not theirs before it was read
            fake.drain(fake.default)
            next(loader)
        fake.drain(fake.default if late == "kernel" else other)
        fake.drain(other)
        assert (read.values[0] == index).all()
    assert not fake.violations


@pytest.mark.parametrize("make", [uniform, wide], ids=lambda make: make.__name__)
@pytest.mark.parametrize("into", [False, True])
def test_a_batch_that_an_interrupted_call_had_made_is_safe_on_another_stream(
    hand_over, monkeypatch, make, into
):
    hand_over(ALWAYS)
    fake, other = FakeBackend(), FakeStream("other")
    buffer = make()
    shapes = {"x": ((16,), np.int64), "obs": ((16, buffer.sample(1)["obs"].shape[1]), np.float32)}
    if "r" in buffer.sample(1):
        shapes["r"] = ((16,), np.float32)
    given = {name: fake.empty(*one) for name, one in shapes.items()} if into else None
    with AsyncDataLoader(buffer, 16, device=fake, seed=7, into=given, timeout_s=60) as loader:
        for _ in range(3):
            next(loader)

        def interrupt(*_: object) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(type(loader._batches.meter), "waited", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        assert loader.stats().interrupted == 1
        with fake.stream(other):
            batch = next(loader)
            index, read = batch["index"].numpy(), fake.launch(batch["x"])
            del batch
        fake.drain(other)
        assert (read.values[0] == index).all()
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
            for _ in range(12):
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


def numbers(values) -> list[int]:
    return values.cpu().tolist()


@pytest.mark.slow
@given(st.lists(st.booleans(), min_size=ROWS // 8, max_size=ROWS // 8))
@hypothesis.settings(max_examples=20)
def test_on_a_device_each_row_of_a_queue_comes_once_whenever_the_thread_changes(changes):
    fake, seen = FakeBackend(), []
    with AsyncDataLoader(drawn_once().source(seed=1), 8, fake, timeout_s=60) as loader:
        iteration = loader._engine.iteration
        iteration.place = None  # it would decide for itself
        for here in changes:
            iteration.producer.park(here)
            seen += numbers(next(loader)["x"])
            assert iteration.queue.turn == len(seen) // 8
        assert sorted(seen) == list(range(ROWS))
        loader._engine.iterator._timeout_s = 0.05
        with pytest.raises(Timeout):
            next(loader)
    assert not fake.violations


def test_a_loader_that_changes_the_thread_again_and_again_gives_each_row_of_a_queue_once():
    buffer = drawn_once()
    source = buffer.source(seed=1)
    seen = []
    with AsyncDataLoader(source, 8, timeout_s=60) as loader:
        iteration = loader._engine.iteration
        for turn in range(ROWS // 8):
            iteration.draw_in("caller" if turn % 3 else "thread")
            seen += next(loader)["x"].tolist()
    assert sorted(seen) == list(range(ROWS))
    until(lambda: not any("producer" in thread.name for thread in threading.enumerate()))
